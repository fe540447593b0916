"""The manifest of a published adapter: what it is made of and where it comes from. Written last, so it says complete.

A version of the policy is a folder with `adapter_config.json`, `adapter_model.safetensors` and `manifest.json`, a JSON
object with the fields of `Manifest` and `format`, which grows when readers would notice a change.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from tasks.adapter_files import CONFIG_NAME, WEIGHTS_NAME, content_digest, digest_of, read_json
from tasks.contracts import AdapterRef
from tasks.errors import AdapterError

MANIFEST_NAME = "manifest.json"
FORMAT = 1


@dataclass(frozen=True)
class Manifest:
    """Where one set of weights comes from.

    `policy_version` is the version it was published as, `parent` the uid of the one it was trained from, by learning
    step `step` of `algorithm`. `base_fingerprint` is that of `tasks.base_model`, None where the base's files were out
    of reach. `files` has the hex SHA-256 of each file by name.
    """

    uid: str
    policy_version: int
    parent: str
    step: int
    algorithm: str
    base_model: str
    base_fingerprint: str | None
    files: Mapping[str, str]

    @property
    def digest(self) -> str:
        """What `content_digest` of the folder gives when the files are as they were published."""
        return digest_of(self.files)


def file_digests(files: Mapping[str, bytes]) -> dict[str, str]:
    """The hex SHA-256 of an adapter's files by name.

    Raises:
        AdapterError: they are not the two files of an adapter.
    """
    if set(files) != {CONFIG_NAME, WEIGHTS_NAME}:
        raise AdapterError(
            f"an adapter was handed over as {sorted(files)}; expected {CONFIG_NAME} and {WEIGHTS_NAME}, as PEFT's "
            "save_pretrained writes them."
        )
    return {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Put the manifest into `folder`, and everything in it on the disk."""
    text = json.dumps({"format": FORMAT, **asdict(manifest)}, indent=1)
    (folder / MANIFEST_NAME).write_text(text + "\n", encoding="utf-8")
    for path in (*folder.iterdir(), folder):
        _sync(path)


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a published adapter.

    Raises:
        AdapterError: there is none, so the adapter is not complete; or it is of another format.
    """
    path = folder / MANIFEST_NAME
    if not path.is_file():
        raise AdapterError(
            f"{folder} has no {MANIFEST_NAME}, which is written last: the adapter is not complete, or is none that "
            "was published. Wait for it, or use another version."
        )
    content = read_json(path)
    names = {field.name for field in fields(Manifest)}
    if content.pop("format", None) != FORMAT or content.keys() != names:
        raise AdapterError(
            f"{path} holds {sorted(content)}; expected a manifest of format {FORMAT} with {sorted(names)}. Use the "
            "version of this package that wrote it."
        )
    return Manifest(**content)


def check_content(adapter: AdapterRef, folder: Path) -> None:
    """Refuse files that are not the ones the adapter was published with; one whose digest is not known passes.

    Args:
        adapter: what was asked for.
        folder: where its files are here.

    Raises:
        AdapterError: the files are missing, cut off, still being written, or another's.
    """
    if not adapter.digest:
        return
    found = content_digest(folder)
    if found != adapter.digest:
        sizes = {name: (folder / name).stat().st_size for name in (CONFIG_NAME, WEIGHTS_NAME)}
        raise AdapterError(
            f"the files of adapter {adapter.uid} in {folder} ({sizes} bytes) have the digest {found[:12]}, expected "
            f"{adapter.digest[:12]}, with which it was published. They are cut off, still being written, or another "
            "adapter's: copy them again."
        )


def check_base(adapter: AdapterRef, folder: Path, fingerprint: str | None) -> None:
    """Refuse an adapter whose manifest says that it was trained on another base model.

    Args:
        adapter: what was asked for.
        folder: where its files are here; without a manifest it passes.
        fingerprint: that of the base model it shall run on, None where it is not known.

    Raises:
        AdapterError: it was made for other weights.
    """
    if fingerprint is None or not (folder / MANIFEST_NAME).is_file():
        return
    made_for = read_manifest(folder)
    if made_for.base_fingerprint not in (None, fingerprint):
        raise AdapterError(
            f"adapter {adapter.uid} was trained on the base model {made_for.base_model!r} (fingerprint "
            f"{str(made_for.base_fingerprint)[:12]}), but this engine runs one with {fingerprint[:12]}, whose weights "
            "are others. Set vllm.model_name to the adapter's own base."
        )


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
