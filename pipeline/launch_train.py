"""A training run from its configuration: what `pipeline.launch` leaves behind, and what was learned.

Beside a collection's files `RUN/` holds `adapters/` (the versions of the policy), `learning.jsonl` (the metrics of each
learning step) and `checkpoints/`, from which the run goes on when it is resumed.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from distributed import Client

from pipeline.adapter_canary import Canary
from pipeline.checkpoints import (
    FOLDER,
    LEARNER_FOLDER,
    Checkpoint,
    check_identity,
    load_checkpoint,
    run_id_of,
    save_checkpoint,
)
from pipeline.cluster import connect
from pipeline.config import LearnerConfig, RunConfig, dump
from pipeline.dataset_card import write_card
from pipeline.environments import check_environments_of
from pipeline.episode_store import EpisodeStore
from pipeline.game_scheduler import GameScheduler
from pipeline.learner_tasks import LearnerTasks
from pipeline.ledger import Snapshot
from pipeline.local_cluster import LearnerPlace
from pipeline.model_registry import ModelRegistry
from pipeline.progress import Progress as ProgressLine
from pipeline.replay import TrajectoryBuffer
from pipeline.run_parts import make_buffer, make_scheduler, make_tracker, report_at_the_end, slots_of
from pipeline.staleness import Staleness
from pipeline.stored_games import read_games
from pipeline.tracking import BaseTracker
from pipeline.trainer import Progress, Trainer
from pipeline.training_log import TrainingLog
from pipeline.training_summary import training_summary
from tasks.base_model import check_target_modules, read_base
from tasks.contracts import Episode, ModelRef
from tasks.errors import ConfigError
from tasks.learner_checks import check_learner, sampling_caveat
from tasks.models import resolve_model

REGISTRY_NAME = "registry.json"
logger = logging.getLogger(__name__)


def run_train(config: RunConfig, run_dir: Path, progress: ProgressLine, *, resume: bool = False) -> dict[str, Any]:
    """Collect and learn as configured into `run_dir`.

    Args:
        config: the whole run, with a `learner`.
        run_dir: made if missing; refused if it holds another run's shards.
        progress: shows the stages and the games.
        resume: go on with the run in `run_dir`; one that was killed before its first checkpoint begins anew.

    Returns:
        What the run came to, as `learning` in `summary.json`.

    Raises:
        ConfigError: the configuration has no `learner`, or one that this model or buffer cannot be trained with; or
            the run in `run_dir` has another base model, adapter shape or algorithm.
        SelfplayError: with advice, from whichever part refuses.
        KeyboardInterrupt: after Ctrl-C, when everything has been written.
    """
    run = _TrainingRun(config, run_dir.resolve(), progress, load_checkpoint(run_dir) if resume else None)
    with ExitStack() as stack:
        books = stack.enter_context(report_at_the_end(run_dir))
        stack.callback(progress.close)
        store = stack.enter_context(
            EpisodeStore(run_dir, config.store.episodes_per_shard, config.store.seconds_per_shard, resume=resume)
        )
        (run_dir / "config.yaml").write_text(dump(config), encoding="utf-8")
        run.run_id = run_id_of(run_dir, resume=resume)
        tracker = stack.enter_context(make_tracker(config, run_dir, key=run.run_id))
        tracker.log_params(config.model_dump(mode="json"))
        books.tracking_uri = tracker.uri
        run.read_model()
        progress.stage("connecting to the cluster")
        place: LearnerPlace = "shared_gpu" if run.settings.share_gpu else "own_gpu"
        client = stack.enter_context(connect(config.cluster, slots=slots_of(config), engine=True, learner=place))
        learner = stack.enter_context(LearnerTasks(client, run.spec, run.run_id))
        run.assemble(client, learner, tracker, store)
        books.ledger = run.scheduler.ledger
        progress.watch(run.snapshot)
        try:
            run.train()
        finally:
            progress.stage("stopping")
            run.write_summary()
        return run.scheduler.ledger.learning


class _TrainingRun:
    """The parts of one run, put together step by step as they become possible."""

    run_id: str
    scheduler: GameScheduler
    trainer: Trainer

    def __init__(self, config: RunConfig, run_dir: Path, progress: ProgressLine, checkpoint: Checkpoint | None) -> None:
        self.settings = _learner_of(config)
        self.config = _with_room_for_the_learner(config, self.settings)
        self.spec = self.settings.spec(config.vllm, config.seed, run_dir / FOLDER / LEARNER_FOLDER)
        check_learner(self.spec)
        caveat = sampling_caveat(self.spec.sampling)
        if caveat is not None:
            logger.warning("%s", caveat)
        self._run_dir = run_dir
        self._line = progress
        self._checkpoint = checkpoint
        self._identity: dict[str, Any] = {}
        environments = [*config.environments.train, *config.environments.eval]
        check_environments_of(environments, played_here=config.cluster.kind == "local")
        self._buffer = _trajectory_buffer(config, self.settings)
        self._staleness = Staleness(self.settings.max_policy_lag, self.settings.batch_steps, self._buffer.size)
        self._began = time.time()

    def read_model(self) -> None:
        """See that the model is there, has what is to be trained, and is the one that the run began with."""
        name = self.config.vllm.model_name
        resolve_model(name, on_progress=self._line.stage)
        self._base = read_base(name)
        check_target_modules(name, self._base.shapes, self.spec.target_modules)
        self._identity = {
            "vllm.model_name": name,
            "the base model's weights": self._base.fingerprint,
            "vllm.lora_config.lora_rank": self.spec.lora_rank,
            "vllm.lora_config.lora_alpha": self.spec.lora_alpha,
            "vllm.lora_config.target_modules": sorted(self.spec.target_modules),
            "learner.algorithm": self.spec.algorithm,
        }
        if self._checkpoint is not None:
            check_identity(self._checkpoint.identity, self._identity)

    def assemble(self, client: Client, learner: LearnerTasks, tracker: BaseTracker, store: EpisodeStore) -> None:
        """Make what needs the cluster, and put it where the checkpoint says."""
        self._canary = Canary(client)
        self._store = store
        self._registry = self._make_registry()
        self.scheduler = make_scheduler(
            self.config, client, tracker, self._buffer, self._registry, store, self._staleness, self.run_id
        )
        progress = Progress()
        if self._checkpoint is not None:
            progress = self._checkpoint.progress
            self._buffer.restore(dict(self._checkpoint.buffer))
            self._staleness.restore(self._checkpoint.staleness)
            self.scheduler.restore(self._checkpoint.scheduler, self._stored_games(self._checkpoint.shards))
        self.trainer = Trainer(
            self.scheduler,
            self._buffer,
            self._registry,
            learner,
            self._staleness,
            self._publish,
            TrainingLog(tracker, self._run_dir, progress.number),
            batch_steps=self.settings.batch_steps,
            num_train_workers=self.config.collect.num_train_workers,
            num_eval_workers=self.config.collect.num_eval_workers,
            checkpoint=self._save,
            on_published=self._show_once if self.settings.canary else None,
            progress=progress,
        )

    def train(self) -> None:
        """Collect and learn, from a checkpoint on that is there before the first game."""
        self._save(self.trainer.progress)
        self.trainer.train(self.settings.learning_steps)

    def snapshot(self) -> Snapshot | None:
        """Where the collection stands, with where the learning does."""
        found, done = self.scheduler.snapshot, self.trainer.progress
        if found is None:
            return None
        stage = f"{found.stage} · {done.number} of {self.settings.learning_steps} learning steps"
        return replace(found, stage=stage)

    def write_summary(self) -> None:
        """Write what a run leaves behind, whatever ended it."""
        ledger = self.scheduler.ledger
        ledger.buffer = asdict(self._buffer.stats())
        ledger.learning = training_summary(
            self.trainer, self._staleness, self._registry, self._run_dir, time.time() - self._began
        )
        self._registry.save()
        ledger.write(self._run_dir / "summary.json")
        write_card(self._run_dir, ledger.summary())

    def _make_registry(self) -> ModelRegistry:
        path = self._run_dir / REGISTRY_NAME
        if self._checkpoint is None:
            return ModelRegistry(self.config.vllm.policy(), path)
        path.write_bytes(self._checkpoint.registry)
        return ModelRegistry.load(path)

    def _stored_games(self, learned: frozenset[str]) -> Iterator[tuple[Episode, bool]]:
        for shard in sorted(self._store.shards()):
            for episode in read_games(self._run_dir, shard):
                yield episode, shard in learned

    def _publish(self, files: Mapping[str, bytes], step: int) -> ModelRef:
        lora = self.config.vllm.engine_spec(self.config.seed).lora
        if lora is None:
            raise ConfigError("vllm.lora_config is not set, so that engines could not serve what is learned: set it")
        return self._registry.publish(files, base=self._base, lora=lora, step=step, algorithm=self.settings.algorithm)

    def _show_once(self, model: ModelRef) -> None:
        if model.adapter is not None:
            self._canary.check(model.adapter)

    def _save(self, progress: Progress) -> None:
        """Write a checkpoint. Every game that it knows of is on disk before it is."""
        self._store.flush()
        self._registry.save()
        save_checkpoint(
            self._run_dir,
            Checkpoint(
                identity=self._identity,
                progress=progress,
                scheduler=self.scheduler.state(),
                buffer=self._buffer.state(),
                staleness=self._staleness.state(),
                registry=(self._run_dir / REGISTRY_NAME).read_bytes(),
                shards=self._store.shards(),
            ),
        )


def _learner_of(config: RunConfig) -> LearnerConfig:
    if config.learner is None:
        raise ConfigError(
            "the configuration has no learner section, which training needs; `learner: {}` takes every default, and "
            "configs/train_cpu.yaml shows one"
        )
    return config.learner


def _with_room_for_the_learner(config: RunConfig, settings: LearnerConfig) -> RunConfig:
    """The same run, with an engine that leaves the learner its share of a GPU, unless the user has said how much."""
    if not settings.share_gpu:
        return config
    arguments = {"gpu_memory_utilization": settings.engine_memory, **config.vllm.engine_args}
    return config.model_copy(update={"vllm": config.vllm.model_copy(update={"engine_args": arguments})})


def _trajectory_buffer(config: RunConfig, settings: LearnerConfig) -> TrajectoryBuffer:
    buffer = make_buffer(config)
    if not isinstance(buffer, TrajectoryBuffer):
        raise ConfigError(
            f"buffer.kind is {config.buffer.kind!r}, which batches cannot be drawn from: training needs 'step', "
            "'episode' or a subclass of pipeline.replay.TrajectoryBuffer"
        )
    needed = settings.batch_steps * (settings.max_policy_lag + 1)
    if config.buffer.capacity < needed:
        raise ConfigError(
            f"buffer.capacity is {config.buffer.capacity}, expected at least {needed} steps: learner.batch_steps for "
            "each version up to learner.max_policy_lag. Raise it, or lower one of the two"
        )
    return buffer
