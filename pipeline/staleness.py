"""How far the policy that generated a step may be behind the one that learns from it: the one owner of that question.

The lag of a step is the policy's version when a learning step uses it, less the version that generated it. Games are
only begun while what they yield can still be used at `max_policy_lag` or less; what is too old anyway, because a game
took long or yielded more than expected, is to be thrown out (`too_old`) and counted (`dropped`).
"""

from __future__ import annotations

import math
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

from tasks.contracts import Episode, GameSpec, Mode, Role
from tasks.errors import ConfigError

_DECAY = 0.95


class Admission(Protocol):
    """What a scheduler asks before it begins training games, and tells of them."""

    def room(self) -> int:
        """How many training games may begin now."""

    def started(self, specs: Iterable[GameSpec]) -> None:
        """These games go out for the first time."""

    def ended(self, episode: Episode) -> None:
        """A game has its end, before the buffer hears of it."""


class Staleness:
    """The books on lag. Safe to use from several threads.

    With batches of B steps and a lag of at most L, at most (L + 1) B steps may be under way from the current version
    on: in training, held by the buffer, or expected of games in flight. The next B of them are learned from at the
    current version, the B after that one version later, and the last B at lag L. (The capacity of Fu et al., "AReaL: A
    Large-Scale Asynchronous Reinforcement Learning System for Language Reasoning" (2025), arXiv 2505.24298, section
    5.1, in steps instead of trajectories.) With L = 0 that is synchronous on-policy training: while a batch is trained
    nothing begins, and what a round yields beyond its batch is dropped.

    A game is expected to yield the running mean of the games before it, and one step before the first has ended.

    Args:
        max_policy_lag: L.
        batch_steps: B.
        buffered: how many steps the buffer holds.

    Raises:
        ConfigError: a number is out of range.
    """

    def __init__(self, max_policy_lag: int, batch_steps: int, buffered: Callable[[], int]) -> None:
        if max_policy_lag < 0:
            raise ConfigError(f"learner.max_policy_lag is {max_policy_lag}: expected 0 (on-policy) or more versions")
        if batch_steps < 1:
            raise ConfigError(f"learner.batch_steps is {batch_steps}: expected at least 1 step")
        self.max_policy_lag = max_policy_lag
        self.version = 0
        self.dropped = 0
        self.lags: Counter[int] = Counter()
        self._batch_steps = batch_steps
        self._buffered = buffered
        self._lock = threading.RLock()
        self._in_training = 0
        self._in_flight: Counter[int] = Counter()
        self._yield: float | None = None

    def room(self) -> int:
        """How many training games may begin now."""
        with self._lock:
            per_game = max(self._yield or 1.0, 1e-3)
            # While a batch is in training, the earliest use of anything else is one version later.
            earliest = self.version + (self._in_training > 0)
            useful = sum(n for version, n in self._in_flight.items() if earliest - version <= self.max_policy_lag)
            under_way = self._in_training + self._buffered() + useful * per_game
            lacking = (self.max_policy_lag + 1) * self._batch_steps - under_way
            return max(0, math.ceil(lacking / per_game))

    def started(self, specs: Iterable[GameSpec]) -> None:
        """Training games go out, each at the version of its learning players."""
        with self._lock:
            self._in_flight.update(_version(spec) for spec in specs if spec.mode is Mode.TRAIN)

    def ended(self, episode: Episode) -> None:
        """A training game has ended; its steps, however it ended, are what the next ones are expected to yield."""
        spec = episode.spec
        if spec.mode is not Mode.TRAIN:
            return
        with self._lock:
            self._in_flight[_version(spec)] -= 1
            self._in_flight += Counter()  # forgets versions that no game is at
            actors = {agent.player_id for agent in spec.agents if agent.role is Role.ACTOR}
            steps = float(sum(step.player_id in actors for step in episode.steps))
            self._yield = steps if self._yield is None else _DECAY * self._yield + (1 - _DECAY) * steps

    def too_old(self, version: int) -> bool:
        """Whether a step of this version is past use."""
        with self._lock:
            return self.version - version > self.max_policy_lag

    def drop(self, steps: int) -> None:
        """Count steps that were thrown out for their age."""
        with self._lock:
            self.dropped += steps

    def training(self, versions: Iterable[int]) -> list[int]:
        """A batch of steps of these versions goes into training; returns their lags."""
        with self._lock:
            lags = [self.version - version for version in versions]
            self._in_training = len(lags)
            self.lags.update(lags)
            return lags

    def trained(self, version: int) -> None:
        """The batch is done with, and the policy is at `version` from now on."""
        with self._lock:
            self._in_training = 0
            self.version = version

    def state(self) -> dict[str, Any]:
        """The books for a checkpoint. Games in flight are none of it: they end with the driver."""
        with self._lock:
            return {"version": self.version, "dropped": self.dropped, "lags": dict(self.lags), "yield": self._yield}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state` returned."""
        with self._lock:
            self.version, self.dropped, self._yield = state["version"], state["dropped"], state["yield"]
            self.lags = Counter(state["lags"])


def _version(spec: GameSpec) -> int:
    """The version that a game's learning players are bound to."""
    return next((agent.model.policy_version or 0 for agent in spec.agents if agent.role is Role.ACTOR), 0)
