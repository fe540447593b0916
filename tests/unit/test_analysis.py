"""What a run comes to, on games small enough to count by hand."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from pipeline.analysis import (
    decisions,
    failures,
    game_lengths,
    games_played,
    newest_run,
    results,
    said_where_empty,
    step_figures,
    typical_game,
    typical_transcript,
)
from pipeline.episode_store import EpisodeStore
from pipeline.intervals import wilson_interval
from tasks.contracts import Episode, Mode, Status
from tasks.errors import DatasetError
from tasks.shards import episodes_table, read_episodes
from tests.unit.metric_games import POLICY, RANDOM, game, scripted, step


def named(game_id: str, episode: Episode) -> Episode:
    return replace(episode, spec=replace(episode.spec, game_id=game_id))


def table(*episodes: Episode) -> pa.Table:
    return episodes_table(episodes)


def rows(found: pa.Table, *columns: str) -> list[tuple[Any, ...]]:
    return [tuple(row.values()) for row in found.select(list(columns)).to_pylist()]


def steps_of(number: int) -> tuple[Any, ...]:
    return tuple(step(index % 2) for index in range(number))


def failed(reason: str) -> Episode:
    return game(status=Status.FAILED, rewards=None, steps=(), reason=reason)


def stored(run_dir: Path, episodes: Sequence[Episode], per_shard: int = 256) -> Path:
    with EpisodeStore(run_dir, per_shard) as store:
        for number, episode in enumerate(episodes):
            store.add(named(f"game-{number}", episode))
    return run_dir


def test_what_was_played_by_lane_and_environment() -> None:
    found = games_played(
        table(
            game(steps=steps_of(2)),
            game(steps=steps_of(4), status=Status.TRUNCATED, rewards=None),
            game(steps=steps_of(9), status=Status.TIMEOUT, rewards=None),
            game(mode=Mode.EVAL, status=Status.CANCELLED, rewards=None, steps=()),
        )
    )
    assert found.to_pylist() == [
        {
            "mode": "eval",
            "env_id": "Kuhn",
            "games": 1,
            **dict.fromkeys(map(str, Status), 0),
            "cancelled": 1,
            "mean_turns": None,
        },
        {
            "mode": "train",
            "env_id": "Kuhn",
            "games": 3,
            **dict.fromkeys(map(str, Status), 0),
            "completed": 1,
            "truncated": 1,
            "timeout": 1,
            "mean_turns": 3.0,
        },
    ]


def test_results_by_player_where_a_model_plays_itself() -> None:
    found = results(table(game(), game(rewards=(0.0, 0.0)), game(rewards=(-1.0, 1.0)), game(rewards=None)))
    assert rows(found, "side", "measure", "results", "successes", "draws", "losses", "rate", "mean_reward") == [
        ("player_0", "win", 3, 1, 1, 1, pytest.approx(1 / 3), 0.0),
        ("player_1", "win", 3, 1, 1, 1, pytest.approx(1 / 3), 0.0),
    ]
    assert rows(found, "low", "high")[0] == wilson_interval(1, 3)


def test_results_by_role_wherever_the_policy_sits_and_forfeits_apart() -> None:
    found = results(
        table(
            game((POLICY, RANDOM)),
            game((RANDOM, POLICY), rewards=(-1.0, 1.0)),
            game((RANDOM, POLICY)),
            game((POLICY, RANDOM), status=Status.ILLEGAL_MOVE, rewards=(0.0, -1.0), offender=1),
        )
    )
    assert rows(found, "side", "results", "successes", "forfeit_wins", "draws", "losses", "rate") == [
        ("actor", 4, 2, 1, 0, 1, 0.5),
        ("opponent", 4, 1, 0, 0, 3, 0.25),
        ("player_0", 4, 2, 1, 0, 1, 0.5),
        ("player_1", 4, 1, 0, 0, 3, 0.25),
    ]


def test_a_single_player_solves_and_a_reward_that_is_none_or_no_number_is_left_out() -> None:
    alone = [game((POLICY,), rewards=(reward,)) for reward in (1.0, 0.5, None)]
    found = results(table(*alone))
    assert rows(found, "side", "measure", "results", "successes", "mean_reward") == [("player_0", "solved", 2, 1, 0.75)]
    found = results(table(game(rewards=(math.nan, None))))
    assert rows(found, "results", "rate", "low", "high", "mean_reward") == [(0, None, 0.0, 1.0, None)] * 2


def test_lengths_are_of_games_that_ended_by_themselves() -> None:
    cut = game(steps=steps_of(9), status=Status.TIMEOUT, rewards=None)
    lengths = game_lengths(table(game(steps=steps_of(2)), cut, game(steps=steps_of(4)), game(mode=Mode.EVAL)))
    assert lengths == {"eval Kuhn": [2], "train Kuhn": [2, 4]}


def test_failures_by_kind_the_most_first() -> None:
    found = failures(table(failed("KeyError: 'a'"), failed("OSError: b"), failed("KeyError: 'c'"), game(reason="won")))
    assert rows(found, "mode", "env_id", "kind", "games", "example") == [
        ("train", "Kuhn", "KeyError", 2, "KeyError: 'a'"),
        ("train", "Kuhn", "OSError", 1, "OSError: b"),
    ]


def test_decisions_by_role_and_over_all_shards(tmp_path: Path) -> None:
    steps = (
        step(0, tokens=10, prompt=7, stopped="length", ok=False, bad=True),
        step(0, tokens=2, prompt=9),
        scripted(1, ok=False),
        step(1, tokens=0, prompt=0, generated_tokens=40),
    )
    run = stored(tmp_path, [game((POLICY, RANDOM), steps=steps), game((POLICY, RANDOM), steps=steps)], per_shard=1)
    assert decisions(step_figures(run)).to_pylist() == [
        {
            "mode": "train",
            "env_id": "Kuhn",
            "role": "actor",
            "decisions": 4,
            "format_success": 0.5,
            "illegal_moves": 2,
            "illegal_rate": 0.5,
            "length_stop_rate": 0.5,
            "observation_tokens": 8.0,
            "response_tokens": 6.0,
        },
        {
            "mode": "train",
            "env_id": "Kuhn",
            "role": "opponent",
            "decisions": 4,
            "format_success": 0.5,
            "illegal_moves": 0,
            "illegal_rate": 0.0,
            "length_stop_rate": 0.0,
            "observation_tokens": None,
            "response_tokens": 40.0,
        },
    ]


def test_a_run_without_games_yet_is_no_error(tmp_path: Path) -> None:
    run, nothing = stored(tmp_path, []), table()
    assert [found(nothing).num_rows for found in (games_played, results, failures)] == [0, 0, 0]
    assert decisions(step_figures(run)).num_rows == 0
    assert game_lengths(nothing) == {}
    assert typical_game(nothing) is None
    assert typical_transcript(run, nothing) == (
        "None of the run's 0 games has a step (0 failed): look again when some are over."
    )


def test_a_run_whose_games_all_failed_before_a_step_is_shown_like_any_other(tmp_path: Path) -> None:
    episodes = table(failed("KeyError: 'a'"), failed("KeyError: 'b'"))
    run = stored(tmp_path, [failed("KeyError: 'a'"), failed("KeyError: 'b'")])
    assert rows(games_played(episodes), "games", "failed", "mean_turns") == [(2, 2, None)]
    assert rows(failures(episodes), "kind", "games") == [("KeyError", 2)]
    assert (results(episodes).num_rows, decisions(step_figures(run)).num_rows) == (0, 0)
    assert game_lengths(episodes) == {}
    assert typical_transcript(run, episodes) == (
        "None of the run's 2 games has a step (2 failed): the table of failures says what they met."
    )


def test_a_sentence_stands_where_a_plot_is_empty() -> None:
    assert said_where_empty([], "No game has a decision.") == "No game has a decision."
    assert said_where_empty({"train Kuhn": [2]}, "No game ended.") == ""


def test_a_typical_game_is_of_median_length() -> None:
    games = [named(str(number), game(steps=steps_of(number))) for number in (0, 9, 1, 5)]
    assert typical_game(table(*games)) == "5"


def test_the_transcript_is_that_of_the_typical_game(tmp_path: Path) -> None:
    run = stored(tmp_path, [game(steps=steps_of(number)) for number in (0, 3, 1)])
    assert "game-1" in typical_transcript(run, read_episodes(run)).splitlines()[0]


def test_the_newest_run_is_the_one_that_began_last(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match=r"no run in .*: expected a folder there with replay/ in it\. Play one with"):
        newest_run(tmp_path)
    for number, name in enumerate(("b", "c", "a")):
        (tmp_path / name / "replay").mkdir(parents=True)
        os.utime(tmp_path / name / "replay", (number, number))
    (tmp_path / "notes").mkdir()
    assert newest_run(tmp_path) == tmp_path / "a"


def test_figures_of_no_run_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="no run's dataset at"):
        step_figures(tmp_path)
