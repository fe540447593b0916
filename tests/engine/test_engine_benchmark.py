"""The benchmark of a real engine runs, with numbers too small to say anything."""

from __future__ import annotations

from benchmarks import engine_efficiency
from tests.engine.conftest import ENGINE_MARKS

pytestmark = ENGINE_MARKS


def test_tokens_per_second_while_playing_and_offline() -> None:
    options = engine_efficiency.arguments().parse_args(["--in-flight=4", "--seconds=3", "--warm-up=0", "--prompts=8"])
    result = engine_efficiency.efficiency(options)
    assert result["prompts"] == 8
    assert result["playing_tokens_per_s"] > 0
    assert result["offline_tokens_per_s"] > 0
