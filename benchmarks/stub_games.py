"""Kuhn Poker on the canned engine: through the whole pipeline on a local cluster, or in one process without Dask."""

from __future__ import annotations

import asyncio
import math
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from distributed import Client

from benchmarks.measure import Mark, take_mark
from benchmarks.stub_engine import CannedEngine
from pipeline.cluster import connect
from pipeline.config import ClusterConfig, TrainEnvSpec, VLLMConfig
from pipeline.env_samplers import UniformEnvSampler
from pipeline.episode_store import EpisodeStore
from pipeline.game_scheduler import GameScheduler, SchedulerOptions
from pipeline.game_specs import SpecBuilder
from pipeline.model_registry import ModelRegistry
from pipeline.model_samplers import MirrorSampler
from pipeline.replay import StepBuffer
from pipeline.tracking import MLflowTracker
from tasks.contracts import EngineFigures, Episode, Trajectory
from tasks.play import play_game

KUHN = TrainEnvSpec(env_id="KuhnPoker-v0-train", num_players=2)
PREFETCH = 0.25
BUFFER_STEPS = 10_000

Due = Callable[[float, int, int], bool]
"""Whether a mark is due, given the seconds since the first game came in, and the games and turns so far."""


def vllm_config(in_flight: int, latency_s: float, by_process: Mapping[str, float] | None = None) -> VLLMConfig:
    """The canned engine as a configuration."""
    return VLLMConfig(
        model_name="canned",
        engine="benchmarks.stub_engine:CannedEngine",
        engine_args={"latency_s": latency_s, "latency_by_process": dict(by_process or {})},
        max_parallel_seq=in_flight,
    )


class Window:
    """Follows a collection and takes a mark when each of `dues` comes true, in turn; `closed` after the last."""

    def __init__(self, dues: list[Due]) -> None:
        self._dues = dues
        self.marks: list[Mark] = []
        self.games = 0
        self.turns = 0
        self.first_at: float | None = None
        self.by_worker: list[Counter[str]] = [Counter()]

    @property
    def closed(self) -> bool:
        """Whether all marks were taken."""
        return len(self.marks) == len(self._dues)

    def add(self, episode: Episode) -> None:
        """One game has come in."""
        if self.first_at is None:
            self.first_at = time.monotonic()
        self.games += 1
        self.turns += len(episode.steps)
        self.by_worker[-1][episode.worker] += 1

    def look(self) -> None:
        """Take the mark that is due, if one is."""
        if self.first_at is None or self.closed:
            return
        if self._dues[len(self.marks)](time.monotonic() - self.first_at, self.games, self.turns):
            self.marks.append(take_mark(self.games, self.turns))
            self.by_worker.append(Counter())


def after_seconds(seconds: float) -> Due:
    """Due so long after the first game."""
    return lambda at, games, turns: at >= seconds


def after_games(count: int) -> Due:
    """Due with that game."""
    return lambda at, games, turns: games >= count


def after_turns(count: int) -> Due:
    """Due with the game that has that turn."""
    return lambda at, games, turns: turns >= count


def timed(warm_up_s: float, seconds: float) -> Window:
    """A window that opens after `warm_up_s` and closes `seconds` later."""
    return Window([after_seconds(warm_up_s), after_seconds(warm_up_s + seconds)])


class KeptGames(Window):
    """Keeps the episodes themselves, too: `episodes[n]` came in after n marks."""

    def __init__(self, dues: list[Due]) -> None:
        super().__init__(dues)
        self.episodes: list[list[Episode]] = [[] for _ in range(len(dues) + 1)]

    def add(self, episode: Episode) -> None:
        """One game has come in."""
        self.episodes[len(self.marks)].append(episode)
        super().add(episode)


class _WatchedTracker(MLflowTracker):
    """MLflow itself, which also tells a window of every game and keeps the engines' reports while it is open."""

    def __init__(self, run_dir: Path, window: Window) -> None:
        super().__init__(None, "benchmarks", "orchestration", run_dir=run_dir)
        self._window = window
        self.reports: list[tuple[float, EngineFigures]] = []

    def log_episode(self, episode: Episode) -> None:
        """Tell the window, then MLflow."""
        self._window.add(episode)
        super().log_episode(episode)

    def log_engine(self, figures: EngineFigures) -> None:
        """Keep the figures while the window is open, then tell MLflow."""
        if self._window.marks and not self._window.closed:
            self.reports.append((time.monotonic(), figures))
        super().log_engine(figures)


class _WindowBuffer:
    """A step buffer that ends the collection when the window closes."""

    def __init__(self, window: Window) -> None:
        self._window = window
        self._steps = StepBuffer(BUFFER_STEPS)

    def add_player_trajectory(self, trajectory: Trajectory, env_id: str) -> None:
        """Hold the steps, as a run does."""
        self._steps.add_player_trajectory(trajectory, env_id)

    def continue_collection(self) -> bool:
        """Whether the window is still open."""
        self._window.look()
        return not self._window.closed


@dataclass(frozen=True)
class Collection:
    """What a collection left: its engines' reports within the window with their times, and the first game's wait."""

    reports: list[tuple[float, EngineFigures]]
    first_game_s: float


@contextmanager
def local_cluster(in_flight: int, workers: int = 1) -> Iterator[Client]:
    """A cluster as a run starts it, with room for the queued games."""
    slots = in_flight + math.ceil(in_flight * PREFETCH)
    with connect(ClusterConfig(kind="local", workers=workers), slots=slots, engine=True) as client:
        yield client


def collect(
    client: Client,
    vllm: VLLMConfig,
    in_flight: int,
    window: Window,
    *,
    env: TrainEnvSpec = KUHN,
    shards: bool = True,
    registry: ModelRegistry | None = None,
) -> Collection:
    """Play with MLflow on, and shards unless told otherwise, in a folder that goes away, until the window is closed.

    The policy is the one of the registry, by default version 0.
    """
    with ExitStack() as stack:
        run_dir = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="benchmark-")))
        tracker = stack.enter_context(_tracker(run_dir, window))
        scheduler = GameScheduler(
            vllm,
            tracker,
            _WindowBuffer(window),
            MirrorSampler(registry or ModelRegistry(vllm.policy())),
            UniformEnvSampler([env]),
            client=client,
            store=stack.enter_context(EpisodeStore(run_dir)) if shards else None,
            options=SchedulerOptions(prefetch=PREFETCH),
        )
        began = time.monotonic()
        scheduler.collect(in_flight)
    first_at = window.first_at or math.inf
    return Collection(tracker.reports, first_at - began)


def _tracker(run_dir: Path, window: Window) -> _WatchedTracker:
    """MLflow with its store made, so that no window sees that."""
    tracker = _WatchedTracker(run_dir, window)
    while tracker.run_id is None:
        time.sleep(0.1)
    return tracker


def play_without_dask(vllm: VLLMConfig, in_flight: int, window: Window) -> None:
    """The same games on the same engine on one event loop; nothing is stored or reported."""
    samplers = UniformEnvSampler([KUHN]), MirrorSampler(ModelRegistry(vllm.policy()))
    specs = SpecBuilder("benchmark", vllm, *samplers, "default", seed=0)
    asyncio.run(_play_on(specs, CannedEngine(vllm.engine_spec(0)), in_flight, window))


async def _play_on(specs: SpecBuilder, engine: Any, in_flight: int, window: Window) -> None:
    async def player() -> None:
        while not window.closed:
            episode = await play_game(specs.train(), engine)
            window.add(episode)
            window.look()

    await asyncio.gather(*(player() for _ in range(in_flight)))
