"""Clusters for tests: real processes, on settings that a run needs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import dask
import pytest
from distributed import Client, LocalCluster

from tests.processes import DaskProcesses

SETTINGS: dict[str, object] = {
    "distributed.worker.daemon": False,
    "distributed.scheduler.allowed-failures": 0,
}

StartCluster = Callable[..., AbstractContextManager[Client]]


@contextmanager
def start_local_cluster(workers: int = 1, *, seq: int = 8, gpu: int = 1) -> Iterator[Client]:
    """A client of a new cluster whose workers each offer `SEQ` and, unless it is 0, `GPU`."""
    resources = {"SEQ": seq} | ({"GPU": gpu} if gpu else {})
    with (
        dask.config.set(SETTINGS),
        LocalCluster(
            n_workers=workers,
            threads_per_worker=seq,
            processes=True,
            resources=resources,
            memory_limit=None,
            dashboard_address=":0",
        ) as cluster,
        Client(cluster) as client,
    ):
        yield client


@pytest.fixture
def start_cluster() -> StartCluster:
    """Start a cluster of one's own, for tests that break it: `with start_cluster(workers, seq=…, gpu=…) as client`."""
    return start_local_cluster


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    """A cluster of two workers that the tests of a module share and leave as they found it."""
    with start_local_cluster(workers=2) as client:
        yield client


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[DaskProcesses]:
    """Schedulers and workers as separate processes, ended with the test."""
    started = DaskProcesses(tmp_path, SETTINGS)
    yield started
    started.close()
