"""Shares of wall time, on a clock that the test turns."""

from __future__ import annotations

import pytest

from pipeline.time_shares import TimeShares


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_each_part_of_the_learning_thread_has_its_share() -> None:
    clock = Clock()
    times = TimeShares(clock)
    clock.now = 2.0  # the start
    for phase, seconds in (("waiting", 3.0), ("learning", 4.0), ("publishing", 1.0)):
        with times.phase(phase):  # type: ignore[arg-type]
            clock.now += seconds
    assert times.shares() == pytest.approx(
        {"waiting": 0.3, "learning": 0.4, "publishing": 0.1, "collecting": 0.0, "engines_idle": 0.0}
    )


def test_a_part_that_ends_in_an_error_is_counted() -> None:
    clock = Clock()
    times = TimeShares(clock)
    with pytest.raises(ValueError, match="broken"), times.phase("learning"):
        clock.now = 5.0
        raise ValueError("broken")
    assert times.shares()["learning"] == 1.0


def test_samples_tell_collecting_from_engines_that_wait() -> None:
    clock = Clock()
    times = TimeShares(clock)
    for in_flight, engines in ((0, 0), (4, 1), (4, 1), (0, 1)):
        clock.now += 1.0
        times.sample(in_flight, engines)
    assert times.shares()["collecting"] == 0.5
    assert times.shares()["engines_idle"] == 0.25


def test_before_any_time_has_passed_all_shares_are_nothing() -> None:
    assert set(TimeShares(Clock()).shares().values()) == {0.0}
