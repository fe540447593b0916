"""Normalised rewards, on numbers worked out by hand; never NaN."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.advantages import Normaliser, by_key, mean_only, z_score


def test_mean_only() -> None:
    assert mean_only([1.0, 0.0, -4.0]) == [2.0, 1.0, -3.0]


def test_z_score() -> None:
    # mean 3, squared distances 4, 0, 4, 0: variance 2
    assert z_score([1.0, 3.0, 5.0, 3.0]) == pytest.approx([-math.sqrt(2), 0.0, math.sqrt(2), 0.0])


@pytest.mark.parametrize("normalise", [mean_only, z_score])
@pytest.mark.parametrize("rewards", [[], [7.0], [0.1, 0.1, 0.1], [0.1 + 0.2, 0.3], [0.0, 0.0]])
def test_nothing_to_compare_gives_zeros(normalise: Normaliser, rewards: list[float]) -> None:
    assert normalise(rewards) == [0.0] * len(rewards)


def test_each_environment_apart() -> None:
    rewards = [1.0, 100.0, 3.0, 300.0, 5.0]
    assert by_key(mean_only, rewards, ["a", "b", "a", "b", "c"]) == [-1.0, -100.0, 1.0, 100.0, 0.0]


@given(st.lists(st.floats(-1e6, 1e6), max_size=30))
def test_z_scores_have_mean_0_and_deviation_1_or_0(rewards: list[float]) -> None:
    scores = z_score(rewards)
    assert len(scores) == len(rewards)
    squares = sum(score * score for score in scores)
    assert abs(sum(scores)) < 1e-6 * max(1, len(scores)) or not any(scores)
    assert squares == 0 or squares / len(scores) == pytest.approx(1)
