"""One environment, opened, played and closed: TextArena's own, and small ones that misbehave."""

from __future__ import annotations

import asyncio
import json
import random
import re
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import pytest
import textarena

from tasks.contracts import AgentSpec, GameSpec, Mode, ModelKind, ModelRef, Role
from tasks.errors import EnvironmentFault
from tasks.game import Game, check_env, known_env_ids
from tests.environments import OddEnv

SCRIPTED = ModelRef("scripted:random", ModelKind.SCRIPTED)


def game_spec(env_id: str, num_players: int = 2, seed: int = 1, **changes: Any) -> GameSpec:
    agents = tuple(AgentSpec(player, Role.ACTOR, SCRIPTED) for player in range(num_players))
    return GameSpec("run", "game", Mode.TRAIN, env_id, num_players, seed, agents, **changes)


def opened(env_id: str, num_players: int = 2, seed: int = 1, **changes: Any) -> Game:
    return asyncio.run(Game.open(game_spec(env_id, num_players, seed, **changes)))


def play(game: Game, *actions: str) -> list[bool]:
    """Whether each action was illegal; the last must end the game, no other may."""
    moves = [game.step(action) for action in actions]
    assert [move.done for move in moves] == [False] * (len(actions) - 1) + [True]
    return [move.illegal for move in moves]


def test_a_game_from_start_to_end() -> None:
    game = opened("TicTacToe-v0-train")
    player_id, observation = game.observe()
    assert player_id == 0
    assert observation.endswith("Available Moves: '[0]', '[1]', '[2]', '[3]', '[4]', '[5]', '[6]', '[7]', '[8]'")
    assert play(game, "[0]", "[3]", "[1]", "[4]", "[2]") == [False] * 5
    result = game.close()
    assert (result.rewards, result.offender, result.reason) == ((1.0, -1.0), None, "Player 0 has won!")
    assert json.loads(result.player_info[1])["turn_count"] == 2


def test_illegal_moves_are_counted_and_the_one_that_ends_the_game_has_an_offender() -> None:
    game = opened("TicTacToe-v0-train")
    assert play(game, "[0]", "[0]", "[1]", "[9]", "[x]") == [False, True, False, True, True]
    result = game.close()
    assert (result.rewards, result.offender) == ((-1.0, 1.0), 0)


@pytest.mark.parametrize(("error_allowance", "tries"), [(0, 1), (3, 4)])
def test_the_error_allowance_is_the_specs(error_allowance: int, tries: int) -> None:
    game = opened("TicTacToe-v0-train", error_allowance=error_allowance)
    assert play(game, *["[x]"] * tries) == [True] * tries


def test_a_legal_move_that_ends_the_game_after_an_illegal_one_has_no_offender() -> None:
    game = opened("Odd-v0")
    assert play(game, "cheat", "end") == [True, False]
    assert game.close().offender is None


def test_of_three_players_only_the_illegal_move_that_ends_the_game_has_an_offender() -> None:
    game = opened("ThreeInARoom-v0", 3, error_allowance=0)
    assert play(game, "cheat", "cheat") == [True, True]
    result = game.close()
    assert (result.rewards, result.offender) == ((-1.0, -1.0, 1.0), 1)

    game = opened("ThreeInARoom-v0", 3, error_allowance=0)
    assert play(game, "cheat", "stay", "end") == [True, False, False]
    result = game.close()
    assert (result.rewards, result.offender) == ((-1.0, 1.0, 1.0), None)

    # Forgiven, so not what ended the game, though the game ends on that very move.
    game = opened("ThreeInARoom-v0", 3, error_allowance=1)
    assert play(game, "cheat and end") == [True]
    assert game.close().offender is None


def test_raw_environments_give_their_messages_as_lines() -> None:
    _, observation = opened("KuhnPoker-v0-raw", seed=3).observe()
    lines = observation.splitlines()
    assert lines[0] == "[GAME] You are Player 1 in a 3 round game of Kuhn Poker."
    assert lines[-1] == "[GAME] Your available actions are: '[check]', '[bet]'"


@pytest.mark.parametrize(("given", "text"), [(None, "None"), (7, "7"), (["a", 1], "a\n1")])
def test_other_observations_are_recorded_as_text(given: Any, text: str) -> None:
    assert opened("Odd-v0", env_kwargs={"observation": given}).observe() == (0, text)


