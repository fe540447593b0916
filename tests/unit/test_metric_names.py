"""Names as MLflow takes them: valid, one for one, the same everywhere."""

from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mlflow.utils.validation import _validate_metric, _validate_param

from pipeline.metric_names import MAX_LENGTH, clean_name

# Names near each other, where collisions would be: of few characters, allowed and not.
NEAR = st.text(alphabet="ab_-./ :[(é\n", max_size=6)


@pytest.mark.parametrize(
    "name",
    ["train/KuhnPoker-v0-train/reward/player_0", "vllm.temperature", "engine_0/kv_use", "two words", ".hidden", "a..b"],
)
def test_a_name_that_mlflow_takes_stays_as_it_is(name: str) -> None:
    assert clean_name(name) == name


@pytest.mark.parametrize(
    ("name", "readable"),
    [
        ("win[0]", "win_0_-"),
        ("win(0)", "win_0_-"),
        ("/a//b/", "a/b-"),
        ("../../a", "a-"),
        ("..a", "a-"),
        ("a/./b", "a/b-"),
        (" a", "a-"),
        ("größe:1", "gr__e_1-"),
        ("a\n", "a_-"),
        ("", "-"),
        ("/", "-"),
        ("\ud800", "_-"),
        ("n" * 300, "n" * (MAX_LENGTH - 13) + "-"),
    ],
)
def test_any_other_name_keeps_what_is_readable_and_gets_a_hash(name: str, readable: str) -> None:
    cleaned = clean_name(name)
    assert cleaned[:-12] == readable
    assert set(cleaned[-12:]) <= set("0123456789abcdef")


def test_a_cleaned_name_logged_by_itself_is_another_name() -> None:
    cleaned = clean_name("win[0]")
    assert clean_name(cleaned) != cleaned
    assert clean_name(cleaned).startswith(cleaned)


@given(st.text(max_size=300) | NEAR)
def test_mlflow_takes_every_cleaned_name(name: str) -> None:
    cleaned = clean_name(name)
    _validate_metric(cleaned, 1.0, timestamp=0, step=0)
    _validate_param(cleaned, "value")


@given(st.lists(st.text(max_size=300) | NEAR, unique=True))
def test_different_names_stay_different(names: list[str]) -> None:
    known = {*names, *map(clean_name, names)}
    assert len({clean_name(name) for name in known}) == len(known)


def test_another_process_gives_the_same_name() -> None:
    code = "from pipeline.metric_names import clean_name; print(clean_name('win[0]'))"
    other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert other.stdout.strip() == clean_name("win[0]")
