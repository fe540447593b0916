"""Environments for tests: small, and each odd in one way. Importing this registers them.

A package of its own, because the package of an environment's module is what gets its random numbers isolated.
"""

from __future__ import annotations

import math
import random
from typing import Any

import numpy as np
import textarena


class OddEnv(textarena.Env):  # type: ignore[misc]
    """Two players in turn; any action moves on; `fault` names the method that raises."""

    def __init__(self, fault: str = "", rewards: Any = None, observation: Any = "seen", player: Any = 0) -> None:
        self.fault, self.rewards, self.observation, self.player = fault, rewards, observation, player
        self.drawn = random.random()
        self._fail("made")

    def _fail(self, where: str) -> None:
        if self.fault == where:
            raise KeyError(f"no\n  {where}")

    def reset(self, num_players: int, seed: int | None = None) -> None:
        self._fail("reset")
        self.state = textarena.TwoPlayerState(num_players=num_players, seed=seed)
        self.state.reset()

    def get_observation(self) -> tuple[Any, Any]:
        self._fail("observed")
        return self.player, self.observation

    def step(self, action: str) -> tuple[bool, dict[str, Any]]:
        self._fail("stepped")
        if action == "cheat":
            self.state.set_invalid_move(reason="no cheating")
        if action == "end":
            self.state.set_draw(reason="enough")
        done, info = self.state.step()
        return done, {**info, "cards": {1: (2, np.int64(3))}, "share": math.nan}

    def close(self) -> tuple[Any, Any]:
        self._fail("closed")
        return self.rewards or self.state.rewards, self.state.game_info


class StatelessEnv(OddEnv):
    """Has a state of its own kind: no error allowance, no count of illegal moves."""

    def reset(self, num_players: int, seed: int | None = None) -> None:
        self.state = textarena.State(num_players=num_players, seed=seed)
        self.state.standard_resets()


class ThreeInARoom(textarena.Env):  # type: ignore[misc]
    """Three players; an illegal move eliminates; the last one left wins. `[end]` ends the game."""

    def reset(self, num_players: int, seed: int | None = None) -> None:
        self.state = textarena.FFAMultiPlayerState(num_players=num_players, seed=seed)
        self.state.reset()

    def step(self, action: str) -> tuple[bool, dict[str, Any]]:
        if "cheat" in action and self.state.set_invalid_move(reason="no cheating"):
            self.state.made_invalid_move = False  # the next player's turn
        left = [player for player in range(3) if self.state.is_player_alive(player)]
        if len(left) == 1 or "end" in action:
            self.state.set_winners(left, reason="the rest is out")
        done: tuple[bool, dict[str, Any]] = self.state.step()
        return done


class BrokenEnv(textarena.Env):  # type: ignore[misc]
    """Two players; breaks on the second step."""

    def reset(self, num_players: int, seed: int | None = None) -> None:
        self.state = textarena.TwoPlayerState(num_players=num_players, seed=seed)
        self.state.reset(player_prompt_function=lambda player_id, game_state: "Go [on].")

    def step(self, action: str) -> tuple[bool, dict[str, Any]]:
        if self.state.turn == 1:
            raise ZeroDivisionError("nobody tested this")
        done: tuple[bool, dict[str, Any]] = self.state.step()
        return done


class EndlessEnv(BrokenEnv):
    """Two players; never ends."""

    def step(self, action: str) -> tuple[bool, dict[str, Any]]:
        done: tuple[bool, dict[str, Any]] = self.state.step()
        return done


for env_id, entry_point in {
    "Odd-v0": OddEnv,
    "Stateless-v0": StatelessEnv,
    "ThreeInARoom-v0": ThreeInARoom,
    "Broken-v0": BrokenEnv,
    "Endless-v0": EndlessEnv,
    "Missing-v0": "no_such_package.env:Env",
}.items():
    textarena.register(id=env_id, entry_point=entry_point)
