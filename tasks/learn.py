"""The learner as worker state: a plugin that holds it on a worker that offers `LEARNER`, and the tasks that use it.

Submit the tasks with `resources={"LEARNER": 1}` and `pure=False`. Model and optimiser live in one thread of their own,
from loading to the end, so that Dask's loop stays free. torch is imported there alone, because the driver loads this
module, too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

from distributed import Worker, WorkerPlugin, get_worker

from tasks.errors import ClusterError, LearnerError, LearnerVersionError, boundary
from tasks.learner_checks import check_learner
from tasks.learner_contracts import LearnerBatch, LearnerSpec, TrainReport

if TYPE_CHECKING:
    from tasks.learner import Learner

LEARNER_NAME = "selfplay-learner"
LEARNER_RESOURCE = "LEARNER"
T = TypeVar("T")


class LearnerPlugin(WorkerPlugin):  # type: ignore[misc]  # distributed is untyped
    """Holds the learner of one run. Begins to load it when it is set up; workers without `LEARNER` are left alone.

    A worker that comes up, for the first time or after it was lost, is at policy version 0. Whoever knows better tells
    it with `restore_learner`.

    Raises:
        ConfigError: see `check_learner`.
    """

    name = LEARNER_NAME

    def __init__(self, spec: LearnerSpec) -> None:
        check_learner(spec)
        self.spec = spec
        self._learner: Learner | None = None
        self._thread: ThreadPoolExecutor | None = None

    async def setup(self, worker: Worker) -> None:
        """Begin to load the model, and return at once."""
        if LEARNER_RESOURCE in worker.state.total_resources:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix=LEARNER_NAME)
            self._thread.submit(self._loaded)

    async def teardown(self, worker: Worker) -> None:
        """Let go of the model. A step that is under way ends first; steps that wait are given up."""
        if self._thread is not None:
            thread, self._thread = self._thread, None
            await asyncio.to_thread(thread.shutdown, cancel_futures=True)
            self._learner = None

    def step(self, batch: LearnerBatch, expected_version: int) -> TrainReport:
        """See `train_step`."""
        return self._call(lambda: self._stepped(batch, expected_version))

    def restore(self, version: int) -> int:
        """See `restore_learner`."""
        return self._call(lambda: self._restored(version))

    def _call(self, function: Callable[[], T]) -> T:
        """The result of a call in the learner's thread."""
        if self._thread is None:
            raise ClusterError(
                f"this worker holds no learner: it offers no {LEARNER_RESOURCE}, or the run has ended. Submit with "
                f"resources={{'{LEARNER_RESOURCE}': 1}} to a worker started with --resources {LEARNER_RESOURCE}=1"
            )
        return self._thread.submit(function).result()

    def _loaded(self) -> Learner:
        if self._learner is None:
            with boundary() as caught:
                from tasks.learner import Learner

                self._learner = Learner(self.spec)
                return self._learner
            raise LearnerError(
                f"the learner cannot load {self.spec.model_name}: {caught.summary}. Expected a causal language model "
                "in the format of transformers, the extra `vllm` installed, and memory to hold the model"
            ) from caught.error
        return self._learner

    def _stepped(self, batch: LearnerBatch, expected_version: int) -> TrainReport:
        learner = self._loaded()
        if not learner.policy_version == batch.policy_version == expected_version:
            raise LearnerVersionError(
                f"learning step {batch.number} expects policy version {expected_version}, its batch says "
                f"{batch.policy_version}, the learner is at {learner.policy_version}; expected all to be the same. "
                f"Restore it with restore_learner({expected_version}) and submit the step again"
            )
        return learner.step(batch)

    def _restored(self, version: int) -> int:
        if self._loaded().policy_version != version:
            self._learner = None  # its memory goes before the next one comes
            learner = self._loaded()
            if version > 0:
                learner.restore(version)
        return version


def train_step(batch: LearnerBatch, expected_version: int) -> TrainReport:
    """The Dask task: one learning step on this worker's learner, which must be at `expected_version`.

    Raises:
        LearnerVersionError: it is not, or the batch names another one; nothing was learned.
        LearnerError: the model cannot be loaded, the batch is broken, or learning has diverged.
        ClusterError: this worker has no learner.
    """
    return current_learner().step(batch, expected_version)


def restore_learner(version: int) -> int:
    """The Dask task: put this worker's learner at a version it has a checkpoint of, or at 0, the beginning.

    Submitted at the start of a run, where it also waits until the model is loaded, when a run is resumed, and after a
    worker was lost. Steps after `version` are forgotten. Returns `version`.

    Raises:
        LearnerError: the model cannot be loaded; or the checkpoint is not there, damaged, or of other settings.
        ClusterError: this worker has no learner.
    """
    return current_learner().restore(version)


def current_learner() -> LearnerPlugin:
    """The plugin of the worker that runs the calling task.

    Raises:
        ClusterError: there is none; it was never registered or the run has ended.
    """
    worker = get_worker()
    plugin = worker.plugins.get(LEARNER_NAME)
    if not isinstance(plugin, LearnerPlugin):
        raise ClusterError(
            f"the worker {worker.address} has no {LEARNER_NAME!r} plugin, which learning needs; it has "
            f"{sorted(worker.plugins)}. Register a LearnerPlugin with the client first"
        )
    return plugin
