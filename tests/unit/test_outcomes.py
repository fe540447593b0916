"""Wins, draws, losses and forfeits on small tables worked out by hand."""

from __future__ import annotations

import math

import pytest

from tasks.outcomes import Outcome, forfeits, outcomes, solved

W, D, L = Outcome.WIN, Outcome.DRAW, Outcome.LOSS


@pytest.mark.parametrize(
    ("rewards", "expected"),
    [
        ((1.0, -1.0), (W, L)),
        ((-1.0, 1.0), (L, W)),
        ((0.0, 0.0), (D, D)),
        ((0.2, 0.1, 0.2), (D, L, D)),
        ((-3.0, -1.0, -2.0), (L, W, L)),
        ((1.0, None, -1.0), (W, None, L)),
        ((1.0, None), (None, None)),
        ((None, None), (None, None)),
        ((math.nan, 1.0, 0.0), (None, W, L)),
        ((math.inf, 1.0), (W, L)),
        ((1.0,), (None,)),
        (None, ()),
    ],
)
def test_the_sole_highest_reward_wins_and_tied_highest_draw(
    rewards: tuple[float | None, ...] | None, expected: tuple[Outcome | None, ...]
) -> None:
    assert outcomes(rewards, offender=None) == expected
    assert not any(forfeits(rewards, offender=None))


@pytest.mark.parametrize(
    ("rewards", "offender", "expected", "by_forfeit"),
    [
        ((-1.0, 1.0), 0, (L, W), (False, True)),
        # The offender loses whatever the environment pays.
        ((1.0, -1.0), 0, (L, W), (False, True)),
        ((0.0, 0.0), 1, (W, L), (True, False)),
        # Three players: the others win together, but who was out before stays beaten.
        ((-1.0, 1.0, 1.0), 0, (L, W, W), (False, True, True)),
        ((-1.0, -1.0, 1.0), 1, (L, L, W), (False, False, True)),
        # No number to go by.
        ((None, None), 0, (L, None), (False, False)),
        # Single-player games know no wins and no losses.
        ((-1.0,), 0, (None,), (False,)),
    ],
)
def test_a_game_ended_by_an_illegal_move(
    rewards: tuple[float | None, ...],
    offender: int,
    expected: tuple[Outcome | None, ...],
    by_forfeit: tuple[bool, ...],
) -> None:
    assert outcomes(rewards, offender) == expected
    assert forfeits(rewards, offender) == by_forfeit


def test_solved_is_a_reward_of_at_least_one() -> None:
    assert [solved(reward) for reward in (1.0, 1.5, 0.99, -1.0, None, math.nan)] == [
        True,
        True,
        False,
        False,
        False,
        False,
    ]
