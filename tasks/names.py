"""Settings that name something: found in a table or imported, refused with the nearest valid name."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from tasks.errors import ConfigError

T = TypeVar("T")


def nearest(name: str, valid: Iterable[str]) -> str:
    """A hint to append to an error, such as ` Did you mean 'boxed'?`; empty when no valid name is close or holds it."""
    names = list(valid)
    close = difflib.get_close_matches(name, names, n=3)
    if not close and len(name) > 2:
        close = [longer for longer in names if name.lower() in longer.lower()][:3]
    return f" Did you mean {' or '.join(map(repr, close))}?" if close else ""


def look_up(kind: str, name: str, table: Mapping[str, T]) -> T:
    """The entry of `table`, or for `package.module:function` the user's own object.

    Raises:
        ConfigError: no such entry, module or function; names `kind`, the name and the nearest valid one.
    """
    if name in table:
        return table[name]
    if ":" in name:
        found: T = _import(kind, name)
        return found
    raise ConfigError(
        f"unknown {kind} {name!r}; valid are {', '.join(sorted(table))}, or package.module:function."
        f"{nearest(name, table)}"
    )


def _import(kind: str, path: str) -> Any:
    """The callable at `package.module:function`."""
    module_name, _, attribute = path.partition(":")
    try:
        found = getattr(importlib.import_module(module_name), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(
            f"{kind} {path!r} cannot be imported ({error}); expected package.module:function, "
            "importable where the games are played."
        ) from error
    if not callable(found):
        raise ConfigError(f"{kind} {path!r} is a {type(found).__name__}; expected a function.")
    return found
