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

    Raises:
        ConfigError: the settings are none that a learner could use.
    """

    def __init__(self, client: Client, spec: LearnerSpec, run_id: str) -> None:
        self.spec = spec
        self._client = client
        self._plugin = LearnerPlugin(spec)
        self._run_id = run_id
        self._numbers = itertools.count()

    def __enter__(self) -> LearnerTasks:
        self._client.register_plugin(self._plugin)
        return self

    def __exit__(self, *_: object) -> None:
        if self._client.status == "running":
            self._client.unregister_worker_plugin(LEARNER_NAME)

    def restore(self, version: int, on_wait: Callable[[], None]) -> None:
        """Wait for the model, and put the learner at a version that it has a checkpoint of, or at 0.

        Args:
            version: the policy version.
            on_wait: called every `POLL_S` seconds while an answer is waited for; what it raises ends the wait.

        Raises:
            LearnerError: the model cannot be loaded, or there is no such checkpoint.
            ClusterError: no worker offers `LEARNER`.
        """
        self._keep_trying(lambda: self._answer(self._submit(restore_learner, version), on_wait), None, on_wait)

    def step(self, batch: LearnerBatch, on_wait: Callable[[], None]) -> TrainReport:
        """One learning step; `on_wait` as in `restore`.

        Raises:
            LearnerError: the batch is broken, or learning has diverged.
            ClusterError: no worker that offers `LEARNER` is left.
        """

        def once() -> TrainReport:
            """One attempt, on the learner that is there now."""
            learner = self._await_learner(on_wait)
            try:
                # A batch is too large to travel in the graph; it goes to its worker before.
                there = self._client.scatter(batch, workers=[learner], hash=False)
            except OSError as error:
                raise CancelledError(f"{learner} left before its batch came: {error}") from error
            report: TrainReport = self._answer(self._submit(train_step, there, batch.policy_version), on_wait)
            return report

        report: TrainReport = self._keep_trying(once, batch.policy_version, on_wait)
        return report

    def _keep_trying(self, call: Callable[[], Any], version: int | None, on_wait: Callable[[], None]) -> Any:
        """What the call returns, made again where its worker was lost, at `version` if that is known."""
        for attempt in itertools.count(1):
            try:
                self._await_learner(on_wait)
                if attempt > 1 and version is not None:
                    self._answer(self._submit(restore_learner, version), on_wait)
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

    def _answer(self, future: Future, on_wait: Callable[[], None]) -> Any:
        while not future.done():
            on_wait()
            try:
                wait([future], timeout=POLL_S)
            except TimeoutError:
                continue
        return future.result()

    def _await_learner(self, on_wait: Callable[[], None]) -> str:
        """The address of a worker that learns, waited for."""
        deadline = time.monotonic() + NO_LEARNER_PATIENCE_S
        while True:
            workers = self._client.scheduler_info(n_workers=-1)["workers"]
            for address, worker in workers.items():
                if worker["resources"].get(LEARNER_RESOURCE):
                    return str(address)
            on_wait()
            if time.monotonic() > deadline:
                raise ClusterError(
                    f"no worker offers {LEARNER_RESOURCE} for {NO_LEARNER_PATIENCE_S:.0f} s, expected one: start it "
                    f"with `selfplay worker {self._client.scheduler.address} --learner`"
                )
            time.sleep(POLL_S)
