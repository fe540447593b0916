"""The whole thing on real engines: a collection whose counts add up, and what is left after the worst has happened."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import psutil
import yaml

from pipeline.cluster import connect
from pipeline.config import ClusterConfig
from tasks.shards import read_episodes, read_steps
from tests.cluster.collections import check_books, kuhn_eval, scheduler
from tests.engine.conftest import ENGINE_MARKS
from tests.processes import REPOSITORY

pytestmark = ENGINE_MARKS

ENGINE_ARGS = {"kv_cache_memory_bytes": 16 * 1024**2}


def tiny(model: Path, **changes: Any) -> dict[str, Any]:
    """A `vllm_config` for the tiny random model, whose tokens are bytes."""
    return {
        "model_name": str(model),
        "max_tokens": 4,
        "max_model_len": 1024,
        "max_parallel_seq": 16,
        "dtype": "float32",
        "engine_args": ENGINE_ARGS,
        **changes,
    }


def engine_processes() -> list[psutil.Process]:
    """vLLM's cores and their workers, below this process."""
    found = []
    for process in psutil.Process().children(recursive=True):
        try:
            if process.name().startswith("VLLM"):
                found.append(process)
        except psutil.NoSuchProcess:
            continue
    return found


def wait_until_gone(processes: list[psutil.Process]) -> None:
    _, alive = psutil.wait_procs(processes, timeout=20)
    assert alive == []


def when_playing(games: Any, action: Any) -> threading.Thread:
    """Do something from a thread once the first games have ended."""

    def wait_and_act() -> None:
        while games.snapshot is None or not games.ledger.environments:
            time.sleep(0.02)
        action()

    thread = threading.Thread(target=wait_and_act)
    thread.start()
    return thread


def test_a_collection_adds_up_and_survives_its_core(base: Path, tmp_path: Path) -> None:
    with connect(ClusterConfig(), slots=8, engine=True) as client:
        games = scheduler(client, tmp_path, tiny(base), episodes=60, evaluation=kuhn_eval())
        killed: list[psutil.Process] = []

        def kill_core() -> None:
            killed.extend(engine_processes())
            next(process for process in killed if "EngineCore" in process.name()).kill()

        killer = when_playing(games, kill_core)
        ledger = games.collect(num_train_workers=6, num_eval_workers=2)
        killer.join()
        assert engine_processes() == [], "engines stop with the collection"
    statuses = check_books(ledger, tmp_path)
    assert set(statuses) <= {"completed", "illegal_move"}
    assert ledger.retried_attempts >= 1
    assert [figures.restarts for figures in ledger.engines.values()] == [1]
    wait_until_gone(killed)
    policy_steps = [step for step in read_steps(tmp_path).to_pylist() if step["model_uid"] == "policy@0"]
    assert policy_steps
    for step in policy_steps:
        assert step["prompt_ids"]
        assert 1 <= len(step["completion_ids"]) == len(step["logprobs"]) <= 4
        assert all(math.isfinite(logprob) and logprob <= 0 for logprob in step["logprobs"])
    evaluation = [row for row in read_episodes(tmp_path).to_pylist() if row["mode"] == "eval"]
    assert {tuple(row["model_uid"]) for row in evaluation} <= {
        ("policy@0", "scripted:random"),
        ("scripted:random", "policy@0"),
    }


def test_a_killed_worker_takes_its_engine_along_and_the_other_plays_on(base: Path, tmp_path: Path) -> None:
    with connect(ClusterConfig(workers=2), slots=8, engine=True) as client:
        games = scheduler(client, tmp_path, tiny(base), episodes=80)
        pid = next(iter(client.run(os.getpid).values()))
        cores: list[psutil.Process] = []

        def kill_worker() -> None:
            worker = psutil.Process(pid)
            cores.extend(child for child in worker.children(recursive=True) if child.name().startswith("VLLM"))
            worker.kill()

        killer = when_playing(games, kill_worker)
        ledger = games.collect(num_train_workers=8)
        killer.join()
        assert cores
        wait_until_gone(cores)
        assert engine_processes() == []
    assert set(check_books(ledger, tmp_path)) <= {"completed", "illegal_move"}


def test_a_killed_driver_takes_the_engines_along(base: Path, tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(
        yaml.safe_dump(
            {
                "vllm": tiny(base),
                "environments": {"train": [{"env_id": "KuhnPoker-v0-train", "num_players": 2}]},
                "collect": {"num_train_workers": 4},
                "store": {"episodes_per_shard": 4},
            }
        )
    )
    log = tmp_path / "driver.log"
    with log.open("wb") as output:
        driver = subprocess.Popen(
            [sys.executable, "-m", "pipeline.cli", "collect", str(config), "--run-dir", str(tmp_path / "run")],
            cwd=REPOSITORY,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    try:
        deadline = time.monotonic() + 120
        while not list((tmp_path / "run" / "replay" / "episodes").glob("*.parquet")):
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.2)
        started = psutil.Process(driver.pid).children(recursive=True)
        assert any(process.name().startswith("VLLM") for process in started)
        driver.kill()
        driver.wait()
        wait_until_gone(started)
    finally:
        if driver.poll() is None:
            os.killpg(driver.pid, signal.SIGKILL)
            driver.wait()
    assert read_episodes(tmp_path / "run").num_rows >= 4
