"""Why games failed, in few words: one kind for each error, however its message reads. Pure."""

from __future__ import annotations

import re

OTHER = "other"
WORKER_LEFT = "worker_left"

# Reasons begin with the error's type, as `tasks.errors.Caught.summary` has it; its message may hold anything.
_ERROR_TYPE = re.compile(r"([A-Za-z_][A-Za-z0-9_]{0,59}):")
_WORKER_LEFT = re.compile(r"worker \S+ left")


def failure_kind(reason: str) -> str:
    """The kind of failure that a failed game's `reason` tells of.

    Returns:
        The error's type (`OpponentError`, `EnvironmentFault`, `KeyError`), `worker_left` for a game whose workers all
        went away, `other` for what is neither.
    """
    if _WORKER_LEFT.match(reason):
        return WORKER_LEFT
    found = _ERROR_TYPE.match(reason)
    return OTHER if found is None else found[1]
