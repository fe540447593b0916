"""The cluster that a run starts on its own machine: what its workers offer, and that Ctrl-C does not reach them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import dask
import psutil
import pytest

from pipeline.cluster import connect, preflight
from pipeline.config import ClusterConfig
from tests.cluster.probes import eventually, worker_process
from tests.processes import REPOSITORY

pytestmark = pytest.mark.cluster


def test_a_local_cluster_splits_the_games_over_its_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    # Another cluster of this process may have left its workers' settings in the environment.
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    before = dask.config.get("distributed.worker.daemon")
    with connect(ClusterConfig(workers=2), slots=5, engine=True) as client:
        workers = client.scheduler_info(n_workers=-1)["workers"].values()
        assert [worker["resources"] for worker in workers] == [{"SEQ": 3, "GPU": 1}] * 2
        assert [(worker["nthreads"], worker["memory_limit"]) for worker in workers] == [(3, 0)] * 2
        preflight(client, 5, engine=True)
        processes = client.run(os.getpid)
        assert [(daemon, threads) for daemon, threads, _ in client.run(worker_process).values()] == [(False, None)] * 2
        assert client.run_on_scheduler(_scheduler_settings) == (0, False)
        assert set(client.run(dask.config.get, "distributed.worker.profile.interval").values()) == {"100ms"}
    assert not any(map(psutil.pid_exists, processes.values()))
    assert dask.config.get("distributed.worker.daemon") == before


def _scheduler_settings(dask_scheduler: Any) -> tuple[int, bool]:
    return dask_scheduler.allowed_failures, dask.config.get("distributed.scheduler.work-stealing")


def test_a_script_that_its_workers_cannot_import_is_told_so(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "from pipeline.cluster import connect\nfrom pipeline.config import ClusterConfig\n"
        "with connect(ClusterConfig(), slots=1, engine=False): pass\n"
    )
    ran = subprocess.run(
        [sys.executable, script], cwd=tmp_path, env=environment(), capture_output=True, text=True, check=False
    )
    assert ran.returncode == 1
    assert "ClusterError: the local workers did not start (" in ran.stderr
    assert "A script must start its run under `if __name__ == '__main__':`, for its workers import it" in ran.stderr


DRIVER = """
import importlib, os, signal, sys, time
from pipeline.cluster import connect
from pipeline.config import ClusterConfig

interrupts = []
signal.signal(signal.SIGINT, lambda number, frame: interrupts.append(number))
with connect(ClusterConfig(workers=2), slots=2, engine=True) as client:
    assert client.run(importlib.import_module, "of_the_user")
    while True:
        client.wait_for_workers(2)
        print(len(interrupts), *sorted(client.run(os.getpid, on_error='ignore').values()), flush=True)
        if sys.stdin.readline() == "end\\n":
            break
"""


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(REPOSITORY)}


def test_interrupts_of_the_terminal_do_not_reach_local_workers(tmp_path: Path) -> None:
    """Neither those that were there from the start nor the one that Dask started in place of a dead one."""
    (tmp_path / "of_the_user.py").write_text("")
    with subprocess.Popen(
        [sys.executable, "-c", DRIVER],
        cwd=tmp_path,
        env=environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as driver:
        assert driver.stdin is not None
        assert driver.stdout is not None

        def ask(line: str = "") -> list[int]:
            assert driver.stdin is not None
            assert driver.stdout is not None
            if line:
                driver.stdin.write(f"{line}\n")
                driver.stdin.flush()
            return [int(word) for word in driver.stdout.readline().split()]

        _, first, second = ask()
        os.killpg(driver.pid, signal.SIGINT)
        eventually(lambda: ask("go")[0] == 1)
        assert ask("go") == [1, first, second]
        os.kill(first, signal.SIGKILL)
        workers = eventually(lambda: pids if first not in (pids := ask("go")[1:]) and len(pids) == 2 else None)
        assert second in workers
        os.killpg(driver.pid, signal.SIGINT)
        eventually(lambda: ask("go")[0] == 2)
        assert ask("go") == [2, *workers]
        ask("end")
        assert driver.wait(timeout=30) == 0
    assert not any(map(psutil.pid_exists, workers))
