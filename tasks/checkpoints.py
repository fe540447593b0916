"""Checkpoints of the learner on disk: one folder for each policy version, whole once its manifest is there.

`version-00000012/` holds the files and `learner.json`: their SHA-256 digests and what they were made with. A folder is
written under another name and renamed, so that a reader sees all of it or nothing.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tasks.errors import LearnerError

MANIFEST_NAME = "learner.json"
_PREFIX = "version-"


def save_checkpoint(root: Path, version: int, files: Mapping[str, bytes], about: Mapping[str, Any], keep: int) -> None:
    """Write a version's files, replacing what was there, and remove all but the newest `keep` versions up to it.

    Args:
        root: the folder of all checkpoints.
        version: the policy version.
        files: contents by name.
        about: JSON values to say in the manifest what the checkpoint was made with.
        keep: how many versions stay, this one included.
    """
    root.mkdir(parents=True, exist_ok=True)
    digests = {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}
    manifest = json.dumps({"policy_version": version, **about, "files": digests}, indent=1).encode()
    folder = _folder(root, version)
    with tempfile.TemporaryDirectory(prefix=f".{folder.name}-", dir=root) as work:
        written = Path(work) / "checkpoint"
        written.mkdir()
        for name, content in {**files, MANIFEST_NAME: manifest}.items():
            _write_synced(written / name, content)
        shutil.rmtree(folder, ignore_errors=True)
        os.replace(written, folder)
    for old in saved_versions(root):
        if old <= version - keep:
            shutil.rmtree(_folder(root, old))


def load_checkpoint(root: Path, version: int, made_with: Mapping[str, Any]) -> dict[str, bytes]:
    """The files of a version, by name.

    Args:
        root: the folder of all checkpoints.
        version: the policy version.
        made_with: values that the manifest must hold.

    Raises:
        LearnerError: there is no such checkpoint, a file of it is damaged, or it was made with other values.
    """
    folder = _folder(root, version)
    if not (folder / MANIFEST_NAME).is_file():
        raise LearnerError(
            f"there is no checkpoint of policy version {version} in {root}; there are versions {saved_versions(root)}. "
            "Name the folder of the run, or restore one of these"
        )
    manifest = json.loads((folder / MANIFEST_NAME).read_text(encoding="utf-8"))
    for name, expected in made_with.items():
        if manifest[name] != expected:
            raise LearnerError(
                f"checkpoint {folder} was made with {name} {manifest[name]!r}, expected {expected!r}: go on with the "
                "settings it was made with, or begin a new run"
            )
    files = {name: (folder / name).read_bytes() for name in manifest["files"]}
    for name, content in files.items():
        if hashlib.sha256(content).hexdigest() != manifest["files"][name]:
            raise LearnerError(
                f"{folder / name} is not what was saved: its SHA-256 differs from the one in {MANIFEST_NAME}. Restore "
                f"another version; there are {saved_versions(root)}"
            )
    return files


def saved_versions(root: Path) -> list[int]:
    """The versions that have a checkpoint, in order."""
    return sorted(int(folder.name.removeprefix(_PREFIX)) for folder in root.glob(f"{_PREFIX}*"))


def _folder(root: Path, version: int) -> Path:
    return root / f"{_PREFIX}{version:08d}"


def _write_synced(path: Path, content: bytes) -> None:
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
