"""The command line: what it prints, how it refuses, what it costs to ask for help."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import click
import pytest
import yaml

from pipeline import cli, launch
from pipeline.cli import main
from pipeline.config import RunConfig, load
from pipeline.ledger import Ledger
from pipeline.model_registry import ModelRegistry
from pipeline.progress import Progress
from tasks.contracts import ModelKind, ModelRef
from tasks.errors import ClusterError

CONFIGS = Path(__file__).resolve().parents[2] / "configs"


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    Path("run.yaml").write_text(
        "name: mine\nvllm: {model_name: 'scripted:first'}\nenvironments: {train: [{env_id: a}]}\n"
    )
    return "run.yaml"


def test_help_loads_nothing_that_takes_time() -> None:
    heavy = ("dask", "distributed", "mlflow", "numpy", "pyarrow", "pydantic", "rich", "textarena", "torch", "yaml")
    code = (
        f"import sys; from pipeline.cli import main; main(['--help']); print([m for m in {heavy} if m in sys.modules])"
    )
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert output.startswith("Usage: selfplay [OPTIONS] COMMAND")
    assert output.endswith("[]\n")


def test_config_prints_what_a_run_would_use(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", file, "--set", "vllm.lora_config.lora_rank=4", "--set", "seed=7"]) == 0
    printed = yaml.safe_load(capsys.readouterr().out)
    assert (printed["name"], printed["seed"], printed["vllm"]["lora_config"]["lora_rank"]) == ("mine", 7, 4)
    assert printed["vllm"]["temperature"] == 1.0


def test_wrong_settings_are_said_in_plain_words(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["collect", file, "--set", "vllm.temprature=0.5"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("selfplay: run.yaml:\n  vllm.temprature: unknown key; ")
    assert err.endswith("Did you mean 'temperature'?\n")
    assert not Path("runs").exists()


def test_a_wrong_command_line_shows_its_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["worker", "tcp://host:1", "--games", "0"]) == 2
    assert "Invalid value for '--games': 0 is not in the range x>=1." in capsys.readouterr().err


class Launched:
    """Stands in for `run_collect`: keeps what it was called with, raises what it was given."""

    def __init__(self, error: BaseException | None = None) -> None:
        self.error = error
        self.calls: list[tuple[RunConfig, Path]] = []

    def __call__(self, config: RunConfig, run_dir: Path, progress: Progress) -> Ledger:
        self.calls.append((config, run_dir))
        if self.error is not None:
            raise self.error
        return Ledger("run")


def test_collect_hands_over_the_settings_and_the_folder(file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    launched = Launched()
    monkeypatch.setattr(launch, "run_collect", launched)
    monkeypatch.setattr(sys, "path", list(sys.path))
    assert main(["collect", file, "--run-dir", "there"]) == 0
    assert main(["collect", file]) == 0
    (config, run_dir), (_, default) = launched.calls
    assert config == load(Path(file))
    assert run_dir == Path("there")
    assert default.parent == Path("runs")
    assert default.name.startswith("mine-2")
    # The user's own modules are found.
    assert str(Path.cwd()) in sys.path


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (ClusterError("there is no cluster"), 1, "selfplay: there is no cluster\n"),
        (KeyboardInterrupt(), 130, ""),
    ],
)
def test_how_a_run_ended_is_the_exit_code(
    file: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    error: BaseException,
    code: int,
    message: str,
) -> None:
    monkeypatch.setattr(launch, "run_collect", Launched(error))
    monkeypatch.setattr(sys, "path", list(sys.path))
    assert main(["collect", file]) == code
    progress, _, said = capsys.readouterr().err.rpartition("loading\n")
    assert "Traceback" not in progress
    assert said.strip() == message.strip()


def test_show_says_what_is_missing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", str(tmp_path / "none")]) == 1
    assert capsys.readouterr().err.startswith("selfplay: ")


def test_show_ratings_is_of_the_whole_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    registry = ModelRegistry(ModelRef("policy@0", ModelKind.ENGINE, 0), tmp_path / "registry.json")
    registry.save()
    assert main(["show", str(tmp_path), "--ratings"]) == 0
    assert capsys.readouterr().out.startswith(f"no ratings in {tmp_path}: ")
    assert main(["show", str(tmp_path), "train-000000", "--ratings"]) == 2
    assert "--ratings are of the whole run; leave out GAME_ID" in capsys.readouterr().err


def test_worker_prints_the_plain_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["worker", "tcp://host:8786", "--games", "8", "--gpu", "1", "--print"]) == 0
    assert capsys.readouterr().out == (
        "DASK_DISTRIBUTED__WORKER__DAEMON=False DASK_DISTRIBUTED__NANNY__PRE_SPAWN_ENVIRON="
        '\'{"OMP_NUM_THREADS": None, "MKL_NUM_THREADS": None, "OPENBLAS_NUM_THREADS": None}\' CUDA_VISIBLE_DEVICES=1 '
        "dask worker tcp://host:8786 --nworkers 1 --nthreads 8 --resources 'SEQ=8 GPU=1' --memory-limit 0 "
        "--no-dashboard --death-timeout 60 --preload 'import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)'\n"
    )


def test_worker_refuses_an_address_without_protocol(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["worker", "localhost:8786", "--games", "8"]) == 2
    assert capsys.readouterr().err == (
        "selfplay: scheduler 'localhost:8786': expected an address with its protocol, such as tcp://localhost:8786\n"
    )


def test_every_command_explains_itself() -> None:
    for name, command in cli.commands.commands.items():
        assert command.help, name
        assert all(option.help for option in command.params if isinstance(option, click.Option)), name


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.yaml")), ids=lambda path: path.stem)
def test_the_configs_that_come_along_are_valid(path: Path) -> None:
    assert load(path).name != RunConfig.model_fields["name"].default
