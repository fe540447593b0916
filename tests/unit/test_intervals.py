"""Wilson's interval: hand-computed, and as published."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.intervals import wilson_interval


@pytest.mark.parametrize(
    ("successes", "trials", "low", "high"),
    [
        # By hand, z² = 3.841459: centre 0.5, half = 1.959964 √(0.025 + 0.00960365) / 1.3841459 = 0.263405.
        (5, 10, 0.236595, 0.763405),
        # By hand: the ends are 0 and z² / (10 + z²).
        (0, 10, 0.0, 0.277535),
        (10, 10, 0.722465, 1.0),
        # Newcombe, "Two-sided confidence intervals for the single proportion", Statistics in Medicine 17 (1998),
        # table I, method 3, four digits.
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0.0, 0.1611),
        (1, 29, 0.0061, 0.1718),
    ],
)
def test_known_intervals(successes: int, trials: int, low: float, high: float) -> None:
    assert wilson_interval(successes, trials) == pytest.approx((low, high), abs=5e-5)


def test_without_a_trial_nothing_is_known() -> None:
    assert wilson_interval(0, 0) == (0.0, 1.0)


def test_a_wider_quantile_is_a_wider_interval() -> None:
    # By hand, z = 1: centre 0.5, half = √(0.25 / 4 + 1 / 64) / 1.25 = 0.223607.
    assert wilson_interval(2, 4, z=1.0) == pytest.approx((0.276393, 0.723607), abs=1e-6)


@pytest.mark.parametrize(("successes", "trials"), [(-1, 3), (4, 3), (1, 0)])
def test_more_than_all_or_less_than_none_is_refused(successes: int, trials: int) -> None:
    message = rf"{successes} successes of {trials} trials; expected 0 <= successes <= trials"
    with pytest.raises(ValueError, match=message):
        wilson_interval(successes, trials)


@given(st.integers(1, 10**9).flatmap(lambda trials: st.tuples(st.integers(0, trials), st.just(trials))))
def test_the_share_is_inside_and_the_mirror_image_mirrored(counts: tuple[int, int]) -> None:
    successes, trials = counts
    low, high = wilson_interval(successes, trials)
    assert 0.0 <= low <= successes / trials <= high <= 1.0
    assert wilson_interval(trials - successes, trials) == pytest.approx((1 - high, 1 - low), abs=1e-9)
