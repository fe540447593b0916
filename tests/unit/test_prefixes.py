"""Sequences packed into rows: shared tokens stand once, each token sees its own sequence alone, budgets are kept."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from tasks.collate import collate
from tasks.prefixes import MOST_LENGTH, micro_batches, rows_of
from tests.unit.learner_samples import sample

texts = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=8), max_size=12)


def test_a_tree_by_hand() -> None:
    (row,) = rows_of([sample([1, 2, 3, 4], [], []), sample([1, 2, 5], [], []), sample([1, 2, 3, 6], [], [])])
    assert row.token_ids == (1, 2, 3, 4, 6, 5)
    assert row.positions == (0, 1, 2, 3, 3, 2)
    assert row.ends == (6, 6, 5, 4, 5, 6)
    assert row.paths == ((0, 1, 2, 3), (0, 1, 2, 4), (0, 1, 5))


@given(texts)
def test_each_token_attends_to_its_own_sequence_up_to_itself(sequences: list[list[int]]) -> None:
    for row in rows_of([sample(ids, [], []) for ids in sequences]):
        for one, path in zip(row.samples, row.paths, strict=True):
            assert tuple(row.token_ids[place] for place in path) == one.token_ids
            assert [row.positions[place] for place in path] == list(range(len(path)))
            for depth, place in enumerate(path):
                seen = [key for key in range(place + 1) if place < row.ends[key]]
                assert seen == list(path[: depth + 1])


@given(texts)
def test_no_sequence_is_lost_and_rows_stay_short(sequences: list[list[int]]) -> None:
    rows = rows_of([sample(ids, [], []) for ids in sequences])
    assert sorted(one.token_ids for row in rows for one in row.samples) == sorted(map(tuple, sequences))
    assert all(len(row.token_ids) <= MOST_LENGTH * max(len(one.token_ids) for one in row.samples) for row in rows)


def test_little_in_common_is_not_shared() -> None:
    assert len(rows_of([sample([1, 2, 3, 4], [], []), sample([1, 5, 6, 7], [], [])])) == 2


def test_without_sharing_each_sequence_is_a_row() -> None:
    rows = rows_of([sample([1, 2, 3], [], []), sample([1, 2, 3], [], [])], share=False)
    assert [row.token_ids for row in rows] == [(1, 2, 3), (1, 2, 3)]


def test_the_mask_is_that_of_the_tree_and_padding_sees_itself() -> None:
    rows = rows_of([sample([1, 2, 3], [], []), sample([1, 2, 4], [], []), sample([9, 9], [], [])])
    mask_TT = collate(rows, 0, torch.device("cpu")).mask_B1TT
    assert mask_TT is not None
    assert mask_TT[:, 0].int().tolist() == [
        [[1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0], [1, 1, 0, 1]],
        [[1, 0, 0, 0], [1, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]],
    ]


def test_plain_rows_need_no_mask() -> None:
    plain = collate(rows_of([sample([1, 2, 3], [], []), sample([5, 6], [], [])]), 0, torch.device("cpu"))
    assert plain.mask_B1TT is None
    assert plain.positions_BT is None


def test_micro_batches_go_from_long_to_short_within_the_budget() -> None:
    rows = rows_of([sample(range(100 * length, 101 * length), [], []) for length in (3, 9, 4, 20, 2, 5)])
    cut = micro_batches(rows, budget=10)
    assert [[len(row.token_ids) for row in piece] for piece in cut] == [[20], [9], [5, 4], [3, 2]]


@given(st.lists(st.integers(1, 40), max_size=30), st.integers(1, 100))
def test_each_row_is_in_one_micro_batch(lengths: list[int], budget: int) -> None:
    cut = micro_batches(rows_of([sample(range(length), [], []) for length in lengths], share=False), budget)
    assert sorted(len(row.token_ids) for piece in cut for row in piece) == sorted(lengths)
    assert all(len(piece) == 1 or len(piece) * max(len(row.token_ids) for row in piece) <= budget for piece in cut)
