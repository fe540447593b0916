"""Free-form values as JSON text: what an environment or an agent says, in a form that every reader can parse."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from tasks.errors import boundary

_ENCODER = json.JSONEncoder(sort_keys=True, allow_nan=False)


def to_json(value: object) -> str:
    """JSON text of any value: the same text for equal values, in ASCII, never an error.

    NaN and infinities become null; keys become text and are sorted; sets become sorted lists; NumPy values become
    plain ones; what JSON has no form for becomes its `str`, without memory addresses. A value that cannot be walked
    at all (cyclic, or its own `str` raises) becomes one string that names its type and the error.
    """
    with boundary() as caught:
        text = _ENCODER.encode(_plain(value))
    if caught.error is not None:
        text = json.dumps(f"<{type(value).__name__}: {type(caught.error).__name__}>")
    return text


def _plain(value: object) -> Any:
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            return value if math.isfinite(value) else None
        case np.ndarray() | np.generic():
            return _plain(value.tolist())
        case Mapping():
            return {key if isinstance(key, str) else _text(key): _plain(item) for key, item in value.items()}
        case list() | tuple():
            return [_plain(item) for item in value]
        case set() | frozenset():
            return sorted((_plain(item) for item in value), key=to_json)
        case _:
            return _text(value)


def _text(value: object) -> str:
    """`str`, without the memory address that the default one ends in: it would differ from run to run."""
    return re.sub(r" at 0x[0-9a-fA-F]+", "", str(value))
