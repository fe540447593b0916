"""A resolved configuration as MLflow's flat parameters and as one YAML text, both without secrets. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from enum import Enum
from typing import Any

import yaml

MAX_VALUE_LENGTH = 6000
"""Longest parameter value of MLflow's stores, in characters; MLflow would cut a longer one in silence."""

CONFIG_ARTIFACT = "config.yaml"
"""The artifact that holds the whole configuration, long values too."""

_MASK = "***"
_SECRET_KEY = re.compile(
    r"(?:^|[_\-. ])(?:token|passw(?:or)?d|secret|credentials?|authorization|(?:api|access|secret|private)[_\- ]?key)$",
    re.IGNORECASE,
)
# Up to the last @: a password may hold any sign, also those that should have been escaped.
_URL_LOGIN = re.compile(r"(?<=://)\S+(?=@)")


def redact(text: str) -> str:
    """`text` with the user and password of every URL in it masked: `http://me:pw@host` -> `http://***@host`."""
    return _URL_LOGIN.sub(_MASK, text)


def config_text(config: Mapping[str, Any]) -> str:
    """The configuration as YAML, secrets masked; keys keep their order."""
    return yaml.safe_dump(_plain(config), sort_keys=False, allow_unicode=True)


def flat_params(config: Mapping[str, Any]) -> dict[str, str]:
    """The configuration as flat parameters, secrets masked: `{"vllm": {"top_k": 0}}` -> `{"vllm.top_k": "0"}`.

    Lists of mappings are numbered (`environments.train.0.env_id`); other lists, numbers, booleans and None are JSON
    text; strings are themselves. A dot inside a key is escaped with a backslash, so that no two settings share a name.
    A value beyond `MAX_VALUE_LENGTH` says where the whole of it is.
    """
    params = {}
    for name, value in _leaves(_plain(config), ""):
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        if len(text) > MAX_VALUE_LENGTH:
            text = f"({len(text)} characters, in the artifact {CONFIG_ARTIFACT})"
        params[name] = text
    return params


def _plain(value: Any, key: str = "") -> Any:
    """`value` in JSON's own types, with what stands under a secret's name masked."""
    if isinstance(value, Enum):
        value = value.value
    if isinstance(value, Mapping):
        return {str(name): _plain(item, str(name)) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item, key) for item in value]
    if value is None or isinstance(value, bool):
        return value
    if _SECRET_KEY.search(key):
        return _MASK
    return value if isinstance(value, (int, float)) else redact(str(value))


def _leaves(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict) and value:
        children = [(name.replace("\\", "\\\\").replace(".", "\\."), item) for name, item in value.items()]
    elif isinstance(value, list) and any(isinstance(item, dict) for item in value):
        children = [(str(index), item) for index, item in enumerate(value)]
    else:
        yield path, value
        return
    for name, item in children:
        yield from _leaves(item, f"{path}.{name}" if path else name)
