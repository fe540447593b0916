"""Connects a run to Dask: starts a cluster on this machine, or joins one that others started if it will do."""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from multiprocessing import resource_tracker
from pathlib import Path

import dask
from distributed import Client, SpecCluster

from pipeline.config import ClusterConfig
from pipeline.local_cluster import LearnerPlace, start_cluster
from pipeline.preflight import preflight
from pipeline.scheduler_address import await_scheduler, await_scheduler_file
from pipeline.worker_command import WORKER_SETTINGS, worker_command
from tasks.errors import ClusterError

__all__ = ["connect", "preflight", "worker_command"]

LOCAL_SETTINGS = {
    # A game on a worker that dies comes back to the driver at once; Dask does not play it again behind its back.
    "distributed.scheduler.allowed-failures": 0,
    # Games are placed on engines by the driver.
    "distributed.scheduler.work-stealing": False,
    # The last messages between scheduler and workers, kept for debugging, hold the games in them.
    "distributed.admin.low-level-log-length": 100,
    # Threads that wake hold up engines on the same cores: Dask's clocks do so a hundred times a second by themselves.
    "distributed.worker.profile.interval": "100ms",
    "distributed.admin.tick.interval": "200ms",
    "distributed.admin.system-monitor.interval": "2s",
    "distributed.admin.system-monitor.disk": False,
}


@contextmanager
def connect(config: ClusterConfig, *, slots: int, engine: bool, learner: LearnerPlace = "none") -> Iterator[Client]:
    """A client of a cluster that can carry the run; on exit what was started here is stopped.

    Args:
        config: which cluster.
        slots: games at once. Local workers offer that many `SEQ` between them; other clusters must have them.
        engine: whether workers hold an engine, which needs `GPU=1`.
        learner: whether a worker learns, which needs `LEARNER=1`; on a local cluster also on which GPU.

    Raises:
        ClusterError: there is no such cluster or it will not do. Says what is there, what is needed and which command
            would mend it, about `config.timeout_s` seconds after the call.
    """
    local = config.kind == "local"
    with _local_client(config, slots, learner) if local else _remote_client(config, slots, engine, learner) as client:
        yield client


@contextmanager
def _local_client(config: ClusterConfig, slots: int, learner: LearnerPlace) -> Iterator[Client]:
    """Worker processes of this one, with `slots` split between them.

    Modules that this process can import, those in the current folder included, can be imported there too.
    """
    games = math.ceil(slots / config.workers)
    with ExitStack() as stack:
        stack.enter_context(dask.config.set({**WORKER_SETTINGS, **LOCAL_SETTINGS}))
        with _shielded_from_interrupts():
            cluster = start_cluster(config, games, learner)
            stack.callback(_close, cluster)
        yield stack.enter_context(Client(cluster, direct_to_workers=True))


def _close(cluster: SpecCluster) -> None:
    """Stop the workers, whatever is pressed in the meantime: half a stop would leave processes behind."""
    with _shielded_from_interrupts():
        cluster.close()


@contextmanager
def _shielded_from_interrupts() -> Iterator[None]:
    """Hold SIGINT back from this thread and, for good, from the threads and processes that begin meanwhile.

    Ctrl-C goes to every process of a terminal. A signal mask is inherited, so workers never see it, from their first
    instruction on; nor do those that Dask's own thread starts later in place of dead ones, nor the engines' processes.
    """
    # It unblocks SIGINT where it starts, so it must not start under the mask.
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def _remote_client(config: ClusterConfig, slots: int, engine: bool, learner: LearnerPlace) -> Iterator[Client]:
    """A client of someone else's cluster, which stays as it is. Certificates for TLS come from Dask's configuration."""
    deadline = time.monotonic() + config.timeout_s
    if config.address is not None:
        address = config.address
    else:
        address = await_scheduler_file(Path(str(config.scheduler_file)), config.timeout_s)
    await_scheduler(address, max(0.0, deadline - time.monotonic()))
    try:
        client = Client(address, timeout=config.timeout_s)
    except OSError as error:
        raise ClusterError(f"the scheduler at {address} answers but takes no client: {error}") from error
    with client:
        preflight(client, slots, engine, max(0.0, deadline - time.monotonic()), learner=learner != "none")
        yield client
