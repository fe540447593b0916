"""Versions of the policy on disk: each a new folder `RUN/adapters/UID/`, there as a whole or not at all."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from tasks.adapter_manifest import Manifest, read_manifest, write_manifest
from tasks.contracts import AdapterRef
from tasks.errors import AdapterError


def write_version(
    root: Path, manifest: Manifest, files: Mapping[str, bytes], check: Callable[[Path], None]
) -> AdapterRef:
    """Write a new version under `root` and say what it is called.

    It is called `manifest.uid`. Where a run that was killed has left a version of that name, that one is taken if it is
    the same; otherwise the new one is called `UID.2` (then `.3`): games may have been played with the old one, and a
    uid names one set of weights for ever.

    Args:
        root: the folder of all versions, made if missing.
        manifest: of `files`.
        files: content by name.
        check: called with the folder before the version is there; what it raises leaves nothing behind.

    Raises:
        AdapterError: from `check`.
        OSError: the disk is full, or the folder cannot be written.
    """
    root.mkdir(parents=True, exist_ok=True)
    uid = manifest.uid
    number = 1
    while (root / uid).exists():
        if _is_same(root / uid, manifest):
            return AdapterRef(uid, str(root / uid), manifest.digest)
        number += 1
        uid = f"{manifest.uid}.{number}"
    partial = root / f".{uid}.partial"
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    with ExitStack() as undo:
        undo.callback(shutil.rmtree, partial, ignore_errors=True)
        for name, content in files.items():
            (partial / name).write_bytes(content)
        check(partial)
        write_manifest(partial, replace(manifest, uid=uid))
        os.rename(partial, root / uid)
    return AdapterRef(uid, str(root / uid), manifest.digest)


def _is_same(folder: Path, manifest: Manifest) -> bool:
    try:
        known = read_manifest(folder)
    except AdapterError:
        return False
    return (known.digest, known.parent) == (manifest.digest, manifest.parent)
