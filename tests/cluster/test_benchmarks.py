"""Each benchmark runs, with numbers too small to say anything."""

from __future__ import annotations

import math
from types import ModuleType

import pytest

from benchmarks import orchestration, shards, verify
from benchmarks.measure import Result, repeated

pytestmark = pytest.mark.cluster

QUICK = ("--in-flight=8", "--latency-ms=5", "--seconds=0.5", "--warm-up=0.2")


def result_of(benchmark: ModuleType, check: str, *arguments: str) -> Result:
    options = benchmark.arguments().parse_args([f"--check={check}", *arguments])
    result: Result = benchmark.CHECKS[check](options)
    assert all(math.isfinite(value) for value in result.values() if isinstance(value, float))
    return result


def test_the_steady_rate_has_everything_that_the_table_shows() -> None:
    result = result_of(orchestration, "steady", *QUICK)
    rates = ("turns_per_s", "games_per_s", "ideal_share", "no_dask_share", "cpu_ms_per_turn", "rss_mb")
    assert all(result[name] > 0 for name in rates)


def test_many_games_are_compared_with_the_first_of_a_fresh_run() -> None:
    result = result_of(orchestration, "flat", *QUICK, "--games=60")
    assert result["games"] == 60
    assert min(result["cpu_ratio"], result["time_ratio"], result["memory_ratio"]) > 0


def test_every_engine_has_games_the_slow_one_too() -> None:
    result = result_of(orchestration, "level", *QUICK)
    assert min(result["games_least"], result["slow_games"]) > 0


def test_the_first_game_comes_in() -> None:
    assert result_of(orchestration, "first-game", *QUICK)["first_game_s"] > 0


def test_all_formats_hold_the_same_steps() -> None:
    result = result_of(shards, "formats", "--steps=100")
    assert result["steps"] >= 100
    assert result["parquet_bytes_per_step"] < result["csv_bytes_per_step"]


def test_settings_of_a_shard_are_compared() -> None:
    assert result_of(shards, "settings", "--steps=100")["zstd1_write_ms"] > 0


def test_games_go_on_beside_shards() -> None:
    result = result_of(shards, "beside-games", "--steps=100", "--in-flight=8", "--latency-ms=5")
    assert result["share_kept"] > 0


def test_every_step_of_a_run_is_verified() -> None:
    result = result_of(verify, "kuhn", "--games=3", "--passes=2")
    assert result["steps"] >= 6
    assert min(result["steps_per_cpu_s"], result["steps_per_s"], result["times_play"]) > 0


def test_repeated_runs_give_medians_and_say_how_many(capsys: pytest.CaptureFixture[str]) -> None:
    result = repeated("benchmarks.shards", ["--check=settings", "--steps=50"], 2)
    assert capsys.readouterr().err.count('{"steps": ') == 2
    assert result["repeats"] == 2
    assert result["steps"] >= 50
