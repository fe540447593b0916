"""An environment of one's own: everybody names a number, and whoever is nearest to a share of the mean wins.

`configs/own_environment.yaml` plays it as `configs.examples.nearest_number:NearestNumber`. Any class with TextArena's
interface will do: `reset(num_players, seed)`, `get_observation()`, `step(action)`, `close()`, and one of TextArena's
states in `self.state`. Draw from the module `random`: every game gets a generator of its own, seeded by its spec.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterable
from typing import Any

import textarena

_NUMBER = re.compile(r"\[(\d+)\]")


class NearestNumber(textarena.Env):  # type: ignore[misc]
    """Two or more players name a whole number from 0 to `highest`, in turn and in secret, for some rounds.

    Args:
        rounds: how often everybody names a number; most points win.
        highest: the largest number that may be named.
    """

    def __init__(self, rounds: int = 3, highest: int = 100) -> None:
        self._rounds, self._highest = rounds, highest

    def reset(self, num_players: int, seed: int | None = None) -> None:
        """Begin a game.

        Raises:
            ValueError: for fewer than two players.
        """
        if num_players < 2:
            raise ValueError(f"NearestNumber is for two or more players, got {num_players}")
        self.state = textarena.FFAMultiPlayerState(num_players=num_players, seed=seed)
        game_state = {"share": random.choice([0.5, 0.8, 1.2]), "named": {}, "points": [0] * num_players}
        self.state.reset(game_state=game_state, player_prompt_function=self._prompt)

    def _prompt(self, player_id: int, game_state: dict[str, Any]) -> str:
        return (
            f"You are player {player_id}. For {self._rounds} rounds, name a whole number from 0 to {self._highest} in "
            f"square brackets, such as [3] or [7]. Who is nearest to {game_state['share']} times the mean gets a point."
        )

    def step(self, action: str) -> tuple[bool, dict[str, Any]]:
        """Take one player's number; the round ends with the last player's."""
        number = _NUMBER.search(action)
        if number is None or int(number[1]) > self._highest:
            if self.state.set_invalid_move(reason=f"Name a whole number from 0 to {self._highest}, such as [7]."):
                winners = [player for player in range(self.state.num_players) if player != self.state.current_player_id]
                self.state.set_winners(winners, reason="A player named no number, twice.")
        else:
            self.state.game_state["named"][self.state.current_player_id] = int(number[1])
            if len(self.state.game_state["named"]) == self.state.num_players:
                self._end_round()
        answer: tuple[bool, dict[str, Any]] = self.state.step()
        return answer

    def _end_round(self) -> None:
        game_state, players = self.state.game_state, range(self.state.num_players)
        named, game_state["named"] = game_state["named"], {}
        target = game_state["share"] * sum(named.values()) / len(named)
        distance = min(abs(number - target) for number in named.values())
        nearest = [player for player in players if abs(named[player] - target) == distance]
        for player in nearest:
            game_state["points"][player] += 1
        self.state.add_observation(
            message=f"Named, by player: {_listed(named.values())}. The target was {target:g}. "
            f"Points, by player: {_listed(game_state['points'])}.",
            observation_type=textarena.ObservationType.GAME_MESSAGE,
        )
        if self.state.turn + 1 >= self._rounds * self.state.num_players:
            most = max(game_state["points"])
            winners = [player for player in players if game_state["points"][player] == most]
            self.state.set_winners(winners, reason=f"Most points: {most}.")


def _listed(numbers: Iterable[int]) -> str:
    return ", ".join(map(str, numbers))
