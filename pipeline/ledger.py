"""The books of a collection: every submitted game, how it ended, and what the summary and the table say of it."""

from __future__ import annotations

import json
import math
import os
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tasks.contracts import EngineFigures, Episode, GameSpec, Mode, ModelKind, Role, Status
from tasks.outcomes import Outcome, outcomes, solved

SUMMARY_VERSION = 1


@dataclass
class PlayerTally:
    """How one player of an environment fared, over games that reached a result; rewards are the finite ones."""

    wins: int = 0
    draws: int = 0
    losses: int = 0
    forfeit_wins: int = 0
    rewards: int = 0
    reward_sum: float = 0.0


@dataclass
class EnvironmentTally:
    """What was played of one environment in one lane. `solved` counts single-player games with reward of 1 or more."""

    env_id: str
    mode: str
    games: int = 0
    turns: int = 0
    illegal_moves: int = 0
    length_stops: int = 0
    engine_steps: int = 0
    solved: int = 0
    statuses: dict[str, int] = field(default_factory=lambda: {status.value: 0 for status in Status})
    players: list[PlayerTally] = field(default_factory=list)
    policy_wins: int = 0
    policy_results: int = 0

    def add(self, episode: Episode) -> None:
        """Count one ended game."""
        self.games += 1
        self.statuses[episode.status.value] += 1
        self.turns += len(episode.steps)
        self.illegal_moves += sum(step.illegal for step in episode.steps)
        for step in episode.steps:
            by_engine = episode.spec.agents[step.player_id].model.kind is ModelKind.ENGINE
            self.engine_steps += by_engine
            self.length_stops += by_engine and step.choice.finish_reason == "length"
        if episode.status in (Status.COMPLETED, Status.ILLEGAL_MOVE):
            self._add_result(episode)

    def _add_result(self, episode: Episode) -> None:
        rewards = episode.rewards or ()
        while len(self.players) < len(rewards):
            self.players.append(PlayerTally())
        for player, reward in zip(self.players, rewards, strict=False):
            if reward is not None and math.isfinite(reward):
                player.rewards += 1
                player.reward_sum += reward
        if len(rewards) == 1:
            self.solved += solved(rewards[0])
            return
        results = outcomes(episode.rewards, episode.offender) or ()
        roles = {agent.role for agent in episode.spec.agents}
        for player_id, (player, result) in enumerate(zip(self.players, results, strict=False)):
            if result is None:
                continue
            player.wins += result is Outcome.WIN
            player.draws += result is Outcome.DRAW
            player.losses += result is Outcome.LOSS
            player.forfeit_wins += result is Outcome.WIN and episode.offender is not None
            if len(roles) > 1 and episode.spec.agents[player_id].role is Role.ACTOR:
                self.policy_results += 1
                self.policy_wins += result is Outcome.WIN


@dataclass(frozen=True)
class Snapshot:
    """Where a collection stands now, for whoever shows it. `tokens_per_s` is of all engines over the last seconds."""

    stage: str
    seconds: float
    done: dict[Mode, int]
    in_flight: int
    queued: int
    failed: int
    tokens_per_s: float
    eval_wins: int
    eval_results: int
    engines: int


class Ledger:
    """Counts submitted games and their ends; the two add up when the collection is over.

    Args:
        run_id: the run's identity, as in the shards.
    """

    def __init__(self, run_id: str) -> None:
        self.run_id = run_id
        self.started_at = time.time()
        self.finished_at: float | None = None
        self.stopped_by = "running"
        self.submitted: Counter[Mode] = Counter()
        self.statuses: dict[Mode, Counter[Status]] = {mode: Counter() for mode in Mode}
        self.retried_attempts = 0
        self.generated_tokens = 0
        self.first_answer_at: float | None = None
        self.last_answer_at: float | None = None
        self.environments: dict[tuple[str, str], EnvironmentTally] = {}
        self.engines: dict[str, EngineFigures] = {}
        self.buffer: dict[str, Any] = {}
        self.groups: dict[str, int] = {}
        self.learning: dict[str, Any] = {}

    def submit(self, specs: Iterable[GameSpec]) -> None:
        """Games go out for the first time; later attempts are the same game."""
        self.submitted.update(spec.mode for spec in specs)

    def retry(self) -> None:
        """An attempt came to nothing and its game goes out again."""
        self.retried_attempts += 1

    def finish(self, episode: Episode) -> None:
        """A game has its one row."""
        spec = episode.spec
        self.statuses[spec.mode][episode.status] += 1
        self.generated_tokens += sum(
            step.choice.generated_tokens
            for step in episode.steps
            if spec.agents[step.player_id].model.kind is ModelKind.ENGINE
        )
        if episode.steps:
            self.first_answer_at = min(self.first_answer_at or episode.started_at, episode.started_at)
            self.last_answer_at = max(self.last_answer_at or episode.finished_at, episode.finished_at)
        key = (spec.env_id, spec.mode.value)
        self.environments.setdefault(key, EnvironmentTally(spec.env_id, spec.mode.value)).add(episode)

    def done(self, mode: Mode) -> int:
        """Games of the lane that have ended."""
        return sum(self.statuses[mode].values())

    @property
    def failed(self) -> int:
        """Games that ended as `failed`, of both lanes."""
        return sum(counter[Status.FAILED] for counter in self.statuses.values())

    @property
    def tokens_per_s(self) -> float:
        """Generated tokens per second from the first game's start to the last game's end; 0 without an engine."""
        if self.first_answer_at is None or self.last_answer_at is None or self.last_answer_at <= self.first_answer_at:
            return 0.0
        return self.generated_tokens / (self.last_answer_at - self.first_answer_at)

    def summary(self) -> dict[str, Any]:
        """The content of `summary.json`: for each lane `submitted` equals the sum of `statuses`."""
        return {
            "summary_version": SUMMARY_VERSION,
            "run_id": self.run_id,
            "stopped_by": self.stopped_by,
            "started_at": self.started_at,
            "finished_at": self.finished_at,
            "submitted": sum(self.submitted.values()),
            "statuses": {status.value: sum(self.statuses[mode][status] for mode in Mode) for status in Status},
            "lanes": {
                mode.value: {
                    "submitted": self.submitted[mode],
                    "statuses": {status.value: self.statuses[mode][status] for status in Status},
                }
                for mode in Mode
            },
            "retried_attempts": self.retried_attempts,
            "generated_tokens": self.generated_tokens,
            "tokens_per_s": self.tokens_per_s,
            "environments": [asdict(tally) for _, tally in sorted(self.environments.items())],
            "engines": [asdict(figures) for _, figures in sorted(self.engines.items())],
            "buffer": self.buffer,
            "groups": self.groups,
            "learning": self.learning,
        }

    def write(self, path: Path) -> None:
        """Write `summary.json` atomically.

        Raises:
            OSError: the folder cannot be written.
        """
        temporary = path.with_name(f".{path.name}.tmp")
        with temporary.open("w", encoding="utf-8") as file:
            json.dump(self.summary(), file, indent=2)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)


def unplayed(spec: GameSpec, status: Status, reason: str) -> Episode:
    """The episode that stands for a game that nothing came back of."""
    now = time.time()
    return Episode(spec, status, reason=reason, started_at=now, finished_at=now)
