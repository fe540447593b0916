"""What games and engines come to: hand-computed windows."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from pipeline.metric_window import MetricWindow, RunMetrics
from tasks.contracts import EngineState, Episode, Mode, Status
from tests.unit.metric_games import POLICY, RANDOM, engine, game, scripted, step


def metrics_of(*episodes: Episode) -> dict[str, float]:
    """The only window of a run of these games, two seconds long."""
    metrics = RunMetrics(at=10.0)
    for episode in episodes:
        metrics.add_episode(episode)
    return metrics.close(at=12.0)


def test_a_mean_is_of_its_window_alone() -> None:
    window = MetricWindow()
    window.mean("a", 1.0)
    window.mean("a", 5.0, n=2)
    assert window.close() == {"a": 2.0}
    window.mean("a", 7.0)
    assert window.close() == {"a": 7.0}
    assert window.close() == {}


def test_a_total_runs_on_and_is_reported_when_it_grew() -> None:
    window = MetricWindow()
    window.count("games")
    assert window.close() == {"games": 1.0}
    assert window.close() == {}
    window.count("games", 2)
    assert window.close() == {"games": 3.0}


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, None, "much", 10**400, 1e301])
def test_what_is_no_finite_number_is_left_out_and_counted(value: Any) -> None:
    window = MetricWindow()
    window.mean("a", 2.0)
    window.mean("a", value)
    window.latest("b", 3.0)
    window.latest("b", value)
    window.mean("c", value)
    assert window.close() == {"a": 2.0, "b": 3.0, "nonfinite/a": 1.0, "nonfinite/b": 1.0, "nonfinite/c": 1.0}


def test_a_mirror_game_by_player() -> None:
    values = metrics_of(game(), game(rewards=(0.0, 0.0)))
    assert values == {
        "train/games_per_s": 1.0,
        "train/Kuhn/games": 2.0,
        "train/Kuhn/status/completed": 2.0,
        "train/Kuhn/turns": 2.0,
        "train/Kuhn/reward/player_0": 0.5,
        "train/Kuhn/reward/player_1": -0.5,
        "train/Kuhn/reward/actor": 0.0,
        "train/Kuhn/win_rate/player_0": 0.5,
        "train/Kuhn/draw_rate/player_0": 0.5,
        "train/Kuhn/loss_rate/player_0": 0.0,
        "train/Kuhn/forfeit_win_rate/player_0": 0.0,
        "train/Kuhn/win_rate/player_1": 0.0,
        "train/Kuhn/draw_rate/player_1": 0.5,
        "train/Kuhn/loss_rate/player_1": 0.5,
        "train/Kuhn/forfeit_win_rate/player_1": 0.0,
        "train/Kuhn/turns/actor": 1.0,
        "train/Kuhn/observation_tokens/actor": 5.0,
        "train/Kuhn/response_tokens/actor": 3.0,
        "train/Kuhn/format_success/actor": 1.0,
        "train/Kuhn/illegal_rate/actor": 0.0,
        "train/Kuhn/length_stop_rate/actor": 0.0,
    }


def test_a_game_against_another_model_by_role_too_wherever_the_policy_sits() -> None:
    first = game((POLICY, RANDOM), mode=Mode.EVAL, rewards=(1.0, -1.0))
    second = game((RANDOM, POLICY), mode=Mode.EVAL, rewards=(1.0, -1.0))
    third = game((RANDOM, POLICY), mode=Mode.EVAL, rewards=(-1.0, 1.0))
    values = metrics_of(first, second, third)
    assert values["eval/Kuhn/win_rate/actor"] == pytest.approx(2 / 3)
    assert values["eval/Kuhn/loss_rate/opponent"] == pytest.approx(2 / 3)
    assert values["eval/Kuhn/reward/opponent"] == pytest.approx(-1 / 3)
    assert values["eval/Kuhn/win_rate/player_0"] == pytest.approx(2 / 3)


def test_a_model_against_itself_has_no_win_rate_by_role() -> None:
    values = metrics_of(game((POLICY, replace(POLICY))))
    assert values["train/Kuhn/reward/opponent"] == -1.0
    assert values["train/Kuhn/win_rate/player_0"] == 1.0
    assert "train/Kuhn/win_rate/actor" not in values


def test_a_win_by_an_illegal_move_is_a_forfeit_alone() -> None:
    values = metrics_of(game(status=Status.ILLEGAL_MOVE, rewards=(-1.0, 0.0), offender=0))
    assert values["train/Kuhn/forfeit_win_rate/player_1"] == 1.0
    assert values["train/Kuhn/win_rate/player_1"] == 0.0
    assert values["train/Kuhn/loss_rate/player_0"] == 1.0


def test_a_single_player_is_solved_or_not() -> None:
    values = metrics_of(game((POLICY,), rewards=(1.0,)), game((POLICY,), rewards=(0.5,)))
    assert values["train/Kuhn/solved_rate"] == 0.5
    assert values["train/Kuhn/reward/player_0"] == 0.75
    assert not any("win_rate" in name for name in values)


def test_decisions_count_for_the_role_that_made_them() -> None:
    steps = (
        step(0, tokens=10, prompt=7, stopped="length", ok=False, bad=True),
        step(0, tokens=2, prompt=9),
        step(1, tokens=4, prompt=20),
        step(1, tokens=4, prompt=20, stopped="length"),
        step(1, tokens=4, prompt=50, ok=False),
        step(1, tokens=4, prompt=30, bad=True),
    )
    values = metrics_of(game((POLICY, RANDOM), steps=steps))
    assert values["train/Kuhn/turns"] == 6.0
    assert {name: value for name, value in values.items() if name.endswith("/actor") and "reward" not in name} == {
        "train/Kuhn/turns/actor": 2.0,
        "train/Kuhn/observation_tokens/actor": 8.0,
        "train/Kuhn/response_tokens/actor": 6.0,
        "train/Kuhn/length_stop_rate/actor": 0.5,
        "train/Kuhn/format_success/actor": 0.5,
        "train/Kuhn/illegal_rate/actor": 0.5,
        "train/Kuhn/win_rate/actor": 1.0,
        "train/Kuhn/draw_rate/actor": 0.0,
        "train/Kuhn/loss_rate/actor": 0.0,
        "train/Kuhn/forfeit_win_rate/actor": 0.0,
    }
    assert values["train/Kuhn/turns/opponent"] == 4.0
    assert values["train/Kuhn/observation_tokens/opponent"] == 30.0
    assert values["train/Kuhn/response_tokens/opponent"] == 4.0
    assert values["train/Kuhn/length_stop_rate/opponent"] == 0.25
    assert values["train/Kuhn/format_success/opponent"] == 0.75
    assert values["train/Kuhn/illegal_rate/opponent"] == 0.25


def test_turns_of_a_role_are_those_of_one_player() -> None:
    values = metrics_of(game((POLICY, RANDOM, RANDOM), rewards=(1.0, 0.0, 0.0), steps=(step(0), step(1), step(2))))
    assert values["train/Kuhn/turns"] == 3.0
    assert values["train/Kuhn/turns/actor"] == 1.0
    assert values["train/Kuhn/turns/opponent"] == 1.0


def test_scripted_players_have_neither_tokens_nor_a_reason_to_stop() -> None:
    values = metrics_of(game((POLICY, RANDOM), steps=(step(0), scripted(1, ok=False))))
    assert values["train/Kuhn/format_success/opponent"] == 0.0
    assert not [name for name in values if name.endswith("/opponent") and ("tokens" in name or "stop" in name)]


def test_an_endpoints_tokens_are_as_many_as_it_says() -> None:
    told = step(1, tokens=0, prompt=0, generated_tokens=40)
    untold = step(1, tokens=0, prompt=0, stopped="length")
    values = metrics_of(game((POLICY, RANDOM), steps=(told, untold)))
    assert values["train/Kuhn/response_tokens/opponent"] == 40.0
    assert values["train/Kuhn/length_stop_rate/opponent"] == 0.5
    assert "train/Kuhn/observation_tokens/opponent" not in values


def test_failures_count_by_the_type_of_their_error() -> None:
    def failed(reason: str) -> Episode:
        return game(status=Status.FAILED, rewards=None, steps=(), reason=reason)

    values = metrics_of(failed("KeyError: 'a'"), failed("KeyError: 'b'"), failed("worker tcp://a:1 left (3 attempts)"))
    assert values["train/Kuhn/failures/KeyError"] == 2.0
    assert values["train/Kuhn/failures/worker_left"] == 1.0
    many = metrics_of(*(failed(f"Error{number}: no") for number in range(30)), failed("Error3: no"))
    kinds = [name for name in many if "/failures/" in name]
    assert len(kinds) == 21
    assert many["train/Kuhn/failures/Error3"] == 2.0
    assert many["train/Kuhn/failures/other"] == 10.0
    assert not [name for name in metrics_of(game(reason="KeyError: 'a'")) if "failures" in name]


def test_a_game_without_an_end_counts_by_its_status() -> None:
    values = metrics_of(game(status=Status.FAILED, rewards=None, steps=()), game(status=Status.TIMEOUT, rewards=None))
    assert values["train/Kuhn/games"] == 2.0
    assert values["train/Kuhn/status/failed"] == 1.0
    assert values["train/Kuhn/status/timeout"] == 1.0
    assert "train/Kuhn/turns" not in values
    assert not any("reward" in name or "win_rate" in name for name in values)


def test_a_missing_reward_is_no_zero() -> None:
    values = metrics_of(game(rewards=(1.0, None)), game(rewards=(math.nan, 3.0)))
    assert values["train/Kuhn/reward/player_0"] == 1.0
    assert values["train/Kuhn/reward/player_1"] == 3.0
    assert values["nonfinite/train/Kuhn/reward/player_0"] == 1.0
    assert values["nonfinite/train/Kuhn/reward/player_1"] == 1.0


def test_an_idle_window_has_no_games_per_second_and_no_games() -> None:
    metrics = RunMetrics(at=0.0)
    metrics.add_episode(game())
    metrics.close(at=2.0)
    assert metrics.close(at=4.0) == {"train/games_per_s": 0.0}
    assert metrics.episodes == 1


def test_tokens_per_second_come_from_the_growth_of_an_engines_totals() -> None:
    metrics = RunMetrics(at=0.0)
    metrics.add_engine(engine("tcp://b:1", generated_tokens=1000, prompt_tokens=50, kv_use=0.25), at=1.0)
    first = metrics.close(at=1.5)
    assert first["engine_0/kv_use"] == 0.25
    assert "engine_0/tokens_per_s" not in first, "one report says nothing about a rate"
    metrics.add_engine(engine("tcp://b:1", generated_tokens=1100, prompt_tokens=50), at=2.0)
    metrics.add_engine(engine("tcp://b:1", generated_tokens=1400, prompt_tokens=90, running_requests=7), at=3.0)
    metrics.add_engine(engine("tcp://a:1", prefix_hit_rate=0.5), at=3.0)
    second = metrics.close(at=3.5)
    assert second["engine_0/tokens_per_s"] == 200.0
    assert second["engine_0/prompt_tokens_per_s"] == 20.0
    assert second["engine_0/running_requests"] == 7.0
    assert second["engine_1/prefix_hit_rate"] == 0.5
    assert metrics.engines == {"tcp://b:1": "engine_0", "tcp://a:1": "engine_1"}
    assert metrics.close(at=5.0) == {}


def test_a_rebuilt_engine_begins_again_at_zero() -> None:
    metrics = RunMetrics(at=0.0)
    metrics.add_engine(engine(generated_tokens=1000), at=1.0)
    metrics.add_engine(engine(state=EngineState.STARTING, restarts=1), at=2.0)
    metrics.add_engine(engine(generated_tokens=30, restarts=1), at=4.0)
    values = metrics.close(at=4.0)
    assert values["engine_0/tokens_per_s"] == 10.0
    assert values["engine_0/restarts"] == 1.0


def test_an_engine_that_is_not_ready_or_has_not_measured_yet_reports_no_zero_and_no_fault() -> None:
    metrics = RunMetrics(at=0.0)
    metrics.add_engine(engine("tcp://a:1", EngineState.STARTING), at=0.5)
    metrics.add_engine(engine("tcp://b:1", kv_use=None, prefix_hit_rate=None), at=0.5)
    values = metrics.close(at=1.0)
    assert set(values) == {
        f"engine_0/{name}" for name in ("running_games", "running_requests", "waiting_requests", "restarts")
    }
    assert metrics.engines == {"tcp://b:1": "engine_0"}


def test_figures_of_the_scheduler_are_the_latest() -> None:
    metrics = RunMetrics(at=0.0)
    metrics.add_collection({"in_flight": 3, "queued": 1})
    metrics.add_collection({"in_flight": 8, "queued": None})
    assert metrics.close(at=1.0) == {
        "collection/in_flight": 8.0,
        "collection/queued": 1.0,
        "nonfinite/collection/queued": 1.0,
    }
