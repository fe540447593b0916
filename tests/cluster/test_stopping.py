"""Ctrl-C once, twice, and `kill -9`: readable shards, a truthful MLflow run, and no process left behind."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
import yaml
from mlflow.tracking import MlflowClient

from tasks.shards import read_episodes

pytestmark = pytest.mark.cluster

REPOSITORY = Path(__file__).resolve().parents[2]
CONFIG = {
    "vllm": {
        "model_name": "stub",
        "engine": "tests.stub_engine:StubEngine",
        "engine_args": {"latency_s": 0.2},
        "max_tokens": 16,
    },
    "environments": {"train": [{"env_id": "KuhnPoker-v0-train", "num_players": 2}]},
    "collect": {"num_train_workers": 4},
    "buffer": {"stop": {"episodes": 100_000}},
}
PATIENCE_S = 60.0


class Driver:
    """`selfplay collect` in a process group of its own; every process it starts carries a mark in its environment."""

    def __init__(self, folder: Path) -> None:
        self.run_dir = folder / "run"
        self._mark = uuid.uuid4().hex
        config = folder / "config.yaml"
        config.write_text(yaml.safe_dump(CONFIG))
        self.log = folder / "driver.log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "pipeline.cli", "collect", str(config), "--run-dir", str(self.run_dir)],
                cwd=REPOSITORY,
                env={**os.environ, "SELFPLAY_TEST_MARK": self._mark},
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def wait_for(self, what: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not what():
            assert time.monotonic() < deadline, self.log.read_text()
            time.sleep(0.1)

    def wait_for_games(self) -> None:
        self.wait_for(lambda: re.search(r"train [1-9]\d* done", self.log.read_text()) is not None)

    def interrupt(self) -> None:
        """What a terminal does on Ctrl-C: the signal goes to the whole process group."""
        os.killpg(self.process.pid, signal.SIGINT)

    def left_behind(self) -> list[str]:
        found = []
        for process in psutil.process_iter():
            try:
                if process.environ().get("SELFPLAY_TEST_MARK") == self._mark:
                    found.append(" ".join(process.cmdline()))
            except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
                continue
        return found


@pytest.fixture
def driver(tmp_path: Path) -> Iterator[Driver]:
    driver = Driver(tmp_path)
    yield driver
    if driver.process.poll() is None:
        os.killpg(driver.process.pid, signal.SIGKILL)
        driver.process.wait()


def check_run(driver: Driver) -> dict[str, int]:
    """Rows, summary and MLflow agree that the run was stopped by a person; returns the statuses."""
    summary = json.loads((driver.run_dir / "summary.json").read_text())
    rows = read_episodes(driver.run_dir)
    assert rows.num_rows == summary["submitted"] == sum(summary["statuses"].values())
    client = MlflowClient(f"sqlite:///{driver.run_dir / 'mlflow.db'}")
    [run] = client.search_runs([experiment.experiment_id for experiment in client.search_experiments()])
    assert run.info.status == "KILLED"
    assert driver.left_behind() == []
    return {status: count for status, count in summary["statuses"].items() if count}


def test_ctrl_c_once_lets_the_games_in_flight_finish(driver: Driver) -> None:
    driver.wait_for_games()
    driver.interrupt()
    assert driver.process.wait(PATIENCE_S) == 130, driver.log.read_text()
    assert set(check_run(driver)) <= {"completed", "illegal_move"}
    assert json.loads((driver.run_dir / "summary.json").read_text())["stopped_by"] == "interrupt"


def test_ctrl_c_twice_cancels_them(driver: Driver) -> None:
    driver.wait_for_games()
    driver.interrupt()
    time.sleep(0.3)
    driver.interrupt()
    assert driver.process.wait(PATIENCE_S) == 130, driver.log.read_text()
    assert check_run(driver)["cancelled"] >= 1
    assert json.loads((driver.run_dir / "summary.json").read_text())["stopped_by"] == "cancel"


def test_a_killed_driver_leaves_no_process(driver: Driver) -> None:
    driver.wait_for_games()
    driver.process.kill()
    driver.process.wait()
    driver.wait_for(lambda: not driver.left_behind())
    assert read_episodes(driver.run_dir).num_rows >= 0
