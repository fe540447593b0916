"""A stored game played again: a fresh environment from its spec, the recorded actions, and where they first differ."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tasks.calls import call_with_limit
from tasks.contracts import Episode, Status, Step
from tasks.errors import EnvironmentFault
from tasks.game import Game, GameResult, Move

# After its last move such a game broke, hung or was given up when it was asked for its rewards; it is not asked again.
_BROKEN_OFF = frozenset({Status.FAILED, Status.TIMEOUT, Status.CANCELLED})
REPLAY_LIMIT_S = 300.0  # models answer at once here, so that only the environment's own time is left
_CONTEXT = 30  # characters of a long text shown on either side of the first difference


@dataclass(frozen=True)
class Difference:
    """Where a stored game and its replay part. `step_index` is None for what belongs to the whole game."""

    game_id: str
    step_index: int | None
    field: str
    stored: str
    replayed: str

    def __str__(self) -> str:
        place = f"game {self.game_id}" if self.step_index is None else f"game {self.game_id}, step {self.step_index}"
        return f"{place}, {self.field}: stored {self.stored}, replayed {self.replayed}"


def first_difference(episode: Episode) -> Difference | None:
    """Play `episode` again as far as it has steps, and compare what the environment says.

    A game that reached its end must reach the same one: status, rewards, offender, reason, closing information. Any
    other must not end within its steps, unless it failed on its very last.

    Returns:
        The first difference in the game's order; None where the replay is the stored game.

    Raises:
        EnvironmentHungError: the replay was not over within `REPLAY_LIMIT_S`.
    """
    if not episode.steps:
        return _end_difference(episode, None)  # what could not be made or reset is not made again
    return call_with_limit(lambda: _replay(episode), episode.spec.env_id, REPLAY_LIMIT_S)


def _replay(episode: Episode) -> Difference | None:
    at: int | None = None
    done = False
    try:
        game = Game(episode.spec, episode.spec.seed)
        for step in episode.steps:
            at = step.index
            if done:
                return Difference(episode.spec.game_id, at, "step", "a move", "none: the game is over")
            player_id, observation = game.observe()
            move = game.step(step.choice.action)
            done = move.done
            for field, stored, replayed in _said(step, player_id, observation, move):
                if stored != replayed:
                    return _difference(episode, at, field, stored, replayed)
        at = None
        over = done and episode.status not in _BROKEN_OFF
        return _end_difference(episode, game.close() if over else None)
    except EnvironmentFault as fault:
        return Difference(episode.spec.game_id, at, "environment", "played on", f"{type(fault).__name__}: {fault}")


def _said(step: Step, player_id: int, observation: str, move: Move) -> Iterator[tuple[str, Any, Any]]:
    yield "player_id", step.player_id, player_id
    yield "observation", step.observation, observation
    yield "illegal", step.illegal, move.illegal
    yield "info", step.info, move.info
    yield "reward", step.reward, None  # TextArena pays at the end only


def _end_difference(episode: Episode, result: GameResult | None) -> Difference | None:
    """Compare the ends. `result` is None where the replay has none."""
    pairs: list[tuple[str, Any, Any]] = [("status", episode.status.value, _status(episode, result))]
    if result is None:
        pairs += [("rewards", episode.rewards, None), ("offender", episode.offender, None)]
        pairs += [("player_info", episode.player_info, ())]
    else:
        ends = ("rewards", "offender", "reason", "player_info")
        pairs += [(name, getattr(episode, name), getattr(result, name)) for name in ends]
    for field, stored, replayed in pairs:
        # By their texts too: NaN, a reward like any other, does not equal itself.
        if stored != replayed and repr(stored) != repr(replayed):
            return _difference(episode, None, field, stored, replayed)
    return None


def _status(episode: Episode, result: GameResult | None) -> str:
    """The status that the replay shows; as stored where the reason lay outside the environment."""
    if result is not None:
        return (Status.COMPLETED if result.offender is None else Status.ILLEGAL_MOVE).value
    if episode.status not in (Status.COMPLETED, Status.ILLEGAL_MOVE, Status.TRUNCATED):
        return episode.status.value
    capped = episode.spec.max_turns is not None and len(episode.steps) >= episode.spec.max_turns
    return Status.TRUNCATED.value if capped else "a game that is not over"


def _difference(episode: Episode, at: int | None, field: str, stored: Any, replayed: Any) -> Difference:
    one, other = excerpts(stored, replayed)
    return Difference(episode.spec.game_id, at, field, one, other)


def excerpts(stored: Any, replayed: Any) -> tuple[str, str]:
    """Both values for a message; of long texts the part around the first character that differs."""
    if not (isinstance(stored, str) and isinstance(replayed, str)) or max(len(stored), len(replayed)) <= 4 * _CONTEXT:
        return repr(stored), repr(replayed)
    pairs = zip(stored, replayed, strict=False)
    first = next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(stored), len(replayed)))
    part = slice(max(0, first - _CONTEXT), first + _CONTEXT)
    place = f" (from character {part.start})" if part.start else ""
    return f"{stored[part]!r}{place}", f"{replayed[part]!r}{place}"
