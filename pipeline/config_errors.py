"""Wrong settings in plain words: which field, what it got, what it expects; never pydantic's own text.

`Settings` is the base of every configuration model. However it is made, from YAML or in Python, what is wrong with it
comes as one `ConfigError` with one line per problem, each starting with the dotted path of the field.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar, get_args

from annotated_types import Ge, Gt, Le, Lt
from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from tasks.errors import ConfigError
from tasks.names import nearest

T = TypeVar("T")

IMPORT_PATH = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")

_KINDS = {
    "bool_type": "true or false",
    "dict_type": "a mapping",
    "float_type": "a number",
    "finite_number": "a finite number",
    "int_type": "a whole number",
    "invalid_key": "text as a key",
    "model_type": "a mapping",
    "string_too_short": "text that is not empty",
    "string_type": "text",
    "tuple_type": "a list",
}
_BOUNDS = {"greater_than", "greater_than_equal", "less_than", "less_than_equal"}


class Settings(BaseModel):
    """Base of all configuration: frozen, unknown keys refused, no silent conversion (`"8"` is not 8, `true` not 1).

    Raises:
        ConfigError: with one line per wrong field.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False, validate_default=True)

    def __init__(self, **data: Any) -> None:
        try:
            super().__init__(**data)
        except ValidationError as error:
            raise ConfigError("\n".join(_problems(type(self), error))) from None


def name_or_path(name: str, known: Sequence[str]) -> str:
    """`name` where it is one of `known` or an import path; what is behind the path is seen when the run starts."""
    if name in known or IMPORT_PATH.fullmatch(name):
        return name
    expected = " or ".join([*map(repr, known), "package.module:Name"])
    raise ValueError(f"got {name!r}, expected {expected}.{nearest(name, known)}")


def not_empty(entries: tuple[T, ...], expected: str) -> tuple[T, ...]:
    """`entries` where there are any."""
    if not entries:
        raise ValueError(f"got an empty list, expected {expected}")
    return entries


def shown(value: object) -> str:
    """A value on one line, cut where it is long."""
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def _problems(model: type[BaseModel], error: ValidationError) -> list[str]:
    """The lines for one model. What is wrong in a nested model arrives as that model's own `ConfigError`."""
    lines: list[str] = []
    for detail in error.errors():
        path = ".".join(str(part) for part in detail["loc"])
        cause = detail.get("ctx", {}).get("error")
        if isinstance(cause, ConfigError):
            lines += [f"{path}.{line}" for line in str(cause).splitlines()]
        elif isinstance(cause, ValueError):
            lines.append(f"{path}: {cause}")
        elif detail["type"] != "default_factory_not_called":  # follows from another problem, which has its own line
            lines.append(f"{path}: {_words(model, detail)}")
    return lines


def _words(model: type[BaseModel], detail: ErrorDetails) -> str:
    """One of pydantic's error details as "got ..., expected ..."."""
    if detail["type"] == "extra_forbidden":
        valid = model.model_fields
        return f"unknown key; valid are {', '.join(valid)}.{nearest(str(detail['loc'][-1]), valid)}"
    if detail["type"] == "missing":
        return "missing; it has no default"
    field = model.model_fields[str(detail["loc"][0])]
    return f"got {shown(detail['input'])}, expected {_expected(field, detail)}"


def _expected(field: FieldInfo, detail: ErrorDetails) -> str:
    """What a field takes, with its whole range: "a whole number from 1 to 512"."""
    if detail["type"] == "literal_error":
        return str(detail.get("ctx", {})["expected"])
    if len(detail["loc"]) > 1:  # an entry of a list or a mapping
        return _KINDS.get(detail["type"], detail["msg"])
    allowed = get_args(field.annotation) or (field.annotation,)
    if detail["type"] in _BOUNDS:
        kind = "a whole number" if int in allowed else "a number"
    else:
        kind = _KINDS.get(detail["type"], detail["msg"])
    ending = " or null" if type(None) in allowed else ""
    return f"{kind}{_range(field.metadata)}{ending}"


def _range(metadata: Iterable[object]) -> str:
    """The bounds of a field in words, with a leading space; empty where it has none."""
    bounds: Mapping[type, Any] = {type(bound): bound for bound in metadata if isinstance(bound, (Ge, Gt, Le, Lt))}
    if Ge in bounds and Le in bounds:
        return f" from {bounds[Ge].ge} to {bounds[Le].le}"
    parts = [
        *(f"of at least {bound.ge}" for kind, bound in bounds.items() if kind is Ge),
        *(f"above {bound.gt}" for kind, bound in bounds.items() if kind is Gt),
        *(f"at most {bound.le}" for kind, bound in bounds.items() if kind is Le),
        *(f"below {bound.lt}" for kind, bound in bounds.items() if kind is Lt),
    ]
    return " " + " and ".join(parts) if parts else ""
