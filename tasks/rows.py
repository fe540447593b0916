"""Rows of the dataset back into values: the spec of a stored game, and the whole episode.

The inverse of `tasks.shards`' tables. What a row cannot be read as is refused by its column.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import fields
from enum import StrEnum
from typing import Any, TypeVar

from tasks.contracts import (
    AdapterRef,
    AgentSpec,
    Choice,
    Episode,
    GameSpec,
    Mode,
    ModelKind,
    ModelRef,
    Role,
    SamplingSpec,
    Status,
    Step,
)
from tasks.errors import DatasetError
from tasks.shards import unescaped
from tasks.token_ids import TokenIds

_Row = Mapping[str, Any]
_Word = TypeVar("_Word", bound=StrEnum)

_BY_PLAYER = (
    "model_uid",
    "model_kind",
    "policy_version",
    "adapter_uid",
    "adapter_path",
    "role",
    "prompt_template",
    "action_extraction",
    "action_sampler",
    "sampling",
)
_NULL_FOR_SOME = frozenset({"policy_version", "adapter_uid", "adapter_path", "sampling"})


def spec_from_row(row: _Row) -> GameSpec:
    """The game as it was submitted, from nothing but its row in `episodes`.

    Raises:
        DatasetError: a value is none that the column can have, or a list is not as long as there are players.
    """
    row = _unescaped(row)
    if row["num_players"] < 1:
        raise DatasetError(f"column 'num_players' holds {row['num_players']}, expected at least 1")
    for name in _BY_PLAYER:
        _check_length(row, name)
        if name not in _NULL_FOR_SOME and None in row[name]:
            raise DatasetError(f"column {name!r} holds {row[name]}, expected a text for each player")
    plain = ("run_id", "game_id", "env_id", "num_players", "seed", "group_id", "group_index", "attempt")
    limits = ("error_allowance", "max_turns", "time_limit_s")
    return GameSpec(
        mode=_word(Mode, "mode", row["mode"]),
        agents=tuple(_agent(row, player) for player in range(row["num_players"])),
        env_kwargs=_json("env_kwargs", row["env_kwargs"]),
        **{name: row[name] for name in plain + limits},
    )


def _agent(row: _Row, player: int) -> AgentSpec:
    adapter_uid, sampling = row["adapter_uid"][player], row["sampling"][player]
    return AgentSpec(
        player_id=player,
        role=_word(Role, "role", row["role"][player]),
        model=ModelRef(
            uid=row["model_uid"][player],
            kind=_word(ModelKind, "model_kind", row["model_kind"][player]),
            policy_version=row["policy_version"][player],
            adapter=None if adapter_uid is None else AdapterRef(adapter_uid, row["adapter_path"][player]),
        ),
        prompt_template=row["prompt_template"][player],
        action_extraction=row["action_extraction"][player],
        action_sampler=row["action_sampler"][player],
        sampling=None if sampling is None else _sampling(sampling),
    )


def _sampling(text: str) -> SamplingSpec:
    values = _json("sampling", text)
    try:
        return SamplingSpec(**{**values, "stop": tuple(values["stop"])})
    except (KeyError, TypeError) as error:
        expected = ", ".join(field.name for field in fields(SamplingSpec))
        raise DatasetError(f"column 'sampling' holds {text[:80]!r}, expected the keys {expected}") from error


def episode_from_rows(row: _Row, steps: Sequence[_Row]) -> Episode:
    """The episode that was stored, to the microsecond.

    Args:
        row: its row in `episodes`.
        steps: its rows in `steps`, in the game's order.

    Raises:
        DatasetError: as `spec_from_row`; also where rewards or outcomes are not as many as there are players.
    """
    spec = spec_from_row(row)
    row = _unescaped(row)
    for name in ("rewards", "outcome"):
        if row[name] is not None:
            _check_length(row, name)
    if row["player_info"]:
        _check_length(row, "player_info")
    return Episode(
        spec=spec,
        status=_word(Status, "status", row["status"]),
        steps=tuple(_step(_unescaped(step)) for step in steps),
        rewards=None if row["rewards"] is None else tuple(row["rewards"]),
        offender=row["offender"],
        reason=row["reason"],
        player_info=tuple(row["player_info"]),
        started_at=_unix_s(row["started_at"]),
        finished_at=_unix_s(row["finished_at"]),
        worker=row["worker"],
    )


def _step(row: _Row) -> Step:
    choice = Choice(
        action=row["action"],
        completion=row["completion"],
        format_ok=row["format_ok"],
        feedback=row["feedback"] or "",
        prompt_ids=TokenIds(row["prompt_ids"]),
        completion_ids=TokenIds(row["completion_ids"]),
        logprobs=tuple(row["logprobs"]),
        finish_reason=row["finish_reason"],
        token_limit=row["token_limit"],
        generated_tokens=row["generated_tokens"],
        cached_tokens=row["cached_tokens"],
        votes=None if row["votes"] is None else _json("votes", row["votes"]),
        confidence=row["confidence"],
        entropy=row["entropy"],
    )
    return Step(
        index=row["step_index"],
        player_id=row["player_id"],
        observation=row["observation"],
        choice=choice,
        illegal=row["illegal"],
        info=row["info"],
        reward=row["reward"],
        latency_s=row["latency_s"],
    )


def _unescaped(row: _Row) -> _Row:
    """The row with its texts as they were before UTF-8 could not hold them."""
    columns = row["escaped"] or ()
    unknown = [name for name in columns if name not in row]
    if unknown:
        raise DatasetError(f"column 'escaped' holds {columns}, of which {unknown[0]!r} is no column")
    return {**row, **{name: _unescaped_value(row[name]) for name in columns}} if columns else row


def _unescaped_value(value: Any) -> Any:
    if isinstance(value, list):
        return [_unescaped_value(item) for item in value]
    return unescaped(value) if isinstance(value, str) else value


def _unix_s(time: Any) -> float:
    """A timestamp as Unix seconds; 0 for null, which stands for never."""
    return 0.0 if time is None else float(time.timestamp())


def _word(kind: type[_Word], column: str, value: str) -> _Word:
    if value not in set(kind):
        raise DatasetError(f"column {column!r} holds {value!r}, expected one of {', '.join(kind)}")
    return kind(value)


def _json(column: str, text: str) -> Any:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise DatasetError(f"column {column!r} holds {text[:80]!r}, expected a JSON object: {error}") from error
    if not isinstance(value, dict):
        raise DatasetError(f"column {column!r} holds {text[:80]!r}, expected a JSON object")
    return value


def _check_length(row: _Row, name: str) -> None:
    found, players = len(row[name]), row["num_players"]
    if found != players:
        raise DatasetError(f"column {name!r} holds {found} values for {players} players, expected one each")
