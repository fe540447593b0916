"""Reading a run back as text."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from pipeline.episode_store import EpisodeStore
from pipeline.model_registry import ModelRegistry
from pipeline.transcript import list_games, list_ratings, render_game
from tasks.contracts import Episode
from tasks.errors import DatasetError
from tests.unit.example_episodes import ANSWERED, SAID, cancelled_episode, full_episode


def store(run_dir: Path, *episodes: Episode) -> None:
    with EpisodeStore(run_dir) as episode_store:
        for episode in episodes:
            episode_store.add(episode)


def test_the_list_has_a_line_per_game(tmp_path: Path) -> None:
    store(tmp_path, full_episode(), cancelled_episode())
    assert list_games(tmp_path).splitlines() == [
        "game            mode   environment         status        turns  players                   rewards  seconds",
        "game-full       train  KuhnPoker-v0-train  illegal_move  2      policy@3 scripted:random  1 -1     1.25",
        "game-cancelled  eval   Sudoku-v0           cancelled     0      scripted:random           -        -",
    ]


def test_a_game_reads_as_what_was_seen_said_parsed_and_earned(tmp_path: Path) -> None:
    mute = replace(ANSWERED, choice=replace(ANSWERED.choice, completion="", format_ok=False))
    store(tmp_path, full_episode("other"), full_episode(steps=(SAID, mute)))
    assert render_game(tmp_path, "game-full") == (
        """\
Game game-full of run run-1
KuhnPoker-v0-train, train, seed 9223372036854775807, attempt 1
player 0: policy@3 (actor, policy version 3)
player 1: scripted:random (opponent)

--- step 0, player 0, policy@3 ---
saw:
    Your card: K
said (stop, 6 tokens, 0.12 s, votes {"[bet]": 2, "[check]": 1}):
    I have a king: \\boxed{bet}
parsed:
    [bet]
earned: 0.5

--- step 1, player 1, scripted:random ---
saw:
    Player 0 bets
said (0 tokens, 0.00 s):
    (nothing)
parsed (not in the form asked for, illegal):
    [fold]
earned: -

=== illegal_move after 2 steps: Player 1 made an invalid move. ===
player 0 earned 1, win
player 1 earned -1, loss"""
    )


def test_a_game_that_never_began_has_an_ending(tmp_path: Path) -> None:
    store(tmp_path, cancelled_episode())
    assert render_game(tmp_path, "game-cancelled").endswith(
        "=== cancelled after 0 steps: the run was stopped ===\nplayer 0 earned -"
    )


def test_what_a_model_says_cannot_drive_the_terminal(tmp_path: Path) -> None:
    said = replace(SAID, observation="line 1\nline 2", choice=replace(SAID.choice, completion="\x1b[2Jgone\u202e é 王"))
    store(tmp_path, full_episode(steps=(said,)))
    text = render_game(tmp_path, "game-full")
    assert "    \\x1b[2Jgone\\u202e é 王\n" in text
    assert "    line 1\n    line 2\n" in text


def test_an_unknown_game_is_refused_with_the_nearest(tmp_path: Path) -> None:
    store(tmp_path, full_episode("train-000017"), full_episode("train-000018"), full_episode("x"))
    with pytest.raises(DatasetError) as caught:
        render_game(tmp_path, "train-00017")
    assert "no game 'train-00017' among the 3 stored in" in str(caught.value)
    assert "nearest: train-000017, train-000018 (`selfplay show" in str(caught.value)
    with pytest.raises(DatasetError, match="nearest: train-000017, train-000018, x "):
        render_game(tmp_path, "???")


def test_a_run_without_games_yet_says_so(tmp_path: Path) -> None:
    store(tmp_path)
    assert list_games(tmp_path).startswith(f"no games stored yet in {tmp_path}")
    with pytest.raises(DatasetError, match=r"among the 0 stored in .*; nearest: none yet"):
        render_game(tmp_path, "a")


def test_a_folder_without_a_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="no run's dataset at"):
        list_games(tmp_path / "nothing")
    with pytest.raises(DatasetError, match="no run's dataset at"):
        render_game(tmp_path / "nothing", "a")


def test_ratings_are_listed_the_surest_first(tmp_path: Path) -> None:
    episode = full_episode()
    registry = ModelRegistry(episode.spec.agents[0].model, tmp_path / "registry.json")
    registry.save()
    assert list_ratings(tmp_path) == (
        f"no ratings in {tmp_path}: none of its games was between two models or of one against an environment"
    )
    registry.record(episode)
    registry.save()
    assert list_ratings(tmp_path).splitlines() == [
        "model            mu     sigma  mu-3sigma  games",
        "policy@3         29.40  7.17   7.88       1",
        "scripted:random  20.60  7.17   -0.91      1",
    ]


def test_ratings_of_a_run_that_has_not_ended_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match=r"registry\.json cannot be read as a model registry \(No such file"):
        list_ratings(tmp_path)
