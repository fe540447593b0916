"""Who won: the one place that turns raw rewards into wins, draws, losses and forfeits. Pure functions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import StrEnum

SOLVED_REWARD = 1.0


class Outcome(StrEnum):
    """How one player came out of one game."""

    WIN = "win"
    DRAW = "draw"
    LOSS = "loss"


def outcomes(rewards: Sequence[float | None] | None, offender: int | None) -> tuple[Outcome | None, ...]:
    """How each player came out.

    The sole highest reward wins, tied highest rewards draw, the rest lose. When the game was ended by an illegal move,
    its offender loses whatever the environment pays; of the others those with the highest reward win, by `forfeits`.

    Args:
        rewards: raw rewards by player, None for a player without one; None when the game did not reach its end.
        offender: the player whose illegal move ended the game, if one did.

    Returns:
        One outcome per player; None for a player without a reward (or with NaN), for everyone in a single-player game,
        and where nobody else's reward is there to compare with. Empty when `rewards` is None.
    """
    if rewards is None:
        return ()
    if len(rewards) == 1:
        return (None,)
    known = {
        player: reward
        for player, reward in enumerate(rewards)
        if reward is not None and not math.isnan(reward) and player != offender
    }
    if offender is None and len(known) < 2:
        return (None,) * len(rewards)
    best = max(known.values(), default=0.0)
    winners = [player for player, reward in known.items() if reward == best]
    top = Outcome.WIN if len(winners) == 1 or offender is not None else Outcome.DRAW
    found: list[Outcome | None] = [None] * len(rewards)
    for player in known:
        found[player] = top if player in winners else Outcome.LOSS
    if offender is not None:
        found[offender] = Outcome.LOSS
    return tuple(found)


def forfeits(rewards: Sequence[float | None] | None, offender: int | None) -> tuple[bool, ...]:
    """For each player whether it won only because another's illegal move ended the game; such wins count apart."""
    return tuple(offender is not None and outcome is Outcome.WIN for outcome in outcomes(rewards, offender))


def solved(reward: float | None) -> bool:
    """Whether a single-player game was solved: a reward of at least 1."""
    return reward is not None and reward >= SOLVED_REWARD
