"""An environment that learning is proven with: one decision, whose reward depends on the answer's first character.

Nothing has to be understood, so that a small model with random weights learns it within minutes on a CPU. Give it
`prompt_template: raw` and `action_extraction: raw`.
"""

from __future__ import annotations

from typing import Any

import textarena


class FirstToken(textarena.Env):  # type: ignore[misc]
    """A single player says something: 1 for a first character with an even code, 0 for any other and for nothing.

    Args:
        sign: -1 pays -1 where it would have paid 1.
    """

    def __init__(self, sign: int = 1) -> None:
        self._sign = sign

    def reset(self, num_players: int, seed: int | None = None) -> None:
        """Begin a game.

        Raises:
            ValueError: for more than one player.
        """
        if num_players != 1:
            raise ValueError(f"FirstToken is for one player, got {num_players}")
        self.state = textarena.SinglePlayerState(num_players=1, seed=seed)
        self.state.reset(game_state={}, player_prompt_function=lambda player_id, game_state: "Say")

    def step(self, action: str) -> tuple[bool, dict[str, Any]]:
        """Take the answer; the game is over."""
        is_even = bool(action) and ord(action[0]) % 2 == 0
        self.state.set_outcome(reward=self._sign * float(is_even), reason="The answer was given.")
        answer: tuple[bool, dict[str, Any]] = self.state.step()
        return answer
