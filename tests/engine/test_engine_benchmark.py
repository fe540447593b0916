"""The benchmark of a real engine runs, with numbers too small to say anything."""

from __future__ import annotations

import pytest

from benchmarks import engine_efficiency
from tests.engine.conftest import ENGINE_MARKS

pytestmark = ENGINE_MARKS


def test_tokens_per_second_while_playing_and_offline() -> None:
    command = ["--in-flight=4", "--batch=2", "--seconds=4", "--warm-up=0", "--rounds=2"]
    result = engine_efficiency.efficiency(engine_efficiency.arguments().parse_args(command))
    assert result["prompts"] > 0
    assert result["playing_tokens_per_s"] > 0
    assert result["offline_tokens_per_s"] > 0
    assert result["prefix_hit_share"] == pytest.approx(result["offline_prefix_hit_share"], abs=0.05)
