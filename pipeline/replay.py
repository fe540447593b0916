"""What the learner draws from, and when collecting is enough: the buffer protocol, `StepBuffer`, `EpisodeBuffer`."""

from __future__ import annotations

import math
import random
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol, get_args, runtime_checkable

from pipeline.rewards import RewardTransforms
from tasks.contracts import AgentSpec, Status, Step, Trajectory
from tasks.errors import ConfigError

TruncatedPolicy = Literal["drop", "keep"]
TRAINABLE = frozenset({Status.COMPLETED, Status.ILLEGAL_MOVE})


@runtime_checkable
class ReplayBuffer(Protocol):
    """What `GameScheduler` needs of a buffer; a user's own needs no more than this.

    One that does not take games of every status it is shown (`completed`, `illegal_move`, `truncated`) may have an
    attribute `accepted`, a frozenset of those it takes; a group's games are counted by it.
    """

    def add_player_trajectory(self, trajectory: Trajectory, env_id: str) -> None:
        """Take what one learning player did in one training game, and what it earned."""

    def continue_collection(self) -> bool:
        """Whether more games should be started; asked again and again while collecting."""


@dataclass(frozen=True)
class StopConditions:
    """When a buffer has seen enough; the first one reached stops it, None never does.

    `episodes` counts training games that gave the buffer a trajectory, `steps` the steps added, `seconds` the time
    since collecting began.

    Raises:
        ConfigError: a condition is not above 0.
    """

    episodes: int | None = None
    steps: int | None = None
    seconds: float | None = None

    def __post_init__(self) -> None:
        for name in ("episodes", "steps", "seconds"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ConfigError(f"buffer.stop.{name} is {value}: expected a number above 0, or null for no limit")


@dataclass(frozen=True)
class TrainingStep:
    """One decision to learn from, with what its game says about it. `reward` is the player's final reward.

    `transformed` is the reward that the learner sees (`pipeline.rewards`). Of the `group_size` games of its group,
    `group_delivered` gave the player something to learn from.
    """

    step: Step
    reward: float
    agent: AgentSpec
    env_id: str
    game_id: str
    group_id: str
    status: Status
    group_size: int = 1
    group_delivered: int = 1
    transformed: float = 0.0

    @property
    def version(self) -> int:
        """The policy version that decided; 0 for what is no version of the policy."""
        return self.agent.model.policy_version or 0


@dataclass(frozen=True)
class BufferStats:
    """What went through a buffer, in steps: `added == size + drawn + evicted + cleared + discarded`.

    `skipped` counts steps that were offered but not taken because of how their game ended, `flagged` those of other
    games that have no finite log-probability for each token; `discarded` those that were held and became too old.
    `episodes` counts games.
    """

    size: int
    added: int
    drawn: int
    evicted: int
    cleared: int
    skipped: int
    flagged: int
    episodes: int
    discarded: int = 0


class TrajectoryBuffer(ABC):
    """Holds steps of finished games, in units that are drawn, thrown out and kept together. Safe in several threads.

    When it is full, what comes takes the place of units chosen at random. Trajectories of games that were `completed`
    or ended by an `illegal_move` are taken; of `truncated` ones, which paid nothing, with a reward of 0 if `truncated`
    is "keep"; of others never. A player that the environment paid nothing, or no finite number, is left out.
    Steps whose log-probabilities are not all finite are left out.
    The same seed and the same calls give the same draws.

    Args:
        capacity: the most steps held.
        stop: when to stop collecting; by default only `stop()` does.
        truncated: what becomes of games ended by the turn cap.
        seed: of evictions and draws.
        transforms: what rewards become on their way to the learner; by default they stay as they are.
        clock: gives the time in seconds.

    Raises:
        ConfigError: `capacity` is below 1, or `truncated` is no such policy.
    """

    def __init__(
        self,
        capacity: int = 100_000,
        stop: StopConditions | None = None,
        truncated: TruncatedPolicy = "drop",
        seed: int = 0,
        *,
        transforms: RewardTransforms | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if capacity < 1:
            raise ConfigError(f"buffer.capacity is {capacity}: expected at least 1 step")
        if truncated not in get_args(TruncatedPolicy):
            raise ConfigError(f"buffer.truncated is {truncated!r}: expected 'drop' or 'keep'")
        self._capacity = capacity
        self._conditions = stop or StopConditions()
        self.accepted = TRAINABLE | {Status.TRUNCATED} if truncated == "keep" else TRAINABLE
        self.transforms = transforms or RewardTransforms()
        self._rng = random.Random(f"replay buffer {seed}")
        self._clock = clock
        self._lock = threading.RLock()
        self._units: list[list[TrainingStep]] = []
        self._games: set[str] = set()
        self._counts = dict.fromkeys(("added", "drawn", "evicted", "cleared", "skipped", "flagged", "discarded"), 0)
        self._size = 0
        self._began: float | None = None
        self._stopped = False

    @abstractmethod
    def _put(self, steps: list[TrainingStep]) -> None:
        """Hold the steps of one trajectory, of which there is at least one."""

    def add_player_trajectory(self, trajectory: Trajectory, env_id: str) -> None:
        """Take the steps of one player, each with the player's final reward; also after collecting has stopped."""
        with self._lock:
            reward = 0.0 if trajectory.status is Status.TRUNCATED else trajectory.final_reward
            if trajectory.status not in self.accepted or reward is None or not math.isfinite(reward):
                self._counts["skipped"] += len(trajectory.steps)
                return
            self._games.add(trajectory.game_id)
            usable = [step for step in trajectory.steps if step.choice.logprobs_ok]
            self._counts["flagged"] += len(trajectory.steps) - len(usable)
            worth = self.transforms.of_trajectory(reward, env_id, trajectory.agent.player_id)
            if usable:
                self._put(
                    [
                        TrainingStep(
                            step=step,
                            reward=reward,
                            agent=trajectory.agent,
                            env_id=env_id,
                            game_id=trajectory.game_id,
                            group_id=trajectory.group_id,
                            status=trajectory.status,
                            group_size=trajectory.group_size,
                            group_delivered=trajectory.group_delivered,
                            transformed=self.transforms.of_step(worth, step),
                        )
                        for step in usable
                    ]
                )

    def get_batch(self, n: int, *, oldest_first: bool = False) -> list[TrainingStep]:
        """Draw units at random until they have `n` steps, and remove them: none is drawn twice.

        Args:
            n: how many steps; more come where the last unit has more.
            oldest_first: draw those of older policy versions before others, at random among equals.

        Raises:
            ConfigError: `n` is below 1, or more than the buffer holds.
        """
        with self._lock:
            if not 1 <= n <= self._size:
                raise ConfigError(
                    f"get_batch({n}): expected between 1 and the {self._size} steps in the buffer; "
                    "collect more first, or ask for fewer"
                )
            if oldest_first:
                self._rng.shuffle(self._units)
                self._units.sort(key=lambda unit: unit[0].version, reverse=True)
            drawn: list[TrainingStep] = []
            while len(drawn) < n:
                drawn += self._take(len(self._units) - 1 if oldest_first else self._rng.randrange(len(self._units)))
            self._counts["drawn"] += len(drawn)
            worth = self.transforms.of_batch([item.transformed for item in drawn], [item.env_id for item in drawn])
            return [replace(item, transformed=value) for item, value in zip(drawn, worth, strict=True)]

    def discard(self, unwanted: Callable[[TrainingStep], bool]) -> int:
        """Throw out every unit with a step that is `unwanted`; returns how many steps that were."""
        with self._lock:
            before = self._size
            for index in reversed(range(len(self._units))):
                if any(map(unwanted, self._units[index])):
                    self._take(index)
            self._counts["discarded"] += before - self._size
            return before - self._size

    def size(self) -> int:
        """How many steps it holds now."""
        with self._lock:
            return self._size

    def stop(self) -> None:
        """End collecting, whatever the conditions say."""
        with self._lock:
            self._stopped = True

    def continue_collection(self) -> bool:
        """Whether neither `stop()` nor a stop condition has ended collecting. The first call starts the clock."""
        with self._lock:
            now = self._clock()
            if self._began is None:
                self._began = now
            limits = self._conditions
            return not (
                self._stopped
                or (limits.episodes is not None and len(self._games) >= limits.episodes)
                or (limits.steps is not None and self._counts["added"] >= limits.steps)
                or (limits.seconds is not None and now - self._began >= limits.seconds)
            )

    def clear(self) -> None:
        """Throw away the steps it holds. The counts go on, and with them the stop conditions."""
        with self._lock:
            self._counts["cleared"] += self._size
            self._units.clear()
            self._size = 0

    def stats(self) -> BufferStats:
        """The counts up to now, all of one moment."""
        with self._lock:
            return BufferStats(size=self._size, episodes=len(self._games), **self._counts)

    def state(self) -> dict[str, Any]:
        """All it holds and has counted, for a checkpoint; values that pickle."""
        with self._lock:
            return {
                "units": [list(unit) for unit in self._units],
                "games": set(self._games),
                "counts": dict(self._counts),
                "rng": self._rng.getstate(),
                "transforms": self.transforms.state(),
            }

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from what `state` returned; the clock of `stop.seconds` starts anew.

        Raises:
            ConfigError: it is of a buffer with other reward transformations.
        """
        with self._lock:
            self.transforms.restore(state["transforms"])
            self._units = [list(unit) for unit in state["units"]]
            self._size = sum(map(len, self._units))
            self._games = set(state["games"])
            self._counts = dict(state["counts"])
            self._rng.setstate(state["rng"])

    def _hold(self, unit: list[TrainingStep]) -> None:
        while self._units and self._size + len(unit) > self._capacity:
            self._counts["evicted"] += len(self._take(self._rng.randrange(len(self._units))))
        self._units.append(unit)
        self._size += len(unit)
        self._counts["added"] += len(unit)

    def _take(self, index: int) -> list[TrainingStep]:
        """Remove one unit in constant time: the last one moves into its place."""
        self._units[index], self._units[-1] = self._units[-1], self._units[index]
        unit = self._units.pop()
        self._size -= len(unit)
        return unit


class StepBuffer(TrajectoryBuffer):
    """Draws single steps: a batch mixes many games."""

    def _put(self, steps: list[TrainingStep]) -> None:
        for step in steps:
            self._hold([step])


class EpisodeBuffer(TrajectoryBuffer):
    """Draws whole episodes, with the steps of all their learning players in the order they were taken.

    A batch has at least as many steps as were asked for. An episode longer than `capacity` is held alone.
    """

    def _put(self, steps: list[TrainingStep]) -> None:
        # The trajectories of one game arrive one after the other.
        if self._units and self._units[-1][0].game_id == steps[0].game_id:
            held = self._take(len(self._units) - 1)
            self._counts["added"] -= len(held)
            steps = sorted([*held, *steps], key=lambda item: item.step.index)
        self._hold(steps)
