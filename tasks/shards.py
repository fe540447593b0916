"""The dataset's files: episodes into Arrow tables, tables into Parquet shards published whole, shards back into tables.

`tasks.schemas` holds the columns, `pipeline.episode_store` decides when a shard closes.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
from collections.abc import Callable, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from tasks.contracts import AgentSpec, Episode, SamplingSpec
from tasks.errors import DatasetError
from tasks.json_text import to_json
from tasks.outcomes import outcomes
from tasks.schemas import EPISODE_SCHEMA, SCHEMA_VERSION, STEP_SCHEMA, TOKEN_IDS, VERSION_KEY
from tasks.token_ids import TokenIds

_SURROGATE = re.compile("[\ud800-\udfff]")
_ESCAPED = re.compile(r"[\\\ud800-\udfff]")  # a backslash too, so that an escape can be told from what was said
_ESCAPE = re.compile(r"\\(?:\\|u(d[89a-f][0-9a-f]{2}))")


def _array(values: list[Any], field: pa.Field[Any]) -> pa.Array[Any]:
    """One column, with the nulls and the type its field allows."""
    try:
        column: pa.Array[Any] = _token_ids(values) if field.type == TOKEN_IDS else pa.array(values, field.type)
    except (pa.ArrowException, OverflowError) as error:
        raise DatasetError(
            f"column {field.name!r} takes {field.type}, got a value that is not: {error}; "
            "look at what the environment or the agent put there"
        ) from error
    if column.null_count and not field.nullable:
        row = column.is_null().index(True).as_py()
        raise DatasetError(f"column {field.name!r} takes no null, got one in row {row}: give every episode a value")
    return column


def _token_ids(rows: Sequence[TokenIds]) -> pa.Array[Any]:
    """A column of token ids, from their bytes."""
    starts = pa.array([0, *accumulate(map(len, rows))], pa.int32())
    data = pa.py_buffer(b"".join(map(bytes, rows)))
    ids = pa.Array.from_buffers(pa.int32(), data.size // 4, [None, data])
    return pa.ListArray.from_arrays(starts, ids, type=TOKEN_IDS)


def _table(columns: dict[str, list[Any]], rows: int, schema: pa.Schema) -> pa.Table:
    """The table of these columns and `escaped`, which names what UTF-8 cannot hold and is kept escaped."""
    escaped: list[list[str] | None] = [None] * rows
    columns["escaped"] = escaped
    arrays = []
    for field in schema:
        values = columns[field.name]
        try:
            arrays.append(_array(values, field))
        except UnicodeEncodeError:
            kept = [_escaped(value) for value in values]
            for row, (value, text) in enumerate(zip(values, kept, strict=True)):
                if text is not value:
                    escaped[row] = [*(escaped[row] or []), field.name]
            arrays.append(_array(kept, field))
    return pa.Table.from_arrays(arrays, schema=schema)


def _escaped(value: Any) -> Any:
    """`value` itself, or escaped where it is text with half a surrogate pair, or a list with such text in it."""
    if isinstance(value, str):
        return _ESCAPED.sub(_escape, value) if _SURROGATE.search(value) else value
    if isinstance(value, list | tuple):
        kept = [_escaped(item) for item in value]
        return kept if any(new is not old for new, old in zip(kept, value, strict=True)) else value
    return value


def _escape(character: re.Match[str]) -> str:
    return "\\\\" if character[0] == "\\" else f"\\u{ord(character[0]):04x}"


def unescaped(text: str) -> str:
    """The text that an escaped one stands for: of a column that `escaped` names in its row."""
    return _ESCAPE.sub(lambda escape: "\\" if escape[1] is None else chr(int(escape[1], 16)), text)


def episodes_table(episodes: Sequence[Episode]) -> pa.Table:
    """One row per episode, in the order given, by `EPISODE_SCHEMA`.

    Raises `DatasetError` on a value of a wrong type.
    """
    specs = [episode.spec for episode in episodes]

    def by_player(value: Callable[[AgentSpec], Any]) -> list[Any]:
        """A column with a list for each game, of one value per player."""
        return [[value(agent) for agent in spec.agents] for spec in specs]

    columns: dict[str, list[Any]] = {
        "run_id": [spec.run_id for spec in specs],
        "game_id": [spec.game_id for spec in specs],
        "group_id": [spec.group_id for spec in specs],
        "group_index": [spec.group_index for spec in specs],
        "attempt": [spec.attempt for spec in specs],
        "mode": [spec.mode for spec in specs],
        "env_id": [spec.env_id for spec in specs],
        "env_kwargs": [to_json(spec.env_kwargs) for spec in specs],
        "error_allowance": [spec.error_allowance for spec in specs],
        "max_turns": [spec.max_turns for spec in specs],
        "time_limit_s": [spec.time_limit_s for spec in specs],
        "num_players": [spec.num_players for spec in specs],
        "seed": [spec.seed for spec in specs],
        "model_uid": by_player(lambda agent: agent.model.uid),
        "model_kind": by_player(lambda agent: agent.model.kind),
        "policy_version": by_player(lambda agent: agent.model.policy_version),
        "adapter_uid": by_player(lambda agent: agent.model.adapter.uid if agent.model.adapter else None),
        "adapter_path": by_player(lambda agent: agent.model.adapter.path if agent.model.adapter else None),
        "role": by_player(lambda agent: agent.role),
        "prompt_template": by_player(lambda agent: agent.prompt_template),
        "action_extraction": by_player(lambda agent: agent.action_extraction),
        "action_sampler": by_player(lambda agent: agent.action_sampler),
        "sampling": by_player(lambda agent: to_json(vars(agent.sampling)) if agent.sampling else None),
        "rewards": [episode.rewards for episode in episodes],
        "outcome": [None if e.rewards is None else outcomes(e.rewards, e.offender) for e in episodes],
        "status": [episode.status for episode in episodes],
        "reason": [episode.reason for episode in episodes],
        "offender": [episode.offender for episode in episodes],
        "turns": [len(episode.steps) for episode in episodes],
        "player_info": [episode.player_info for episode in episodes],
        "started_at": [_microseconds(episode.started_at) for episode in episodes],
        "finished_at": [_microseconds(episode.finished_at) for episode in episodes],
        "duration_s": [e.finished_at - e.started_at if e.started_at and e.finished_at else None for e in episodes],
        "worker": [episode.worker for episode in episodes],
    }
    return _table(columns, len(episodes), EPISODE_SCHEMA)


def _microseconds(unix_s: float) -> int | None:
    """Unix seconds as Arrow stores them; None for 0, which stands for never."""
    return round(unix_s * 1e6) if unix_s else None


def steps_table(episodes: Sequence[Episode]) -> pa.Table:
    """One row per step, games in the order given, by `STEP_SCHEMA`.

    Raises `DatasetError` on a value of a wrong type.
    """
    rows = [(episode, episode.spec.agents[step.player_id], step) for episode in episodes for step in episode.steps]
    specs = [episode.spec for episode, _, _ in rows]
    agents = [agent for _, agent, _ in rows]
    steps = [step for _, _, step in rows]
    choices = [step.choice for step in steps]

    def sampling(value: Callable[[SamplingSpec], Any]) -> list[Any]:
        """A column of what was sampled with; null for scripted players."""
        return [None if agent.sampling is None else value(agent.sampling) for agent in agents]

    columns: dict[str, list[Any]] = {
        "run_id": [spec.run_id for spec in specs],
        "game_id": [spec.game_id for spec in specs],
        "attempt": [spec.attempt for spec in specs],
        "env_id": [spec.env_id for spec in specs],
        "mode": [spec.mode for spec in specs],
        "step_index": [step.index for step in steps],
        "player_id": [step.player_id for step in steps],
        "role": [agent.role for agent in agents],
        "model_uid": [agent.model.uid for agent in agents],
        "policy_version": [agent.model.policy_version for agent in agents],
        "observation": [step.observation for step in steps],
        "prompt_ids": [choice.prompt_ids for choice in choices],
        "completion": [choice.completion for choice in choices],
        "completion_ids": [choice.completion_ids for choice in choices],
        "logprobs": [choice.logprobs for choice in choices],
        "logprobs_ok": [choice.logprobs_ok for choice in choices],
        "action": [choice.action for choice in choices],
        "format_ok": [choice.format_ok for choice in choices],
        "feedback": [choice.feedback or None for choice in choices],
        "illegal": [step.illegal for step in steps],
        "finish_reason": [choice.finish_reason for choice in choices],
        "action_sampler": [agent.action_sampler for agent in agents],
        "votes": [None if choice.votes is None else to_json(choice.votes) for choice in choices],
        "confidence": [choice.confidence for choice in choices],
        "entropy": [choice.entropy for choice in choices],
        "generated_tokens": [choice.generated_tokens for choice in choices],
        "cached_tokens": [choice.cached_tokens for choice in choices],
        "info": [step.info for step in steps],
        "reward": [step.reward for step in steps],
        "final_reward": [None if e.rewards is None else e.rewards[step.player_id] for e, _, step in rows],
        "temperature": sampling(lambda spec: spec.temperature),
        "top_p": sampling(lambda spec: spec.top_p),
        "top_k": sampling(lambda spec: spec.top_k),
        "max_tokens": sampling(lambda spec: spec.max_tokens),
        "token_limit": [choice.token_limit for choice in choices],
        "stop": sampling(lambda spec: spec.stop),
        "latency_s": [step.latency_s for step in steps],
    }
    return _table(columns, len(rows), STEP_SCHEMA)


_ADVICE = {
    errno.ENOSPC: "the disk is full: free space on it",
    errno.EDQUOT: "the disk quota is used up: free space within it",
    errno.EACCES: "give this user the right to write there",
    errno.EROFS: "the file system is read-only: mount it for writing",
}


def parquet_options(schema: pa.Schema) -> dict[str, Any]:
    """How `pq.write_table` writes a shard of this schema.

    Lists of numbers have no statistics, which nobody asks of them, and no dictionary: log-probabilities are all
    different, and what the token ids of one game have in common is found by the compression, unless a dictionary has
    packed them into some bits each.
    """
    columns = []
    for field in schema:
        if not pa.types.is_list(field.type):
            columns.append(field.name)
        elif pa.types.is_string(field.type.value_type):
            columns.append(f"{field.name}.list.element")
    return {"compression": "zstd", "use_dictionary": columns, "write_statistics": columns, "write_page_checksum": True}


def write_shard(table: pa.Table, path: Path) -> None:
    """Publish one shard: a reader sees all of it under `path`, or nothing, also after a power cut.

    The temporary name starts with a dot and ends in `.tmp`, so no dataset reader takes it for a shard.
    Raises `DatasetError` with the path, the system's error and what to do about it.
    """
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        with open(temporary, "wb") as file:
            pq.write_table(table, file, **parquet_options(table.schema))
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except OSError as error:
        with contextlib.suppress(OSError):  # the first error is the one to report
            temporary.unlink(missing_ok=True)
        advice = _ADVICE.get(error.errno or 0, "check that the folder exists and can be written to")
        raise DatasetError(f"cannot write shard {path}: {error} ({advice}, or give another run folder)") from error


def read_episodes(run_dir: str | Path) -> pa.Table:
    """All episodes of a run so far, in the order stored, by `EPISODE_SCHEMA`; no rows before the first shard closed.

    Raises `DatasetError` where there is no run, or a shard is damaged or of another schema version.
    """
    return _read(Path(run_dir) / "replay" / "episodes", EPISODE_SCHEMA)


def read_steps(run_dir: str | Path, game_id: str | None = None, columns: Sequence[str] | None = None) -> pa.Table:
    """All steps of a run so far, in the order stored, by `STEP_SCHEMA`; of one game, or some columns, where given.

    Raises `DatasetError` as `read_episodes` does.
    """
    return _read(Path(run_dir) / "replay" / "steps", STEP_SCHEMA, game_id, columns)


def _read(
    folder: Path, schema: pa.Schema, game_id: str | None = None, columns: Sequence[str] | None = None
) -> pa.Table:
    names = schema.names if columns is None else list(columns)
    nothing = schema.empty_table().select(names)
    return pa.concat_tables([nothing, *(read_shard(path, schema, game_id, names) for path in shard_paths(folder))])


def shard_paths(folder: Path) -> list[Path]:
    """The shards of one table, in the order written.

    Raises `DatasetError` where the folder is missing.
    """
    if not folder.is_dir():
        raise DatasetError(f"no run's dataset at {folder}: give the folder named with --run-dir, which holds replay/")
    return sorted(folder.glob("[!.]*.parquet"))


def read_shard(
    path: Path, schema: pa.Schema, game_id: str | None = None, columns: Sequence[str] | None = None
) -> pa.Table:
    """One shard by the current `schema`; of one game, or some columns, where given.

    A column that the shard's older version lacks is null. Checksums of the pages read are verified.
    Raises `DatasetError` where the shard is damaged, of a newer version, or not of this schema.
    """
    options = ds.ParquetFragmentScanOptions(page_checksum_verification=True)
    shard_format = ds.ParquetFileFormat(default_fragment_scan_options=options)
    wanted = None if game_id is None else ds.field("game_id") == game_id
    try:
        _check_schema(path, pq.read_schema(path), schema)
        dataset = ds.dataset([str(path)], schema=schema, format=shard_format)
        return dataset.to_table(columns=None if columns is None else list(columns), filter=wanted)
    except (OSError, pa.ArrowException) as error:
        raise DatasetError(
            f"shard {path} cannot be read: {error}; copy it again from where it came, or move it away "
            "together with the file of the same name beside it in replay/"
        ) from error


def _check_schema(path: Path, found: pa.Schema, schema: pa.Schema) -> None:
    version = (found.metadata or {}).get(VERSION_KEY, b"none").decode()
    if version not in map(str, range(1, SCHEMA_VERSION + 1)):
        raise DatasetError(
            f"shard {path} has schema version {version}, this release reads up to {SCHEMA_VERSION}: "
            "read it with the release that wrote it (docs/dataset.md says what a version promises)"
        )
    for field in schema:
        kind = found.field(field.name).type if field.name in found.names else None
        if kind != field.type and not (kind is None and field.nullable):
            raise DatasetError(
                f"shard {path} has {kind or 'nothing'} in column {field.name!r}, expected {field.type}: "
                "it was not written by this project, or rewritten since; copy it again from where it came"
            )
