"""Names that MLflow takes, one for one: what a metric or parameter is called in the run.

Pure, and the same in every process: the name of a metric never depends on what was logged before it.
"""

from __future__ import annotations

import hashlib
import re
from functools import lru_cache

MAX_LENGTH = 250
"""Longest metric or parameter name of MLflow's stores, in characters."""

_HASH_DIGITS = 12
# MLflow's alphabet also has the colon (not on Windows) and every letter of Unicode (not in every database).
_ALLOWED = re.compile(r"[A-Za-z0-9_\-./ ]+")
_FORBIDDEN = re.compile(r"[^A-Za-z0-9_\-./ ]")
_HASHED = re.compile(rf".*-[0-9a-f]{{{_HASH_DIGITS}}}")


@lru_cache(maxsize=10_000)
def clean_name(raw: str) -> str:
    """The name under which `raw` is logged; two different raw names never get the same one.

    A name that MLflow takes as it is stays as it is. Any other keeps its readable part, with `_` for what MLflow
    refuses, and gets 12 hexadecimal digits of its SHA-256: `win[0]` becomes `win_0_-` and the digits. So that no
    unchanged name can meet a changed one, a name that already ends in such digits gets its own digits too.

    Besides its alphabet MLflow refuses names longer than 250 characters, and names that are not plain relative paths
    (`a//b`, `../a`, `/a`), because some stores keep a metric as a file.
    """
    if _taken_as_it_is(raw):
        return raw
    digits = hashlib.sha256(raw.encode("utf-8", "surrogatepass")).hexdigest()[:_HASH_DIGITS]
    parts = (part.strip(" ") for part in _FORBIDDEN.sub("_", raw).split("/"))
    readable = "/".join(part for part in parts if part.strip("."))
    return f"{readable.lstrip('.')[: MAX_LENGTH - _HASH_DIGITS - 1]}-{digits}"


def _taken_as_it_is(raw: str) -> bool:
    parts = raw.split("/")
    return (
        len(raw) <= MAX_LENGTH
        and _ALLOWED.fullmatch(raw) is not None
        and _HASHED.fullmatch(raw) is None
        and not raw.startswith("..")
        and all(part and part == part.strip(" ") and part not in (".", "..") for part in parts)
    )
