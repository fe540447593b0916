"""The parts of a run from its configuration: tracker, buffer, scheduler, and the report when all has stopped."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from distributed import Client
from rich.console import Console

from pipeline.config import BufferConfig, RunConfig, import_object
from pipeline.env_samplers import make_env_sampler
from pipeline.episode_store import EpisodeStore
from pipeline.game_scheduler import GameScheduler, SchedulerOptions
from pipeline.ledger import Ledger
from pipeline.model_registry import ModelRegistry
from pipeline.model_samplers import make_model_sampler
from pipeline.replay import EpisodeBuffer, ReplayBuffer, StepBuffer, StopConditions, TrajectoryBuffer
from pipeline.report import print_report
from pipeline.rewards import RewardTransforms
from pipeline.staleness import Admission
from pipeline.tracking import BaseTracker, MLflowTracker
from tasks.errors import ConfigError

TABLE_WIDTH = 118
_BUFFERS: dict[str, type[TrajectoryBuffer]] = {"step": StepBuffer, "episode": EpisodeBuffer}


@dataclass
class Books:
    """What the report at the end is made of; nothing is printed without a ledger."""

    ledger: Ledger | None = None
    tracking_uri: str = ""


@contextmanager
def report_at_the_end(run_dir: Path) -> Iterator[Books]:
    """Print the report when everything else has stopped, whatever stopped it."""
    books = Books()
    try:
        yield books
    finally:
        if books.ledger is not None and books.ledger.submitted:
            # A pipe or a log has no width of its own; the table needs this much.
            console = Console() if sys.stdout.isatty() else Console(width=TABLE_WIDTH)
            print_report(books.ledger, run_dir, books.tracking_uri, console)


def make_tracker(config: RunConfig, run_dir: Path, key: str | None = None) -> BaseTracker:
    """The tracker that the configuration names: an MLflow run, in the run's own folder where no server is named.

    Args:
        config: the whole run.
        run_dir: its folder.
        key: what the run is found again by when it is resumed.

    Raises:
        ConfigError: a user's class makes an object that is no tracker.
    """
    tracking = config.tracking
    if tracking.kind != "mlflow":
        tracker = import_object(tracking.kind)(tracking)
        if not isinstance(tracker, BaseTracker):
            raise ConfigError(
                f"tracking.kind is {tracking.kind!r}, whose object is a {type(tracker).__name__}, expected a subclass "
                "of pipeline.tracking.BaseTracker"
            )
        return tracker
    return MLflowTracker(tracking.uri, tracking.experiment, config.name, tracking.window_s, run_dir=run_dir, key=key)


def make_buffer(config: RunConfig) -> ReplayBuffer:
    """The buffer that the configuration names; one of ours with the learner's transformations of rewards.

    Raises:
        ConfigError: a user's class makes an object that is no buffer.
    """
    settings: BufferConfig = config.buffer
    if settings.kind in _BUFFERS:
        stop = StopConditions(settings.stop.episodes, settings.stop.steps, settings.stop.seconds)
        transforms = RewardTransforms() if config.learner is None else config.learner.rewards.transforms()
        kind = _BUFFERS[settings.kind]
        return kind(settings.capacity, stop, settings.truncated, config.seed, transforms=transforms)
    buffer = import_object(settings.kind)(settings)
    if not isinstance(buffer, ReplayBuffer):
        raise ConfigError(
            f"buffer.kind is {settings.kind!r}, whose object has no add_player_trajectory and continue_collection, "
            "which a buffer needs: see pipeline.replay.ReplayBuffer"
        )
    return buffer


def make_scheduler(
    config: RunConfig,
    client: Client,
    tracker: BaseTracker,
    buffer: ReplayBuffer,
    registry: ModelRegistry,
    store: EpisodeStore,
    admission: Admission | None = None,
    run_id: str | None = None,
) -> GameScheduler:
    """The scheduler with the samplers that the configuration names; on-policy nothing is fetched ahead."""
    environments, models, collect = config.environments, config.models, config.collect
    on_policy = admission is not None and config.learner is not None and not config.learner.max_policy_lag
    return GameScheduler(
        config.vllm,
        tracker,
        buffer,
        make_model_sampler(models.sampler, registry, models.opponents, config.seed, models.k),
        make_env_sampler(
            environments.sampler, environments.train, environments.eval, environments.weights, config.seed
        ),
        collect.action_sampler,
        client=client,
        store=store,
        seed=config.seed,
        options=SchedulerOptions(
            prefetch=0.0 if on_policy else collect.prefetch,
            retries=collect.retries,
            max_consecutive_failures=collect.max_consecutive_failures,
            group_size=collect.group_size,
            incomplete_groups=collect.incomplete_groups,
        ),
        admission=admission,
        run_id=run_id,
    )


def slots_of(config: RunConfig) -> int:
    """Games that the cluster must be able to run at once. Local workers also get room for the queued ones."""
    collect = config.collect
    quotas = (collect.num_train_workers, collect.num_eval_workers or 0)
    if config.cluster.kind != "local":
        return sum(quotas)
    return sum(quota + math.ceil(quota * collect.prefetch) for quota in quotas)
