"""What shards cost: write and read rates and bytes per step beside CSV and JSON lines, and what games pay for them.

`python -m benchmarks.shards --steps 20000 --json` prints one JSON line; `--check settings` compares compressions and
row groups, `--check beside-games` writes 100,000 steps while games go on.
"""

from __future__ import annotations

import argparse
import csv
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.measure import MEGABYTE, Result, add_repetition, between, medians, run_check
from benchmarks.stub_games import KeptGames, Window, after_turns, collect, local_cluster, play_without_dask, vllm_config
from pipeline.episode_store import EpisodeStore
from tasks.contracts import Episode
from tasks.schemas import STEP_SCHEMA
from tasks.shards import parquet_options, read_shard, read_steps, steps_table

EPISODES_PER_SHARD = 256
COMPRESSIONS = (("zstd", 1), ("zstd", 3), ("zstd", 9), ("snappy", None), ("lz4", None), ("none", None))
ROW_GROUPS = (500, 2_000, 1_048_576)


def played(steps: int) -> list[Episode]:
    """Episodes of Kuhn Poker with at least so many steps; their texts are real, their ids of real length."""
    kept = KeptGames([after_turns(steps)])
    play_without_dask(vllm_config(64, 0.0), 64, kept)
    return kept.episodes[0]


def formats(options: argparse.Namespace) -> Result:
    """Shards as the store writes them, CSV and JSON lines: MB of content per second and bytes per step.

    The content is the same for all: the size in memory of the Arrow columns, so that rates can be compared. Every write
    ends on the disk, every read gives all columns back as a table or as rows.
    """
    episodes = played(options.steps)
    batches = [episodes[at : at + EPISODES_PER_SHARD] for at in range(0, len(episodes), EPISODES_PER_SHARD)]
    rows = [row for batch in batches for row in steps_table(batch).to_pylist()]
    content_mb = sum(steps_table(batch).nbytes for batch in batches) / MEGABYTE
    result: Result = {"steps": len(rows), "content_mb": content_mb}
    with tempfile.TemporaryDirectory(prefix="benchmark-") as folder:
        run_dir = Path(folder)
        ways: dict[str, tuple[Path, Callable[[], Any], Callable[[], Any]]] = {
            "parquet": (run_dir / "replay" / "steps", lambda: _store(run_dir, episodes), lambda: read_steps(run_dir)),
            "csv": (run_dir / "steps.csv", lambda: _write_csv(run_dir, rows), lambda: _read_csv(run_dir)),
            "jsonl": (run_dir / "steps.jsonl", lambda: _write_jsonl(run_dir, rows), lambda: _read_jsonl(run_dir)),
        }
        for name, (path, write, read) in ways.items():
            result[f"{name}_write_mb_s"] = content_mb / _seconds(write)
            result[f"{name}_read_mb_s"] = content_mb / _seconds(read)
            result[f"{name}_bytes_per_step"] = _size(path) / len(rows)
        ids = ["prompt_ids", "completion_ids", "logprobs"]
        result["parquet_learner_columns_s"] = _seconds(lambda: read_steps(run_dir, columns=ids))
        result["jsonl_learner_columns_s"] = _seconds(
            lambda: [[row[key] for key in ids] for row in _read_jsonl(run_dir)]
        )
    return result


def _store(run_dir: Path, episodes: list[Episode]) -> None:
    with EpisodeStore(run_dir, EPISODES_PER_SHARD) as store:
        for episode in episodes:
            store.add(episode)


def _write_csv(run_dir: Path, rows: list[dict[str, Any]]) -> None:
    with (run_dir / "steps.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, STEP_SCHEMA.names)
        writer.writeheader()
        for row in rows:
            lists = {key: json.dumps(value) for key, value in row.items() if isinstance(value, list)}
            writer.writerow({**row, **lists})


def _read_csv(run_dir: Path) -> list[dict[str, Any]]:
    lists = [field.name for field in STEP_SCHEMA if pa.types.is_list(field.type)]
    with (run_dir / "steps.csv").open(newline="", encoding="utf-8") as file:
        rows: list[dict[str, Any]] = list(csv.DictReader(file))
    for row in rows:
        for name in lists:
            row[name] = json.loads(row[name]) if row[name] else None
    return rows


def _write_jsonl(run_dir: Path, rows: list[dict[str, Any]]) -> None:
    with (run_dir / "steps.jsonl").open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)


