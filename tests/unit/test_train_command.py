"""`selfplay train` and workers that learn, on the command line and in the check of a cluster."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pipeline import launch_train
from pipeline.cli import main
from pipeline.config import RunConfig
from pipeline.launch_train import run_train
from pipeline.preflight import shortfall
from pipeline.progress import Progress
from pipeline.worker_command import worker_command
from tasks.errors import ConfigError

SCHEDULER = "tcp://scheduler:8786"
KUHN = [{"env_id": "KuhnPoker-v0-train", "num_players": 2}]


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "train.yaml"
    path.write_text(json.dumps({"vllm": {"model_name": "m"}, "environments": {"train": KUHN}, "learner": {}}))
    return str(path)


def test_the_last_line_is_what_the_run_came_to(
    file: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    handed: list[Any] = []

    def run(config: RunConfig, run_dir: Path, progress: Progress, *, resume: bool) -> dict[str, Any]:
        handed.extend([config.learner, run_dir, resume])
        print("what runs print")
        return {"updates": 3}

    monkeypatch.setattr(launch_train, "run_train", run)
    assert main(["train", file, "--run-dir", "here", "--resume", "--json", "--set", "learner.batch_steps=5"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1]) == {"run_dir": "here", "updates": 3}
    learner, run_dir, resume = handed
    assert (learner.batch_steps, run_dir, resume) == (5, Path("here"), True)


def test_resume_finds_the_newest_run(
    file: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", file, "--resume"]) == 2
    assert "--resume finds no run runs/run-*; give its folder with --run-dir" in capsys.readouterr().err
    for name in ("run-20260102-000000", "run-20251231-235959", "another-20270101-000000"):
        (Path("runs") / name).mkdir(parents=True)
    handed = []
    monkeypatch.setattr(launch_train, "run_train", lambda config, run_dir, progress, *, resume: handed.append(run_dir))
    assert main(["train", file, "--resume"]) == 0
    assert handed == [Path("runs/run-20260102-000000")]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"learner": None}, "the configuration has no learner section, which training needs"),
        ({}, "expected a language model and the shape of the adapter to train"),
        (
            {
                "vllm": {"model_name": "m", "lora_config": {}},
                "buffer": {"kind": "tests.unit.test_train_command:OwnBuffer"},
            },
            "which batches cannot be drawn from: training needs 'step', 'episode' or a subclass",
        ),
        ({"vllm": {"model_name": "m", "lora_config": {}, "temperature": 0.0}}, "Set vllm.temperature above 0"),
        (
            {"vllm": {"model_name": "m", "lora_config": {}}, "buffer": {"capacity": 767}},
            "buffer.capacity is 767, expected at least 768 steps: learner.batch_steps for each version",
        ),
    ],
)
def test_what_cannot_be_trained_is_refused_before_anything_starts(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    config = {"vllm": {"model_name": "m"}, "environments": {"train": KUHN}, "learner": {}, **changes}
    with pytest.raises(ConfigError) as caught, Progress() as progress:
        run_train(RunConfig(**config), tmp_path / "run", progress)
    assert message in str(caught.value)
    assert not (tmp_path / "run").exists()


def test_sampling_that_makes_ratios_meaningless_is_warned_about(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise ConfigError("far enough")

    monkeypatch.setattr(launch_train, "check_environments_of", refuse)
    vllm = {"model_name": "m", "lora_config": {}, "top_p": 0.9}
    config = RunConfig(**{"vllm": vllm, "environments": {"train": KUHN}, "learner": {}})
    with pytest.raises(ConfigError, match="far enough"), Progress() as progress:
        run_train(config, tmp_path / "run", progress)
    assert "top_p 0.9 cut the distribution that is sampled from" in caplog.text


class OwnBuffer:
    """A user's buffer that nothing can be drawn from."""

    def __init__(self, settings: object) -> None:
        pass

    def add_player_trajectory(self, trajectory: object, env_id: str) -> None:
        pass

    def continue_collection(self) -> bool:
        return False


def test_a_worker_that_learns_offers_that_alone(capsys: pytest.CaptureFixture[str]) -> None:
    command = worker_command(SCHEDULER, None)
    assert command[command.index("--resources") + 1] == "LEARNER=1"
    assert command[command.index("--nthreads") + 1] == "1"
    assert main(["worker", SCHEDULER, "--learner", "--gpu", "3", "--print"]) == 0
    printed = capsys.readouterr().out
    assert "CUDA_VISIBLE_DEVICES=3" in printed
    assert "LEARNER=1" in printed


@pytest.mark.parametrize("options", [[], ["--games", "4", "--learner"]])
def test_a_worker_holds_an_engine_or_learns(options: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["worker", SCHEDULER, *options]) == 2
    assert "a worker holds an engine or learns: give --games N, or --learner" in capsys.readouterr().err


def test_a_cluster_without_a_learner_is_refused_with_the_command_that_would_do() -> None:
    workers = {"tcp://a:1": {"resources": {"SEQ": 8.0, "GPU": 1.0}, "nthreads": 8, "status": "running"}}
    assert shortfall(workers, SCHEDULER, 8, engine=True) is None
    assert shortfall(workers, SCHEDULER, 8, engine=True, learner=True) == (
        "the cluster at tcp://scheduler:8786 cannot carry this run: learning needs a worker that offers LEARNER=1, "
        "there is none. Its workers: tcp://a:1 (SEQ=8 GPU=1, 8 threads). Start it with: "
        "selfplay worker tcp://scheduler:8786 --learner"
    )
    workers["tcp://b:1"] = {"resources": {"LEARNER": 1.0}, "nthreads": 1, "status": "running"}
    assert shortfall(workers, SCHEDULER, 8, engine=True, learner=True) is None
