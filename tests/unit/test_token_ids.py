"""Token ids are a sequence like any other, in 32 bits each."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.contracts import Choice
from tasks.errors import DatasetError
from tasks.token_ids import TokenIds

LISTS = st.lists(st.integers(0, 2**31 - 1), max_size=8)


@given(LISTS, LISTS, st.slices(8))
def test_they_are_what_a_tuple_would_be(left: list[int], right: list[int], part: slice) -> None:
    ids, same = TokenIds(left), tuple(left)
    assert ids == same and ids == left and same == ids and (ids != tuple(right)) == (same != tuple(right))
    assert (len(ids), tuple(ids), hash(ids), list(reversed(ids))) == (len(same), same, hash(same), left[::-1])
    assert ids[part] == same[part]
    assert [ids[at] for at in range(len(ids))] == left
    assert ids + TokenIds(right) == same + tuple(right)
    assert pickle.loads(pickle.dumps(ids)) == TokenIds.of_bytes(bytes(ids)) == ids


def test_they_take_four_bytes_each_to_send_and_to_keep() -> None:
    ids = TokenIds(range(40_000, 41_000))
    assert len(bytes(ids)) == 4000
    assert len(pickle.dumps(ids)) < 4100


@pytest.mark.parametrize("odd", [-1, 2**31, 2**32 - 1, 2**32, 1.0, None, "7"])
def test_what_is_no_id_is_named(odd: Any) -> None:
    with pytest.raises(DatasetError, match=rf"token ids are whole numbers from 0 to 2\*\*31 - 1, got {odd!r}; look"):
        TokenIds((3, odd))


def test_a_choice_takes_any_sequence() -> None:
    choice = Choice("[bet]", "[bet]", format_ok=True, prompt_ids=(1, 2), completion_ids=[3], logprobs=(-0.5,))
    assert isinstance(choice.prompt_ids, TokenIds) and isinstance(choice.completion_ids, TokenIds)
    assert (choice.prompt_ids, choice.completion_ids, choice.logprobs_ok) == ((1, 2), (3,), True)
    assert pickle.loads(pickle.dumps(choice)) == choice
    assert repr(choice.prompt_ids) == "TokenIds([1, 2])"