def _read_jsonl(run_dir: Path) -> list[dict[str, Any]]:
    with (run_dir / "steps.jsonl").open(encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def settings(options: argparse.Namespace) -> Result:
    """One shard's steps under each compression, row groups of several sizes and with dictionaries for all columns.

    Each differs from what is in use (`tasks.shards.parquet_options`) in that one thing.
    """
    episodes = played(options.steps)[:EPISODES_PER_SHARD]
    table = steps_table(episodes)
    result: Result = {"steps": table.num_rows}
    with tempfile.TemporaryDirectory(prefix="benchmark-") as folder:
        path = Path(folder) / "steps.parquet"
        for name, level in COMPRESSIONS:
            label = name if level is None else f"{name}{level}"
            _try_setting(result, label, table, path, compression=name, compression_level=level)
        for rows in ROW_GROUPS:
            _try_setting(result, f"groups_of_{rows}", table, path, row_group_size=rows)
        _try_setting(result, "all_dictionaries", table, path, use_dictionary=True)
    return result


def _try_setting(result: Result, label: str, table: pa.Table, path: Path, **arguments: Any) -> None:
    """Write, read, read one game; best of five, for they take milliseconds."""
    options = parquet_options(table.schema) | arguments
    write = min(_seconds(lambda: pq.write_table(table, path, **options)) for _ in range(5))
    game = table["game_id"][0].as_py()
    result[f"{label}_write_ms"] = 1000 * write
    result[f"{label}_read_ms"] = 1000 * min(_seconds(lambda: read_shard(path, STEP_SCHEMA)) for _ in range(5))
    result[f"{label}_game_ms"] = 1000 * min(_seconds(lambda: read_shard(path, STEP_SCHEMA, game)) for _ in range(5))
    result[f"{label}_bytes_per_step"] = _size(path) / table.num_rows


def beside_games(options: argparse.Namespace) -> Result:
    """Turns per second and CPU of games in flight while `steps` steps come in, with shards and without.

    Each way plays half of the steps twice, without, with, with, without, so that a machine whose speed drifts favours
    neither.
    """
    n, half = options.in_flight, options.steps // 2
    rates: dict[bool, list[Result]] = {False: [], True: []}
    with local_cluster(n) as client:
        for shards in (False, True, True, False):
            window = Window([after_turns(bound) for bound in (half // 5, half // 5 + half)])
            collect(client, vllm_config(n, options.latency_ms / 1000), n, window, shards=shards)
            rates[shards].append(between(*window.marks))
    without, beside = medians(rates[False]), medians(rates[True])
    return {
        "in_flight": n,
        "steps": options.steps,
        "turns_per_s_without": without["turns_per_s"],
        "turns_per_s_with": beside["turns_per_s"],
        "share_kept": beside["turns_per_s"] / without["turns_per_s"],
        "cpu_ms_per_turn_without": without["cpu_ms_per_turn"],
        "cpu_ms_per_turn_with": beside["cpu_ms_per_turn"],
        "cpu_share": beside["cpu_ms_per_turn"] / without["cpu_ms_per_turn"],
    }


def _seconds(work: Callable[[], Any]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def _size(path: Path) -> int:
    """Bytes of a file, or of the shards in a folder."""
    return sum(file.stat().st_size for file in (path.glob("*.parquet") if path.is_dir() else [path]))


CHECKS: dict[str, Callable[[argparse.Namespace], Result]] = {
    "formats": formats,
    "settings": settings,
    "beside-games": beside_games,
}


def arguments() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", choices=CHECKS, default="formats")
    parser.add_argument("--steps", type=int, default=20_000, help="steps to write; `beside-games` is meant for 100,000")
    parser.add_argument("--in-flight", type=int, default=64, help="games executing at once in `beside-games`")
    parser.add_argument("--latency-ms", type=float, default=50.0, help="the stub engine's time for a request there")
    add_repetition(parser)
    return parser


if __name__ == "__main__":
    run_check("benchmarks.shards", CHECKS, arguments())
