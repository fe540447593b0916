"""What the learner draws from, and when collecting is enough: the buffer protocol and `StepBuffer`."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol, get_args, runtime_checkable

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

    Of the `group_size` games of its group, `group_delivered` gave the player something to learn from.
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


@dataclass(frozen=True)
class BufferStats:
    """What went through a buffer, in steps: `added == size + drawn + evicted + cleared`.

    `skipped` counts steps that were offered but not taken because of how their game ended, `flagged` those of other
    games that have no finite log-probability for each token. `episodes` counts games.
    """

    size: int
    added: int
    drawn: int
    evicted: int
    cleared: int
    skipped: int
    flagged: int
    episodes: int


class StepBuffer:
    """Holds single steps of finished games until they are drawn. Safe to use from several threads.

    When it is full, each new step takes the place of one held, chosen at random. Trajectories of games that were
    `completed` or ended by an `illegal_move` are taken; of `truncated` ones, which paid nothing, with a reward of 0 if
    `truncated` is "keep"; of others never. A player that the environment paid nothing is left out.
    Steps whose log-probabilities are not all finite are left out.
    The same seed and the same calls give the same draws.

    Args:
        capacity: the most steps held.
        stop: when to stop collecting; by default only `stop()` does.
        truncated: what becomes of games ended by the turn cap.
        seed: of evictions and draws.
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
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if capacity < 1:
            raise ConfigError(f"buffer.capacity is {capacity}: expected at least 1 step")
        if truncated not in get_args(TruncatedPolicy):
            raise ConfigError(f"buffer.truncated is {truncated!r}: expected 'drop' or 'keep'")
        self._capacity = capacity
        self._conditions = stop or StopConditions()
        self.accepted = TRAINABLE | {Status.TRUNCATED} if truncated == "keep" else TRAINABLE
        self._rng = random.Random(f"replay buffer {seed}")
        self._clock = clock
        self._lock = threading.RLock()
        self._items: list[TrainingStep] = []
        self._games: set[str] = set()
        self._added = self._drawn = self._evicted = self._cleared = self._skipped = self._flagged = 0
        self._began: float | None = None
        self._stopped = False

    def add_player_trajectory(self, trajectory: Trajectory, env_id: str) -> None:
        """Take the steps of one player, each with the player's final reward; also after collecting has stopped."""
        with self._lock:
            reward = 0.0 if trajectory.status is Status.TRUNCATED else trajectory.final_reward
            if trajectory.status not in self.accepted or reward is None:
                self._skipped += len(trajectory.steps)
                return
            self._games.add(trajectory.game_id)
            for step in trajectory.steps:
                if not step.choice.logprobs_ok:
                    self._flagged += 1
                    continue
                self._put(
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
                    )
                )

    def get_batch(self, n: int) -> list[TrainingStep]:
        """Draw `n` steps at random and remove them: none is drawn twice.

        Raises:
            ConfigError: `n` is below 1, or more than the buffer holds.
        """
        with self._lock:
            if not 1 <= n <= len(self._items):
                raise ConfigError(
                    f"get_batch({n}): expected between 1 and the {len(self._items)} steps in the buffer; "
                    "collect more first, or ask for fewer"
                )
            self._drawn += n
            return [self._take() for _ in range(n)]

    def size(self) -> int:
        """How many steps it holds now."""
        with self._lock:
            return len(self._items)

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
                or (limits.steps is not None and self._added >= limits.steps)
                or (limits.seconds is not None and now - self._began >= limits.seconds)
            )

    def clear(self) -> None:
        """Throw away the steps it holds. The counts go on, and with them the stop conditions."""
        with self._lock:
            self._cleared += len(self._items)
            self._items.clear()

    def stats(self) -> BufferStats:
        """The counts up to now, all of one moment."""
        with self._lock:
            return BufferStats(
                size=len(self._items),
                added=self._added,
                drawn=self._drawn,
                evicted=self._evicted,
                cleared=self._cleared,
                skipped=self._skipped,
                flagged=self._flagged,
                episodes=len(self._games),
            )

    def _put(self, item: TrainingStep) -> None:
        if len(self._items) >= self._capacity:
            self._take()
            self._evicted += 1
        self._items.append(item)
        self._added += 1

    def _take(self) -> TrainingStep:
        """Remove one at random in constant time: the last one moves into its place."""
        index = self._rng.randrange(len(self._items))
        self._items[index], self._items[-1] = self._items[-1], self._items[index]
        return self._items.pop()
