"""How models fared, as counts: alone, in a lane, and against each other."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from tasks.contracts import Mode
from tasks.outcomes import Outcome, solved


@dataclass
class Tally:
    """Results of one side; `games` is the sum of the others. A win by another's illegal move is a forfeit win only."""

    games: int = 0
    wins: int = 0
    draws: int = 0
    losses: int = 0
    forfeit_wins: int = 0

    def add(self, outcome: Outcome | None, forfeit: bool) -> None:
        """Count one result; None is no result."""
        if outcome is None:
            return
        self.games += 1
        self.wins += outcome is Outcome.WIN and not forfeit
        self.draws += outcome is Outcome.DRAW
        self.losses += outcome is Outcome.LOSS
        self.forfeit_wins += forfeit


@dataclass
class SinglePlayerTally:
    """Games for one player. `solved` counts those with a reward of 1 or more."""

    games: int = 0
    reward_sum: float = 0.0
    solved: int = 0

    @property
    def mean_reward(self) -> float | None:
        """Mean raw reward; None before the first game."""
        return self.reward_sum / self.games if self.games else None

    def add(self, reward: float | None) -> None:
        """Count one game; one without a finite reward has no result."""
        if reward is None or not math.isfinite(reward):
            return
        self.games += 1
        self.reward_sum += reward
        self.solved += solved(reward)


@dataclass
class ModelResults:
    """One model in one lane. `versus` has a result for each of its players in games with other models."""

    uid: str
    mode: Mode
    versus: Tally = field(default_factory=Tally)
    single_player: SinglePlayerTally = field(default_factory=SinglePlayerTally)
    mirror_games: int = 0


@dataclass
class PairResults:
    """One model against another in one lane, from the first one's side: a result for each two players of a game."""

    uid: str
    against: str
    mode: Mode
    results: Tally = field(default_factory=Tally)
