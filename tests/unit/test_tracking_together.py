"""Eight runs that start at once on a store that does not exist yet: all of it arrives."""

from __future__ import annotations

import multiprocessing
import os
from pathlib import Path
from threading import Barrier
from unittest.mock import patch

from mlflow import MlflowClient

from pipeline import tracking
from pipeline.tracking import MLflowTracker
from tests.unit.metric_games import game

PROCESSES = 8
GAMES = 5


def report(uri: str, number: int, start: Barrier) -> None:
    """One process: a whole run, begun together with the others."""
    start.wait()
    # Without the limit on a tracker's end, a busy machine would fail this test.
    with patch.object(tracking, "CLOSE_TIMEOUT_S", 120.0), MLflowTracker(uri, "shared", f"run {number}") as tracker:
        tracker.log_params({"number": number})
        for _ in range(GAMES):
            tracker.log_episode(game())
        tracker.log_collection({"number": number})


def test_eight_processes_that_create_one_store_lose_nothing(tmp_path: Path) -> None:
    uri = f"sqlite:///{tmp_path / 'not there yet' / 'mlflow.db'}"
    context = multiprocessing.get_context("forkserver")
    # Imported once: eight imports of MLflow take this test's time, and would keep the processes from meeting.
    context.set_forkserver_preload(["mlflow.store.tracking.sqlalchemy_store", __name__])
    start = context.Barrier(PROCESSES)
    with patch.dict(os.environ, MLFLOW_DISABLE_TELEMETRY="true"):
        processes = [context.Process(target=report, args=(uri, number, start)) for number in range(PROCESSES)]
        for process in processes:
            process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0] * PROCESSES
    client = MlflowClient(uri)
    experiment = client.get_experiment_by_name("shared")
    assert experiment is not None
    runs = sorted(client.search_runs([experiment.experiment_id]), key=lambda run: run.info.run_name)
    assert [(run.info.run_name, run.info.status) for run in runs] == [
        (f"run {i}", "FINISHED") for i in range(PROCESSES)
    ]
    for number, run in enumerate(runs):
        assert run.data.params == {"number": str(number)}
        assert run.data.metrics["collection/number"] == number
        assert run.data.metrics["train/Kuhn/games"] == GAMES
