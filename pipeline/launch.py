"""A run from its configuration: puts the parts together, plays, and leaves a folder that explains itself.

`RUN/` holds `config.yaml` (resolved), `replay/` (shards), `registry.json`, `summary.json`, `README.md` (the dataset's
card), and `mlflow.db` unless a tracking server is named.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from distributed import Client
from rich.console import Console

from pipeline.cluster import connect
from pipeline.config import BufferConfig, RunConfig, dump, import_object
from pipeline.dataset_card import write_card
from pipeline.env_samplers import make_env_sampler
from pipeline.environments import check_environments_of
from pipeline.episode_store import EpisodeStore
from pipeline.game_scheduler import GameScheduler, SchedulerOptions
from pipeline.ledger import Ledger
from pipeline.model_registry import ModelRegistry
from pipeline.model_samplers import make_model_sampler
from pipeline.progress import Progress
from pipeline.replay import ReplayBuffer, StepBuffer, StopConditions
from pipeline.report import print_report
from pipeline.tracking import BaseTracker, MLflowTracker
from tasks.errors import ConfigError
from tasks.models import resolve_model

TABLE_WIDTH = 118


def run_collect(config: RunConfig, run_dir: Path, progress: Progress) -> Ledger:
    """Collect as configured into `run_dir`.

    Args:
        config: the whole run.
        run_dir: made if missing; refused if it holds another run's shards.
        progress: shows the stages and the games.

    Returns:
        The books of the collection, as in `summary.json`.

    Raises:
        SelfplayError: with advice, from whichever part refuses.
        KeyboardInterrupt: after Ctrl-C, when everything has been written.
    """
    environments = [*config.environments.train, *config.environments.eval]
    check_environments_of(environments, played_here=config.cluster.kind == "local")
    with ExitStack() as stack:
        books = stack.enter_context(_report_at_the_end(run_dir))
        stack.callback(progress.close)
        store = stack.enter_context(
            EpisodeStore(run_dir, config.store.episodes_per_shard, config.store.seconds_per_shard)
        )
        (run_dir / "config.yaml").write_text(dump(config), encoding="utf-8")
        tracker = stack.enter_context(_tracker(config, run_dir))
        tracker.log_params(config.model_dump(mode="json"))
        books.tracking_uri = tracker.uri
        engine = config.vllm.engine_spec(config.seed).factory is not None
        if engine and config.cluster.kind == "local":
            # Here rather than on the worker, so that the first run's minute of building shows.
            resolve_model(config.vllm.model_name, on_progress=progress.stage)
        progress.stage("connecting to the cluster")
        client = stack.enter_context(connect(config.cluster, slots=_slots(config), engine=engine))
        progress.stage("starting engines" if engine else "starting")
        registry = ModelRegistry(config.vllm.policy(), run_dir / "registry.json")
        buffer = _buffer(config)
        scheduler = _scheduler(config, client, tracker, buffer, registry, store)
        books.ledger = scheduler.ledger
        progress.watch(lambda: scheduler.snapshot)
        try:
            return scheduler.collect(config.collect.num_train_workers, config.collect.num_eval_workers)
        finally:
            progress.stage("stopping")
            if isinstance(buffer, StepBuffer):
                scheduler.ledger.buffer = asdict(buffer.stats())
            registry.save()
            scheduler.ledger.write(run_dir / "summary.json")
            write_card(run_dir, scheduler.ledger.summary())


@dataclass
class _Books:
    ledger: Ledger | None = None
    tracking_uri: str = ""


@contextmanager
def _report_at_the_end(run_dir: Path) -> Iterator[_Books]:
    """Print the report when everything else has stopped, whatever stopped it."""
    books = _Books()
    try:
        yield books
    finally:
        if books.ledger is not None and books.ledger.submitted:
            # A pipe or a log has no width of its own; the table needs this much.
            console = Console() if sys.stdout.isatty() else Console(width=TABLE_WIDTH)
            print_report(books.ledger, run_dir, books.tracking_uri, console)


def _tracker(config: RunConfig, run_dir: Path) -> MLflowTracker:
    tracking = config.tracking
    return MLflowTracker(tracking.uri, tracking.experiment, config.name, tracking.window_s, run_dir=run_dir)


def _buffer(config: RunConfig) -> ReplayBuffer:
    settings: BufferConfig = config.buffer
    if settings.kind == "step":
        stop = StopConditions(settings.stop.episodes, settings.stop.steps, settings.stop.seconds)
        return StepBuffer(settings.capacity, stop, settings.truncated, config.seed)
    buffer = import_object(settings.kind)(settings)
    if not isinstance(buffer, ReplayBuffer):
        raise ConfigError(
            f"buffer.kind is {settings.kind!r}, whose object has no add_player_trajectory and continue_collection, "
            "which a buffer needs: see pipeline.replay.ReplayBuffer"
        )
    return buffer


def _scheduler(
    config: RunConfig,
    client: Client,
    tracker: BaseTracker,
    buffer: ReplayBuffer,
    registry: ModelRegistry,
    store: EpisodeStore,
) -> GameScheduler:
    environments, models, collect = config.environments, config.models, config.collect
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
            prefetch=collect.prefetch,
            retries=collect.retries,
            max_consecutive_failures=collect.max_consecutive_failures,
            group_size=collect.group_size,
            incomplete_groups=collect.incomplete_groups,
        ),
    )


def _slots(config: RunConfig) -> int:
    """Games that the cluster must be able to run at once. Local workers also get room for the queued ones."""
    collect = config.collect
    quotas = (collect.num_train_workers, collect.num_eval_workers or 0)
    if config.cluster.kind != "local":
        return sum(quotas)
    return sum(quota + math.ceil(quota * collect.prefetch) for quota in quotas)
