"""Games back from a run's shards, as they were stored."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tasks.contracts import Episode
from tasks.rows import episode_from_rows
from tasks.schemas import EPISODE_SCHEMA, STEP_SCHEMA
from tasks.shards import read_shard


def read_games(run_dir: Path, shard: str) -> Iterator[Episode]:
    """The games of one shard, in the order stored.

    Args:
        run_dir: the run's folder.
        shard: the shard's file name, the same for both tables.

    Raises:
        DatasetError: the shard is damaged, or a row is none of a game.
    """
    steps: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in read_shard(run_dir / "replay" / "steps" / shard, STEP_SCHEMA).to_pylist():
        steps[row["game_id"]].append(row)
    for row in read_shard(run_dir / "replay" / "episodes" / shard, EPISODE_SCHEMA).to_pylist():
        yield episode_from_rows(row, sorted(steps[row["game_id"]], key=lambda step: int(step["step_index"])))
