"""The learner as the driver sees it: its plugin on the cluster, and learning steps as Dask futures that can be lost."""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Callable
from concurrent.futures import CancelledError
from typing import Any

from distributed import Client, Future, wait
from distributed.scheduler import KilledWorker

from tasks.errors import ClusterError, LearnerVersionError
from tasks.learn import LEARNER_NAME, LEARNER_RESOURCE, LearnerPlugin, restore_learner, train_step
from tasks.learner_contracts import LearnerBatch, LearnerSpec, TrainReport

POLL_S = 0.25
NO_LEARNER_PATIENCE_S = 60.0
ATTEMPTS = 3
logger = logging.getLogger(__name__)


class LearnerTasks:
    """Steps of the learner on whichever worker offers `LEARNER`. A context manager: the plugin is there meanwhile.

    A worker that is lost costs the step it was at: on the worker that takes its place the learner is put back to the
    version before it, and takes the step again.

    Args:
        client: the cluster.
        spec: the learner.
        run_id: goes into the keys of the futures.
        on_wait: called every `POLL_S` seconds while an answer is waited for; what it raises ends the wait.

    Raises:
        ConfigError: the settings are none that a learner could use.
    """

    def __init__(self, client: Client, spec: LearnerSpec, run_id: str, on_wait: Callable[[], None]) -> None:
        self.spec = spec
        self._client = client
        self._plugin = LearnerPlugin(spec)
        self._run_id = run_id
        self._on_wait = on_wait
        self._numbers = itertools.count()

    def __enter__(self) -> LearnerTasks:
        self._client.register_plugin(self._plugin)
        return self

    def __exit__(self, *_: object) -> None:
        if self._client.status == "running":
            self._client.unregister_worker_plugin(LEARNER_NAME)

    def restore(self, version: int) -> None:
        """Wait for the model, and put the learner at a version that it has a checkpoint of, or at 0.

        Raises:
            LearnerError: the model cannot be loaded, or there is no such checkpoint.
            ClusterError: no worker offers `LEARNER`.
        """
        self._keep_trying(lambda: self._answer(self._submit(restore_learner, version)), None)

    def step(self, batch: LearnerBatch) -> TrainReport:
        """One learning step.

        Raises:
            LearnerError: the batch is broken, or learning has diverged.
            ClusterError: no worker that offers `LEARNER` is left.
        """

        def once() -> TrainReport:
            (learner,) = self._learners()[:1]
            # A batch is too large to travel in the graph; it goes to its worker before.
            there = self._client.scatter(batch, workers=[learner], hash=False)
            report: TrainReport = self._answer(self._submit(train_step, there, batch.policy_version))
            return report

        report: TrainReport = self._keep_trying(once, batch.policy_version)
        return report

    def _keep_trying(self, call: Callable[[], Any], version: int | None) -> Any:
        """What the call returns, made again where its worker was lost, at `version` if that is known."""
        for attempt in itertools.count(1):
            self._await_learner()
            try:
                if attempt > 1 and version is not None:
                    self._answer(self._submit(restore_learner, version))
                return call()
            except (KilledWorker, CancelledError, LearnerVersionError) as error:
                if attempt == ATTEMPTS:
                    raise ClusterError(
                        f"the learner's worker was lost {attempt} times in one step, the last time by "
                        f"{type(error).__name__}: {error}. Look at the worker's log; too little memory is the usual "
                        "cause: lower learner.micro_batch_tokens"
                    ) from error
                logger.warning("The learner was lost (%s); the step is taken again", type(error).__name__)

    def _submit(self, task: Callable[..., Any], *arguments: Any) -> Future:
        key = f"learn-{task.__name__}-{next(self._numbers)}-{self._run_id}"
        return self._client.submit(task, *arguments, key=key, resources={LEARNER_RESOURCE: 1}, pure=False)

    def _answer(self, future: Future) -> Any:
        while not future.done():
            self._on_wait()
            try:
                wait([future], timeout=POLL_S)
            except TimeoutError:
                continue
        return future.result()

    def _learners(self) -> list[str]:
        workers = self._client.scheduler_info(n_workers=-1)["workers"]
        return [address for address, worker in workers.items() if worker["resources"].get(LEARNER_RESOURCE)]

    def _await_learner(self) -> None:
        deadline = time.monotonic() + NO_LEARNER_PATIENCE_S
        while not self._learners():
            self._on_wait()
            if time.monotonic() > deadline:
                raise ClusterError(
                    f"no worker offers {LEARNER_RESOURCE} for {NO_LEARNER_PATIENCE_S:.0f} s, expected one: start it "
                    f"with `selfplay worker {self._client.scheduler.address} --learner`"
                )
            time.sleep(POLL_S)
