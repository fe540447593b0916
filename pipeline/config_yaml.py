"""YAML in and out, and `--set key.path=value`: plain mappings and lists, before anything is validated."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml
from yaml.constructor import ConstructorError

from pipeline.config_errors import shown
from tasks.errors import ConfigError


class _Loader(yaml.SafeLoader):
    """YAML as people mean it: a key stands once and is text, and `1e-5` is a number (see below)."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """A mapping. YAML itself would keep the last of two equal keys, and read `on:` as the key true."""
        written = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
        mapping = super().construct_mapping(node, deep=deep)
        for key in mapping:
            if not isinstance(key, str):
                raise ConstructorError(None, None, f"the key {key!r} is not text: quote it", node.start_mark)
            if written.count(key) > 1:
                raise ConstructorError(None, None, f"the key {key!r} stands twice", node.start_mark)
        return mapping


class _Dumper(yaml.SafeDumper):
    """Writes what `_Loader` reads: text that looks like `1e-5` is quoted."""


# YAML 1.1 takes 1e-5 for text and only 1.0e-5 for a number.
for _side in (_Loader, _Dumper):
    _side.add_implicit_resolver(
        "tag:yaml.org,2002:float", re.compile(r"^[-+]?[0-9][0-9_]*(\.[0-9_]*)?[eE][-+]?[0-9]+$"), list("-+0123456789")
    )


def read_yaml(path: Path) -> dict[str, Any]:
    """The mapping in a YAML file; an empty file is an empty mapping.

    Raises:
        ConfigError: no such file, not YAML (with the line), or not a mapping.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"{path}: cannot be read ({error}); expected a YAML file with the settings of a run"
        ) from None
    data = _parse(text, str(path))
    if data is None:
        return {}
    if not isinstance(data, dict):
        raise ConfigError(f"{path}: holds {shown(data)}, expected a mapping such as `name: demo`")
    return data


def to_yaml(data: dict[str, Any]) -> str:
    """A mapping as YAML text, in its own order."""
    # Other letters than ASCII are escaped, because PyYAML does not read back all that it writes as they are.
    return yaml.dump(data, Dumper=_Dumper, sort_keys=False, allow_unicode=False)


def override(data: dict[str, Any], settings: Sequence[str]) -> None:
    """Change `data` in place by settings such as `collect.num_train_workers=4` or `environments.train.0.env_id=X`.

    Values are YAML. Missing mappings, and those that are null, are made on the way; entries of lists must exist.

    Raises:
        ConfigError: a setting is not `key.path=value`, its value is not YAML, or its path leads into a value that has
            no such entry. Names that no setting has are refused when the whole is validated.
    """
    for setting in settings:
        path, equals, text = setting.partition("=")
        keys = path.split(".")
        if not equals or not all(keys):
            raise ConfigError(f"--set {setting}: expected key.path=value, such as collect.num_train_workers=4")
        _assign(data, keys, _parse(text, f"--set {setting}"), setting)


def _assign(data: dict[str, Any], keys: list[str], value: object, setting: str) -> None:
    """Walk to the last key but one, then set the last."""
    at: Any = data
    for depth, key in enumerate(keys):
        index = _entry(at, key, ".".join(keys[:depth]), setting)
        if depth == len(keys) - 1:
            at[index] = value
        else:
            if isinstance(at, dict) and at.get(index) is None:
                at[index] = {}
            at = at[index]


def _entry(container: object, key: str, where: str, setting: str) -> str | int:
    """`key` as an index into `container`, which `where` names."""
    if isinstance(container, dict):
        return key
    if not isinstance(container, list):
        raise ConfigError(f"--set {setting}: {where} is {shown(container)}, which has no {key!r} in it")
    if not key.isdecimal() or int(key) >= len(container):
        raise ConfigError(
            f"--set {setting}: {where} is a list of {len(container)}, got {key!r}, expected an index from 0 to "
            f"{len(container) - 1}"
        )
    return int(key)


def _parse(text: str, source: str) -> Any:
    """YAML text as Python values; `source` is named when it is not YAML."""
    try:
        return yaml.load(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        line = f", line {error.problem_mark.line + 1}" if error.problem_mark else ""
        raise ConfigError(f"{source}{line}: not valid YAML: {error.problem}") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"{source}: not valid YAML: {' '.join(str(error).split())}") from None
