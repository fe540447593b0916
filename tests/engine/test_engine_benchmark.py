"""The benchmark of a real engine runs, with numbers too small to say anything."""

from __future__ import annotations

import pytest

from benchmarks import engine_efficiency
from tasks.contracts import Choice, Episode, GameSpec, Mode, Status, Step
from tests.engine.conftest import ENGINE_MARKS

pytestmark = ENGINE_MARKS


def test_tokens_per_second_while_playing_and_offline() -> None:
    command = ["--in-flight=4", "--batch=2", "--seconds=4", "--warm-up=0", "--rounds=2"]
    result = engine_efficiency.efficiency(engine_efficiency.arguments().parse_args(command))
    assert result["prompts"] > 0
    assert result["playing_tokens_per_s"] > 0
    assert result["offline_tokens_per_s"] > 0
    assert result["prefix_hit_share"] == pytest.approx(result["offline_prefix_hit_share"], abs=0.05)


def test_prompts_of_games_that_were_played_at_once_are_in_the_order_they_were_asked() -> None:
    early = _episode(started_at=0.0, latencies_s=(3.0, 1.0), prompts=((1,), (3,)))
    late = _episode(started_at=1.0, latencies_s=(2.5, 1.0), prompts=((2,), (4,)))
    assert engine_efficiency.prompts_in_order([late, early]) == [(1,), (2,), (3,), (4,)]


def _episode(started_at: float, latencies_s: tuple[float, ...], prompts: tuple[tuple[int, ...], ...]) -> Episode:
    steps = tuple(
        Step(at, 0, "", Choice("", "", format_ok=True, prompt_ids=prompt), illegal=False, latency_s=latency_s)
        for at, (latency_s, prompt) in enumerate(zip(latencies_s, prompts, strict=True))
    )
    spec = GameSpec("run", "game", Mode.TRAIN, "KuhnPoker-v0-train", 1, 0, agents=())
    return Episode(spec, Status.COMPLETED, steps, started_at=started_at)