def test_step_info_is_json() -> None:
    move = opened("Odd-v0").step("on")
    assert json.loads(move.info) == {"cards": {"1": [2, 3]}, "share": None}


@pytest.mark.parametrize(
    ("paid", "rewards"),
    [
        ({0: 1}, (1.0, None)),
        ({0: None, 1: np.float32(0.5)}, (None, 0.5)),
        ({0: "no cheating", 1: True}, (None, 1.0)),
    ],
)
def test_rewards_that_are_missing_or_no_numbers_are_none(paid: dict[int, Any], rewards: tuple[Any, ...]) -> None:
    game = opened("Odd-v0", env_kwargs={"rewards": paid})
    game.step("end")
    assert game.close().rewards == rewards


@pytest.mark.parametrize(
    ("about", "player_info", "reason"),
    [
        ({0: None, 1: {"reason": "enough"}}, ("{}", '{"reason": "enough"}'), "enough"),
        ({0: "lost", 1: 3}, ('{"info": "lost"}', '{"info": 3}'), ""),
    ],
)
def test_closing_information_that_is_no_mapping_does_not_cost_the_rewards(
    about: dict[int, Any], player_info: tuple[str, ...], reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(OddEnv, "close", lambda env: ({0: 1, 1: -1}, about))
    result = opened("Odd-v0").close()
    assert (result.rewards, result.player_info, result.reason) == ((1.0, -1.0), player_info, reason)


def test_an_end_without_any_rewards() -> None:
    assert opened("Odd-v0").close().rewards == (None, None)


def test_what_an_environment_raises_says_what_where_and_what_to_do() -> None:
    def fault(where: str) -> str:
        with pytest.raises(EnvironmentFault) as raised:
            game = opened("Odd-v0", env_kwargs={"fault": where})
            game.observe()
            game.step("on")
            game.close()
        assert isinstance(raised.value.__cause__, KeyError)
        return str(raised.value)

    assert fault("made") == (
        "Odd-v0 could not be made: KeyError: 'no\\n made'. Check env_kwargs, and that what it needs is there where the "
        "games are played."
    )
    assert fault("reset").endswith("Check num_players=2 against its rules, and env_kwargs.")
    for where in ("observed", "stepped", "closed"):
        assert f"Odd-v0 could not be {where}: KeyError: " in fault(where)
        assert fault(where).endswith("The game ends as failed; if it keeps happening, leave this environment out.")


@pytest.mark.parametrize(
    ("raised", "said"),
    [
        (SystemExit(3), "RuntimeError: it raised SystemExit(3). The game ends"),
        (StopIteration(), "RuntimeError: it raised StopIteration(). The game ends"),
        (GeneratorExit(), "RuntimeError: it raised GeneratorExit(). The game ends"),
        (asyncio.CancelledError("me"), "RuntimeError: it raised CancelledError('me'). The game ends"),
        (ValueError("y" * 1_000_000), f"{'y' * 988}.... The game ends"),
    ],
)
def test_nothing_an_environment_raises_gets_past_its_game(
    raised: BaseException, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def step(env: OddEnv, action: str) -> None:
        raise raised

    monkeypatch.setattr(OddEnv, "step", step)
    with pytest.raises(EnvironmentFault) as fault:
        opened("Odd-v0").step("on")
    assert said in str(fault.value)


@pytest.mark.parametrize("rewards", [{"0": 1, "1": 2}, {-1: 5}])
def test_rewards_for_none_of_the_players_are_a_fault(rewards: dict[Any, Any]) -> None:
    game = opened("Odd-v0", env_kwargs={"rewards": rewards})
    with pytest.raises(EnvironmentFault, match=re.escape(f"it pays {list(rewards)}, expected players of 0 to 1")):
        game.close()


def test_a_player_the_game_does_not_have_is_a_fault() -> None:
    for player in (2, -1, None):
        with pytest.raises(EnvironmentFault, match=f"Odd-v0 asks player {player} to move; expected 0 to 1"):
            opened("Odd-v0", env_kwargs={"player": player}).observe()


def test_an_unknown_environment_is_refused_with_the_nearest_names() -> None:
    with pytest.raises(
        EnvironmentFault, match=r"unknown env_id 'KuhnPoker-v0-trian'.*Did you mean 'KuhnPoker-v0-train'"
    ):
        opened("KuhnPoker-v0-trian")


def test_an_environment_whose_package_is_missing_is_refused() -> None:
    with pytest.raises(
        EnvironmentFault, match="Missing-v0 could not be imported: ModuleNotFoundError: No module named"
    ):
        opened("Missing-v0")


def test_an_error_allowance_where_there_is_none_to_set_is_refused() -> None:
    with pytest.raises(EnvironmentFault, match="Stateless-v0 has no error_allowance to set to 2; leave it unset"):
        opened("Stateless-v0", error_allowance=2)
    assert opened("Stateless-v0").step("cheat not") == opened("Stateless-v0").step("on")


def test_wrong_numbers_of_players_and_wrong_arguments_are_refused() -> None:
    with pytest.raises(EnvironmentFault, match=r"TicTacToe-v0 could not be reset: AssertionError: .*num_players=3"):
        opened("TicTacToe-v0", 3)
    with pytest.raises(
        EnvironmentFault, match=r"TicTacToe-v0 could not be made: TypeError: .*'size'.*Check env_kwargs"
    ):
        opened("TicTacToe-v0", env_kwargs={"size": 4})


@dataclass(frozen=True)
class Settings:
    """What the driver knows of an environment."""

    env_id: str
    num_players: int = 2
    error_allowance: int | None = None
    env_kwargs: dict[str, Any] = field(default_factory=dict)


def test_the_driver_can_check_environments_before_it_starts() -> None:
    check_env(Settings("KuhnPoker-v0-train", error_allowance=2, env_kwargs={"max_rounds": 1}))
    for settings in (
        Settings("Kuhn"),
        Settings("Stateless-v0", error_allowance=1),
        Settings("Odd-v0", env_kwargs={"x": 1}),
    ):
        with pytest.raises(EnvironmentFault):
            check_env(settings)
    assert "KuhnPoker-v0-train" in known_env_ids()
    assert list(known_env_ids()) == sorted(known_env_ids())


class TestSeeds:
    """The same seed is the same game, whatever else goes on in the process."""

    LARGE: ClassVar[list[int]] = [0, 1, 2**32, 2**63 - 1]

    @pytest.mark.parametrize("seed", LARGE)
    def test_the_seed_is_textarenas_own(self, seed: int) -> None:
        plain = textarena.make("KuhnPoker-v0-train")
        plain.reset(num_players=2, seed=seed)
        assert opened("KuhnPoker-v0-train", seed=seed).observe() == plain.get_observation()

    @pytest.mark.parametrize("env_id", ["Sokoban-v0-train", "FrozenLake-v0-random-train"])
    def test_boards_are_the_same_when_made_at_the_same_time(self, env_id: str) -> None:
        async def boards(seeds: list[int]) -> list[str]:
            games = await asyncio.gather(*(Game.open(game_spec(env_id, 1, seed)) for seed in seeds))
            return [game.observe()[1] for game in games]

        alone = [asyncio.run(boards([seed]))[0] for seed in (1, 2, 2**63 - 1)]
        assert asyncio.run(boards([1, 2, 2**63 - 1, 1])) == [*alone, alone[0]]
        assert len(set(alone)) == 3

    def test_what_is_drawn_before_reset_depends_on_the_seed_as_well(self) -> None:
        def drawn(seed: int) -> float:
            random.seed(0)
            value: float = opened("Odd-v0", seed=seed)._env.drawn
            return value

        assert drawn(1) == drawn(1) != drawn(2)

    def test_playing_leaves_the_process_wide_generators_alone(self) -> None:
        before = random.getstate(), np.random.get_state()[1].tobytes()
        opened("KuhnPoker-v0-train").step("[bet]")
        assert (random.getstate(), np.random.get_state()[1].tobytes()) == before

    def test_seeds_give_different_deals(self) -> None:
        deals = Counter(opened("KuhnPoker-v0-train", seed=seed).observe()[1] for seed in range(30))
        assert len(deals) == 3


def test_importing_prints_nothing() -> None:
    done = subprocess.run([sys.executable, "-c", "import tasks.game"], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("", "")
