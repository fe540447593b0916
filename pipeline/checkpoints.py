"""What a training run needs to go on after its driver was killed: one file, replaced after each learning step.

`RUN/checkpoints/driver.pickle` holds the driver's part as of one moment between two games; the learner keeps its own
part of the last few steps beside it, in `learner/`, by policy version. The file is read by the run that wrote it: do
not resume from a folder that you do not trust, for a pickle can run code.
"""

from __future__ import annotations

import os
import pickle
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from pipeline.trainer import Progress
from tasks.errors import ConfigError, DatasetError, boundary

FORMAT = 1
FOLDER = "checkpoints"
LEARNER_FOLDER = "learner"
_FILE = "driver.pickle"
_RUN_ID_FILE = "run_id"


@dataclass(frozen=True)
class Checkpoint:
    """The driver's part of a run between two games.

    `identity` is what must not change: base model, shape of the adapter, algorithm. `shards` are the names of those
    whose games are in the other parts; games in later shards were stored after this. `registry` is the content of
    `registry.json`. The rest are the states of the parts that they are named after.
    """

    identity: Mapping[str, Any]
    progress: Progress
    scheduler: Mapping[str, Any]
    buffer: Mapping[str, Any]
    staleness: Mapping[str, Any]
    registry: bytes
    shards: frozenset[str]


def run_id_of(run_dir: Path, *, resume: bool) -> str:
    """The identity of the run in this folder: the one it began with where it is resumed, otherwise a new one.

    Raises:
        OSError: the folder cannot be written.
    """
    path = run_dir / FOLDER / _RUN_ID_FILE
    if resume and path.exists():
        return path.read_text(encoding="utf-8").strip()
    run_id = uuid.uuid4().hex[:12]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{run_id}\n", encoding="utf-8")
    return run_id


def save_checkpoint(run_dir: Path, checkpoint: Checkpoint) -> None:
    """Replace the run's checkpoint: a reader finds the old one or the new one, also after a power cut.

    Raises:
        OSError: the folder cannot be written.
    """
    path = run_dir / FOLDER / _FILE
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{_FILE}.tmp")
    content = {field.name: getattr(checkpoint, field.name) for field in fields(checkpoint)}
    with temporary.open("wb") as file:
        pickle.dump({"format": FORMAT, **content}, file, protocol=pickle.HIGHEST_PROTOCOL)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)


def load_checkpoint(run_dir: Path) -> Checkpoint | None:
    """The run's checkpoint; None where it was killed before the first one, when nothing had been played.

    Raises:
        DatasetError: the file cannot be read, or is of another format.
    """
    path = run_dir / FOLDER / _FILE
    if not path.exists():
        return None
    with boundary() as caught:
        content = pickle.loads(path.read_bytes())
        found = content.pop("format")
    if caught.error is not None or found != FORMAT:
        raise DatasetError(
            f"{path} cannot be read as a checkpoint: {caught.summary or f'its format is {found}, expected {FORMAT}'}. "
            "Resume with the version of this package that wrote it, or begin a new run"
        )
    return Checkpoint(**content)


def check_identity(saved: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    """Refuse to go on as another run.

    Raises:
        ConfigError: names every setting that differs, with both values.
    """
    different = [
        f"{name} was {saved.get(name)!r} and is now {value!r}"
        for name, value in wanted.items()
        if saved.get(name) != value
    ]
    if different:
        raise ConfigError(
            f"the run cannot be resumed as another one: {'; '.join(different)}. Resume with the settings it began "
            "with, or begin a new run with another --run-dir"
        )
