"""Placement is policy without Dask: shares add up, ties are random, nobody idles."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.placement import Balancer, split_quotas
from tasks.contracts import Mode


def balancer(train: int, evaluation: int = 0, prefetch: float = 0.25) -> Balancer:
    return Balancer({Mode.TRAIN: train, Mode.EVAL: evaluation}, prefetch, random.Random(0))


@given(
    st.integers(0, 40),
    st.integers(0, 10),
    st.dictionaries(st.sampled_from("abcde"), st.integers(1, 20), min_size=1),
)
def test_shares_add_up_to_the_quota_or_to_all_the_capacity(
    train: int, evaluation: int, capacity: dict[str, int]
) -> None:
    shares = split_quotas({Mode.TRAIN: train, Mode.EVAL: evaluation}, capacity)
    assert sum(sum(share.values()) for share in shares.values()) == min(train + evaluation, sum(capacity.values()))
    left_for_training = min(train, 1)
    assert sum(share[Mode.EVAL] for share in shares.values()) == min(
        evaluation, sum(capacity.values()) - left_for_training
    )
    assert all(sum(shares[engine].values()) <= capacity[engine] for engine in capacity)


def test_equal_engines_get_equal_shares_of_each_lane() -> None:
    shares = split_quotas({Mode.TRAIN: 9, Mode.EVAL: 2}, {"a": 99, "b": 99})
    assert sorted(share[Mode.TRAIN] for share in shares.values()) == [4, 5]
    assert [share[Mode.EVAL] for share in shares.values()] == [1, 1]


def test_games_go_where_the_fewest_are() -> None:
    book = balancer(8)
    book.add_engine("a", 16)
    book.add_engine("b", 16)
    placed = [book.place(Mode.TRAIN) for _ in range(8)]
    assert placed.count("a") == placed.count("b") == 4
    for engine in ("a", "a", "b"):
        book.finished(engine, Mode.TRAIN)
    assert book.place(Mode.TRAIN) == "a"


def test_ties_are_settled_at_random() -> None:
    def first_engine(seed: int) -> str:
        book = Balancer({Mode.TRAIN: 2}, 0.0, random.Random(seed))
        book.add_engine("a", 4)
        book.add_engine("b", 4)
        return book.place(Mode.TRAIN)

    assert {first_engine(seed) for seed in range(20)} == {"a", "b"}


def test_prefetched_games_are_not_in_flight() -> None:
    book = balancer(8, prefetch=0.25)
    book.add_engine("a", 16)
    assert book.room(Mode.TRAIN) == 10
    for _ in range(10):
        book.place(Mode.TRAIN)
    assert book.room(Mode.TRAIN) == 0
    assert book.outstanding(Mode.TRAIN) == 10
    assert book.in_flight() == 8


def test_an_engine_that_left_gives_its_share_to_the_others() -> None:
    book = balancer(8, evaluation=2)
    book.add_engine("a", 16)
    book.add_engine("b", 16)
    assert book.remove_engine("a")
    assert book.engines["b"].share == {Mode.TRAIN: 8, Mode.EVAL: 2}
    assert not book.remove_engine("a")
    book.finished("a", Mode.TRAIN)
    assert book.outstanding(Mode.TRAIN) == 0


def test_evaluation_leaves_training_a_place_when_workers_were_lost() -> None:
    assert split_quotas({Mode.TRAIN: 8, Mode.EVAL: 8}, {"a": 8}) == {"a": {Mode.TRAIN: 1, Mode.EVAL: 7}}


@pytest.mark.parametrize("capacity", [1, 4])
def test_an_engine_that_joins_late_does_not_strand_the_games_of_another(capacity: int) -> None:
    book = balancer(1, evaluation=1)
    book.add_engine("early", capacity)
    for lane in Mode:
        for _ in range(book.room(lane)):
            book.place(lane)
    book.add_engine("late", capacity)
    early = book.engines["early"]
    assert all(early.share[lane] for lane in Mode if early.outstanding[lane])
    assert [sum(slots.share[lane] for slots in book.engines.values()) for lane in Mode] == [1, 1]


def test_games_stranded_without_a_share_get_one_when_another_engine_runs_out() -> None:
    book = balancer(1)
    book.add_engine("a", 4)
    for _ in range(book.room(Mode.TRAIN)):
        book.place(Mode.TRAIN)
    book.pause_engine("a")
    book.add_engine("b", 4)
    book.engines["b"].outstanding[Mode.TRAIN] = 1
    book.add_engine("a", 4)
    assert book.engines["b"].share[Mode.TRAIN] == 0
    assert not book.finished("a", Mode.TRAIN)
    assert book.finished("a", Mode.TRAIN)
    assert book.engines["b"].share[Mode.TRAIN] == 1


def test_a_paused_engine_keeps_its_count_until_its_games_have_ended() -> None:
    book = balancer(4, prefetch=0.0)
    book.add_engine("a", 8)
    book.place(Mode.TRAIN)
    assert book.pause_engine("a")
    assert not book.pause_engine("a")
    assert book.room(Mode.TRAIN) == 0
    book.add_engine("a", 8)
    assert book.outstanding(Mode.TRAIN) == 1
    book.finished("a", Mode.TRAIN)
    assert book.outstanding(Mode.TRAIN) == 0
    assert book.room(Mode.TRAIN) == 4


def test_without_engines_there_is_no_room() -> None:
    book = balancer(8)
    assert book.room(Mode.TRAIN) == 0
    with pytest.raises(LookupError, match="no engine has a share of the train lane"):
        book.place(Mode.TRAIN)
