"""Reasons into kinds."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.failures import failure_kind
from tasks.errors import OpponentError, boundary


@pytest.mark.parametrize(
    ("reason", "kind"),
    [
        ("OpponentError: no usable answer from vendor/model in 6 attempts: 429", "OpponentError"),
        ("KeyError: 'player_cards'", "KeyError"),
        ("worker tcp://10.0.0.1:4000 left (3 attempts)", "worker_left"),
        ("KilledWorker: Attempted to run task on 1 workers", "KilledWorker"),
        ("something went: wrong", "other"),
        ("", "other"),
        (f"{'E' * 61}: too long for a name", "other"),
    ],
)
def test_a_failures_kind_is_its_errors_type(reason: str, kind: str) -> None:
    assert failure_kind(reason) == kind


@given(st.text())
def test_what_the_message_says_is_no_matter(message: str) -> None:
    with boundary() as caught:
        raise LookupError(message)
    assert failure_kind(caught.summary) == "LookupError"
    assert failure_kind(f"{OpponentError.__name__}: {message}") == "OpponentError"
