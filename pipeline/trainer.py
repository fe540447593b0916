"""The loop that keeps collection and learning going side by side.

Collection runs in the thread that calls `Trainer.train`, since that is the one that hears Ctrl-C; a second thread
draws batches from the buffer, has the learner take a step on each, publishes what comes of it, and ends the collection
when enough steps are taken.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Protocol

from pipeline.game_scheduler import GameScheduler
from pipeline.model_registry import ModelRegistry
from pipeline.replay import TrainingStep, TrajectoryBuffer
from pipeline.staleness import Staleness
from pipeline.time_shares import TimeShares
from pipeline.training_log import TrainingLog, step_metrics
from tasks.batch import samples_of
from tasks.contracts import ModelRef
from tasks.learner_contracts import LearnerBatch, TrainReport

POLL_S = 0.05


class Learner(Protocol):
    """Takes learning steps, wherever it runs; `pipeline.learner_tasks.LearnerTasks` is the one that is used."""

    def restore(self, version: int, on_wait: Callable[[], None]) -> None:
        """Wait until it is loaded, and be at this version; call `on_wait` meanwhile, and end with what it raises."""

    def step(self, batch: LearnerBatch, on_wait: Callable[[], None]) -> TrainReport:
        """Take one step; as above."""


Publish = Callable[[Mapping[str, bytes], int], ModelRef]
"""Makes an adapter's files, of the learning step of that number, the policy's next version."""


@dataclass
class Progress:
    """Where the learning stands: the steps taken, and the policy's version after them, fewer where some were skipped.

    `trained` counts the decisions learned from.
    """

    number: int = 0
    version: int = 0
    trained: int = 0
    skipped: int = 0


class Stopped(Exception):
    """The collection has ended, so there is nothing left to wait for."""


class Trainer:
    """Collects and learns at once.

    Args:
        scheduler: collects; made with `staleness` as its admission.
        buffer: the scheduler's, which batches are drawn from.
        registry: the model sampler's, whose policy is in training.
        learner: takes the steps.
        staleness: the books on lag.
        publish: makes an adapter's files the policy's next version, in `registry`.
        log: takes the figures of each learning step.
        batch_steps: decisions that a learning step takes, at least.
        num_train_workers: most training games in flight.
        num_eval_workers: most evaluation games in flight.
        checkpoint: called after each step while no game is dealt with; None keeps nothing to resume from.
        on_published: called with each new version beside the games; what it raises ends the run.
        progress: where an earlier run stood.
    """

    def __init__(
        self,
        scheduler: GameScheduler,
        buffer: TrajectoryBuffer,
        registry: ModelRegistry,
        learner: Learner,
        staleness: Staleness,
        publish: Publish,
        log: TrainingLog,
        *,
        batch_steps: int,
        num_train_workers: int,
        num_eval_workers: int | None = None,
        checkpoint: Callable[[Progress], None] | None = None,
        on_published: Callable[[ModelRef], None] | None = None,
        progress: Progress | None = None,
    ) -> None:
        self.progress = progress or Progress()
        self.times = TimeShares()
        self._scheduler = scheduler
        self._buffer = buffer
        self._registry = registry
        self._learner = learner
        self._staleness = staleness
        self._publish = publish
        self._log = log
        self._batch_steps = batch_steps
        self._quotas = (num_train_workers, num_eval_workers)
        self._checkpoint = checkpoint
        self._on_published = on_published
        self._ended = threading.Event()

    def train(self, learning_steps: int) -> Progress:
        """Collect and learn until the learner has taken `learning_steps` in all, then let the games in flight finish.

        Raises:
            LearnerError: learning has diverged, or the learner cannot be loaded.
            AdapterError: engines could not serve what was learned.
            ClusterError, EngineStartError, TooManyFailuresError, KeyboardInterrupt: as `GameScheduler.collect`.
        """
        with ThreadPoolExecutor(1, thread_name_prefix="selfplay-learning") as thread:
            learning = thread.submit(self._learn, learning_steps)
            try:
                self._scheduler.collect(*self._quotas)
            finally:
                self._ended.set()
        learning.result()
        return self.progress

    def _on_wait(self) -> None:
        """Called while something is waited for: samples what is going on.

        Raises:
            Stopped: the collection has ended.
        """
        snapshot = self._scheduler.snapshot
        if snapshot is not None:
            self.times.sample(snapshot.in_flight, snapshot.engines)
        if self._ended.is_set():
            raise Stopped

    def _learn(self, learning_steps: int) -> None:
        """The learning thread. However it ends, the collection does, too."""
        try:
            self._learner.restore(self.progress.version, self._on_wait)
            while self.progress.number < learning_steps:
                with self.times.phase("waiting"):
                    items = self._next_items()
                batch = self._batch(items)
                with self.times.phase("learning"):
                    report = self._learner.step(batch, self._on_wait)
                with self.times.phase("publishing"):
                    self._advance(report, items)
        except Stopped:
            pass
        finally:
            self._buffer.stop()

    def _next_items(self) -> list[TrainingStep]:
        """Wait for a batch of steps that are not too old."""
        while True:
            with self._scheduler.between_games:
                self._discard_too_old()
                if self._buffer.size() >= self._batch_steps:
                    items = self._buffer.get_batch(self._batch_steps, oldest_first=True)
                    self._staleness.training(item.version for item in items)
                    return items
            self._on_wait()
            self._ended.wait(POLL_S)

    def _discard_too_old(self) -> None:
        self._staleness.drop(self._buffer.discard(lambda item: self._staleness.too_old(item.version)))

    def _batch(self, items: list[TrainingStep]) -> LearnerBatch:
        samples = samples_of(replace(item, reward=item.transformed) for item in items)
        return LearnerBatch(self.progress.number, self.progress.version, tuple(samples), self._staleness.dropped)

    def _metrics(self, report: TrainReport, items: list[TrainingStep]) -> dict[str, float]:
        shares = self.times.shares()
        return step_metrics(report, items, self._buffer, self._staleness, self._registry, shares)

    def _advance(self, report: TrainReport, items: list[TrainingStep]) -> None:
        """Publish what was learned, and keep what is needed to go on from here. No game begins meanwhile.

        The checkpoint is written before a game can name the new version, so that no game on disk is ahead of it; and
        after the step's line in the log, for a run that is resumed drops lines of later steps but cannot make up for
        one that is missing.
        """
        model = None
        with self._scheduler.between_games:
            if report.adapter is not None:
                model = self._publish(report.adapter, report.number)
            self.progress = Progress(
                number=report.number + 1,
                version=report.policy_version,
                trained=self.progress.trained + len(items),
                skipped=self.progress.skipped + report.skipped,
            )
            self._staleness.trained(report.policy_version)
            self._discard_too_old()
            self._log.step(report.number, self._metrics(report, items))
            if self._checkpoint is not None:
                self._checkpoint(self.progress)
        if model is not None and self._on_published is not None:
            self._on_published(model)
