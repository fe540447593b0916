"""A training run whose driver is killed at random moments goes on, and its books are as if it had lived once."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from pipeline.checkpoints import load_checkpoint
from pipeline.model_registry import ModelRegistry
from pipeline.stored_games import read_games
from pipeline.training_log import LOG_NAME, read_log
from pipeline.verify import verify_run
from tasks.contracts import Episode, Mode
from tasks.shards import shard_paths
from tests.learning_runs import result_of, start_training, training_config
from tests.tiny_model import make_model

pytestmark = pytest.mark.cluster
DECAY = 0.95
STARTED_S = 120


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("models") / "base")


def stub_config(model: Path, learning_steps: int, **changes: Any) -> dict[str, Any]:
    """The stub engine beside a real learner; batches are small, so that there are many moments to be killed at."""
    config = training_config(
        model,
        learner={
            "learning_steps": learning_steps,
            "batch_steps": 16,
            "rewards": {"decay": DECAY},
            "canary": False,  # the stub engine has no weights for adapters to change
        },
        engine="tests.learning_runs:SmallVocabularyEngine",
        engine_args={"latency_s": 0.01},
    )
    config["collect"] = {"num_train_workers": 8}
    config["store"] = {"episodes_per_shard": 5}
    return {**config, **changes}


def steps_taken(run_dir: Path) -> int:
    log = run_dir / LOG_NAME
    return len(list(read_log(log))) if log.exists() else 0


def kill(driver: subprocess.Popen[bytes]) -> None:
    """`kill -9` the driver, and see that nothing it started outlives it."""
    started = psutil.Process(driver.pid).children(recursive=True)
    driver.send_signal(signal.SIGKILL)
    driver.wait()
    _, alive = psutil.wait_procs(started, timeout=60)
    assert alive == []


def await_steps(driver: subprocess.Popen[bytes], run_dir: Path, steps: int) -> None:
    """Return once the run has taken so many learning steps."""
    deadline = time.monotonic() + STARTED_S
    while steps_taken(run_dir) < steps:
        assert driver.poll() is None, run_dir.with_suffix(".log").read_text()[-4000:]
        assert time.monotonic() < deadline, run_dir.with_suffix(".log").read_text()[-4000:]
        time.sleep(0.02)


def kill_after(run_dir: Path, config: dict[str, Any], steps: int, pause_s: float) -> None:
    """Let the run go on until it has taken so many learning steps and a pause has passed, and kill it."""
    driver = start_training(config, run_dir, "--resume")
    try:
        await_steps(driver, run_dir, steps)
        time.sleep(pause_s)
        kill(driver)
    finally:
        if driver.poll() is None:
            os.killpg(driver.pid, signal.SIGKILL)


def stored(run_dir: Path) -> Iterator[Episode]:
    for path in shard_paths(run_dir / "replay" / "episodes"):
        yield from read_games(run_dir, path.name)


def check_books(run_dir: Path, learning_steps: int) -> None:
    """Everything that was played is counted once, learned from at most once, and lost nowhere."""
    report = verify_run(run_dir)
    assert report.ok, str(report)
    summary = json.loads((run_dir / "summary.json").read_text())
    games = [game for game in stored(run_dir) if game.spec.mode is Mode.TRAIN]
    assert len({game.spec.game_id for game in games}) == len(games) == summary["lanes"]["train"]["submitted"]
    buffer, learning = summary["buffer"], summary["learning"]
    assert buffer["added"] + buffer["flagged"] + buffer["skipped"] == sum(len(game.steps) for game in games)
    assert buffer["added"] == buffer["size"] + buffer["drawn"] + buffer["discarded"]
    assert buffer["drawn"] == learning["steps"]["trained"] == sum(learning["lags"].values()) == 16 * learning_steps
    assert buffer["discarded"] == learning["steps"]["dropped"]
    assert [line["number"] for line in read_log(run_dir / LOG_NAME)] == list(range(learning_steps))
    registry = ModelRegistry.load(run_dir / "registry.json")
    counted = sum(registry.results(model.uid, Mode.TRAIN).single_player.games for model in registry.models())
    assert counted == len(games)
    assert {game.spec.agents[0].model.uid for game in games} <= {model.uid for model in registry.models()}
    check_baseline(run_dir)


def check_baseline(run_dir: Path) -> None:
    """The running mean of rewards is that of the stored games in their order, each once, up to the last checkpoint."""
    checkpoint = load_checkpoint(run_dir)
    assert checkpoint is not None
    mean = 0.0
    for shard in sorted(checkpoint.shards):
        for game in read_games(run_dir, shard):
            assert game.rewards is not None and game.rewards[0] is not None
            mean = DECAY * mean + (1 - DECAY) * game.rewards[0]
    (means,) = checkpoint.buffer["transforms"]
    assert list(means.values()) == [pytest.approx(mean)]


def kill_and_resume(model: Path, run_dir: Path, kills: int, seed: int) -> None:
    """Kill a run so many times at random moments, let it end, and check its books."""
    rng, learning_steps = random.Random(seed), 4 * kills + 4
    config = stub_config(model, learning_steps)
    for life in range(kills):
        kill_after(run_dir, config, steps=3 + 4 * life, pause_s=rng.uniform(0.0, 0.5))
    summary = result_of(start_training(config, run_dir, "--resume"), run_dir)
    assert summary["updates"] == learning_steps
    check_books(run_dir, learning_steps)
    check_one_mlflow_run(run_dir, learning_steps)


def test_killed_three_times_the_books_are_as_if_it_had_lived_once(model: Path, tmp_path: Path) -> None:
    kill_and_resume(model, tmp_path / "run", kills=3, seed=7)


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_killed_twenty_times_the_books_are_as_if_it_had_lived_once(model: Path, tmp_path: Path) -> None:
    kill_and_resume(model, tmp_path / "run", kills=20, seed=11)


def test_a_run_that_was_interrupted_goes_on_where_it_stopped(model: Path, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    config = stub_config(model, learning_steps=8)
    driver = start_training(config, run_dir)
    try:
        await_steps(driver, run_dir, 3)
        driver.send_signal(signal.SIGINT)
        assert driver.wait(timeout=120) == 130
    finally:
        if driver.poll() is None:
            os.killpg(driver.pid, signal.SIGKILL)
    interrupted = json.loads((run_dir / "summary.json").read_text())
    assert interrupted["stopped_by"] == "interrupt"
    assert 3 <= interrupted["learning"]["updates"] < 8
    assert result_of(start_training(config, run_dir, "--resume"), run_dir)["updates"] == 8
    check_books(run_dir, 8)


def check_one_mlflow_run(run_dir: Path, learning_steps: int) -> None:
    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{run_dir / 'mlflow.db'}")
    (experiment,) = [found for found in client.search_experiments() if found.name == "selfplay"]
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.info.status == "FINISHED"
    steps = {point.step for point in client.get_metric_history(run.info.run_id, "learning/reward")}
    assert steps <= set(range(learning_steps))
    assert max(steps) == learning_steps - 1


def test_another_run_is_refused_with_what_differs(model: Path, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    # The second step's line says that the first one's checkpoint is there.
    kill_after(run_dir, stub_config(model, learning_steps=3), steps=2, pause_s=0.0)
    other = make_model(tmp_path / "other", seed=1)
    other_algorithm = "tests.learning_runs:Diverging"
    for section, changes, message in (
        (
            "vllm",
            {"lora_config": {"lora_rank": 4, "lora_alpha": 16.0}},
            "vllm.lora_config.lora_rank was 8 and is now 4",
        ),
        ("vllm", {"model_name": str(other)}, f"vllm.model_name was {str(model)!r} and is now {str(other)!r}"),
        (
            "learner",
            {"algorithm": other_algorithm, "algorithm_args": {}},
            f"learner.algorithm was 'reinforce' and is now '{other_algorithm}'",
        ),
    ):
        config = stub_config(model, learning_steps=3)
        config[section] |= changes
        process = start_training(config, run_dir, "--resume")
        assert process.wait(timeout=120) == 2
        log = run_dir.with_suffix(".log").read_text()
        assert "the run cannot be resumed as another one" in log
        assert message in log
