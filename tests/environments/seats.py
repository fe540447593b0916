"""An environment that says who moves when and who earns what; and one that shows text, and prints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import textarena


class SeatsEnv(textarena.Env):  # type: ignore[misc]
    """Players move in the order given, however often and whoever they are; then everybody gets their reward.

    Args:
        order: player ids, one for each turn.
        rewards: by player as text, since JSON has no other keys; None for no rewards at all.
    """

    def __init__(self, order: Sequence[int], rewards: Mapping[str, Any] | None = None) -> None:
        self._order = order
        self._rewards = None if rewards is None else {int(player): reward for player, reward in rewards.items()}

    def reset(self, num_players: int, seed: int | None = None) -> None:
        self.state = textarena.MinimalMultiPlayerState(num_players=num_players, seed=seed)
        self.state.reset(player_prompt_function=lambda player_id, game_state: f"You are {player_id}, say [so].")
        self.state.current_player_id = self._order[0]

    def step(self, action: str) -> tuple[bool, dict[str, Any]]:
        if "cheat" in action:
            self.state.set_invalid_move(reason="no cheating")
        self.state.add_observation(action, textarena.ObservationType.PLAYER_ACTION, self.state.current_player_id)
        self.state.turn += 1
        if self.state.turn == len(self._order):
            self.state.rewards = self._rewards
            return True, {}
        self.state.current_player_id = self._order[self.state.turn]
        return False, {}


class TextEnv(textarena.Env):  # type: ignore[misc]
    """One player; shows plain text."""

    def reset(self, num_players: int, seed: int | None = None) -> None:
        self.state = textarena.SinglePlayerState(num_players=num_players, seed=seed)
        self.state.reset()

    def get_observation(self) -> tuple[int, str]:
        return 0, f"turn {self.state.turn}"

    def step(self, action: str) -> tuple[bool, dict[str, Any]]:
        if self.state.turn == 1:
            self.state.set_outcome(0.5, reason="halfway")
        answer: tuple[bool, dict[str, Any]] = self.state.step()
        return answer


class PlainEnv:
    """Two players; has the methods that TextArena's interface asks for and nothing else."""

    def __init__(self) -> None:
        self._turn = 0

    def reset(self, num_players: int, seed: int | None = None) -> None:
        self._turn = 0

    def get_observation(self) -> tuple[int, str]:
        return self._turn % 2, f"turn {self._turn}"

    def step(self, action: str) -> tuple[bool, dict[str, Any]]:
        self._turn += 1
        return self._turn == 3, {}

    def close(self) -> tuple[dict[int, float], dict[int, dict[str, Any]]]:
        return {0: 1.0, 1: -1.0}, {}


SEATS = f"{__name__}:SeatsEnv"
TEXT = f"{__name__}:TextEnv"
PLAIN = f"{__name__}:PlainEnv"
