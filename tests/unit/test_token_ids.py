"""Token ids share their integers once they were pickled, whatever they are."""

from __future__ import annotations

import pickle
from dataclasses import replace

import pytest

from tasks.contracts import Choice
from tasks.token_ids import LARGEST_TABLE, packed, unpacked


@pytest.mark.parametrize(
    "ids",
    [(), (7,), (1, 2), (70_000, 70_000), (-1, 5), (LARGEST_TABLE - 1, 0), (LARGEST_TABLE, 0), (3, 2**31), (3, 2**70)],
)
def test_ids_stay_equal(ids: tuple[int, ...]) -> None:
    assert unpacked(packed(ids)) == ids
    choice = Choice("[check]", "[check]", format_ok=True, prompt_ids=ids, completion_ids=ids, logprobs=(-0.5,))
    assert pickle.loads(pickle.dumps(choice)) == choice


def test_pickled_choices_share_their_integers() -> None:
    choice = Choice("[bet]", "[bet]", format_ok=True, prompt_ids=(40_000, 40_001), completion_ids=(40_001, 40_002))
    one, other = (pickle.loads(pickle.dumps(replace(choice, action=action))) for action in ("[bet]", "[call]"))
    assert one.prompt_ids[0] is other.prompt_ids[0]
    assert one.completion_ids[0] is other.prompt_ids[1]
