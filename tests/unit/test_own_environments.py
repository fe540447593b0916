"""Environments of one's own, named by import path: who moves, who earns what, and games of 1 to 15 players."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tasks.contracts import AgentSpec, Episode, GameSpec, Mode, ModelKind, ModelRef, Role, Status
from tasks.outcomes import Outcome, outcomes, solved
from tasks.play import play_game
from tests.environments.seats import PLAIN, SEATS, TEXT, PlainEnv

W, D, L = Outcome.WIN, Outcome.DRAW, Outcome.LOSS
NEAREST_NUMBER = "configs.examples.nearest_number:NearestNumber"


def played(env_id: str, num_players: int, seed: int = 1, **changes: Any) -> Episode:
    scripted = ModelRef("scripted:random", ModelKind.SCRIPTED)
    agents = tuple(AgentSpec(player, Role.ACTOR, scripted) for player in range(num_players))
    spec = GameSpec("run", "game", Mode.TRAIN, env_id, num_players, seed, agents, **changes)
    return asyncio.run(play_game(spec, None))


def seated(num_players: int, order: list[int], rewards: Any, **changes: Any) -> Episode:
    return played(SEATS, num_players, env_kwargs={"order": order, "rewards": rewards}, **changes)


def test_players_may_move_out_of_turn_and_many_times_in_a_row() -> None:
    episode = seated(4, [2, 2, 2, 0, 3, 2], {"0": 0, "1": 1, "2": 0, "3": 0})
    assert episode.status is Status.COMPLETED
    assert [step.player_id for step in episode.steps] == [2, 2, 2, 0, 3, 2]
    silent = episode.trajectory(1)
    assert silent is not None
    assert (silent.final_reward, silent.steps) == (1.0, ())


@pytest.mark.parametrize(
    ("rewards", "recorded", "found"),
    [
        ({"0": 1, "1": 0.5, "2": -1}, (1.0, 0.5, -1.0), (W, L, L)),
        ({"0": 3, "2": 3.0}, (3.0, None, 3.0), (D, None, D)),
        ({"0": None, "1": -2, "2": -7}, (None, -2.0, -7.0), (None, W, L)),
        ({"0": True, "1": "much", "2": 0}, (1.0, None, 0.0), (W, None, L)),
        ({}, (None, None, None), (None, None, None)),
        (None, (None, None, None), (None, None, None)),
    ],
)
def test_rewards_are_recorded_as_they_are(rewards: Any, recorded: tuple[Any, ...], found: tuple[Any, ...]) -> None:
    episode = seated(3, [0, 1, 2], rewards)
    assert (episode.status, episode.rewards) == (Status.COMPLETED, recorded)
    assert outcomes(episode.rewards, episode.offender) == found


@pytest.mark.parametrize("num_players", [3, 7, 15])
def test_many_players(num_players: int) -> None:
    order = list(reversed(range(num_players)))
    episode = seated(num_players, order, {str(player): player for player in range(num_players)})
    assert [step.player_id for step in episode.steps] == order
    assert outcomes(episode.rewards, episode.offender) == (*[L] * (num_players - 1), W)


@pytest.mark.parametrize(
    ("env_id", "num_players"),
    [("LiarsDice-v0", 15), ("Poker-v0", 5), ("Taboo-v0", 4), ("SecretMafia-v0", 6), ("CharacterConclave-v0", 3)],
)
def test_textarenas_own_games_of_many_players(env_id: str, num_players: int) -> None:
    episode = played(env_id, num_players, max_turns=100)
    assert episode.status in (Status.COMPLETED, Status.TRUNCATED, Status.ILLEGAL_MOVE), episode.reason
    assert {step.player_id for step in episode.steps} <= set(range(num_players))
    assert len(outcomes(episode.rewards, episode.offender)) == (0 if episode.rewards is None else num_players)


def test_one_player_against_the_environment() -> None:
    episode = played(TEXT, 1)
    assert (episode.status, episode.rewards, episode.reason) == (Status.COMPLETED, (0.5,), "halfway")
    assert [step.observation for step in episode.steps] == ["turn 0", "turn 1"]
    assert outcomes(episode.rewards, None) == (None,)
    assert not solved(0.5)


def test_every_game_has_an_environment_of_its_own() -> None:
    used.clear()
    for _ in range(2):
        assert played(f"{__name__}:Remembered", 2).status is Status.COMPLETED
    assert len({id(env) for env in used}) == len(used) == 2


class Remembered(PlainEnv):
    """Notes each of its kind."""

    def __init__(self) -> None:
        super().__init__()
        used.append(self)


used: list[PlainEnv] = []


def test_an_environment_may_keep_its_state_to_itself() -> None:
    episode = played(PLAIN, 2)
    assert (episode.status, episode.rewards) == (Status.COMPLETED, (1.0, -1.0))
    assert [step.observation for step in episode.steps] == ["turn 0", "turn 1", "turn 2"]
    assert "has no error_allowance to set to 1" in played(PLAIN, 2, error_allowance=1).reason


def test_a_player_of_ones_own_environment_sees_all_messages_so_far() -> None:
    episode = seated(2, [0, 1, 0], {})
    assert episode.steps[2].observation.startswith(episode.steps[0].observation)
    assert "You are 0" in episode.steps[2].observation
    assert "[Player 1] [so]" in episode.steps[2].observation


def test_the_example_is_the_same_game_for_the_same_seed() -> None:
    def game(seed: int) -> list[tuple[str, str]]:
        episode = played(NEAREST_NUMBER, 5, seed, env_kwargs={"rounds": 2})
        assert episode.status is Status.COMPLETED, episode.reason
        return [(step.observation, step.choice.action) for step in episode.steps]

    assert game(1) == game(1)
    assert len({game(seed)[0][0] for seed in range(10)}) == 3  # the share is drawn


def test_an_illegal_move_that_ends_the_example_is_the_offenders_loss() -> None:
    episode = played(NEAREST_NUMBER, 3, env_kwargs={"highest": 1})  # both moves on show are too high
    assert (episode.status, episode.offender) == (Status.ILLEGAL_MOVE, 0)
    assert outcomes(episode.rewards, episode.offender) == (L, W, W)


@pytest.mark.parametrize(
    ("env_id", "reason"),
    [
        ("no_such_package.module:Env", "could not be imported: ModuleNotFoundError: No module named 'no_such_package'"),
        ("tests.environments.seats:NoSuchEnv", "could not be made: AttributeError"),
        ("tests.environments.seats:", "unknown env_id 'tests.environments.seats:'"),
    ],
)
def test_what_cannot_be_imported_fails_the_game(env_id: str, reason: str) -> None:
    episode = played(env_id, 2)
    assert episode.status is Status.FAILED
    assert reason in episode.reason


def test_textarenas_games_print_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    assert played("SettlersOfCatan-v0", 4, max_turns=60).steps
    assert played("LogicPuzzle-v0", 1, max_turns=10).steps
    assert capfd.readouterr().out == ""
