"""Finds the class that a config names: one of ours by its short name, or a user's as `package.module:Name`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar, cast

from pipeline.config import import_object
from tasks.errors import ConfigError
from tasks.names import nearest

T = TypeVar("T")


def find_class(field: str, name: str, known: Mapping[str, type[T]], base: type) -> type[T]:
    """The class behind `name`.

    Args:
        field: the setting the name comes from, for the message.
        known: our classes by short name.
        base: what a user's class must be a subclass of.

    Raises:
        ConfigError: no such short name, nothing to import under that path, or no subclass of `base`.
    """
    if name in known:
        return known[name]
    if ":" not in name:
        raise ConfigError(
            f"{field} is {name!r}: expected one of {', '.join(known)} or package.module:Name.{nearest(name, known)}"
        )
    found = import_object(name)
    if not (isinstance(found, type) and issubclass(found, base)):
        raise ConfigError(f"{field} {name!r} is {found!r}: expected a subclass of {base.__module__}:{base.__name__}")
    return cast("type[T]", found)
