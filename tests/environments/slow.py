"""An environment that takes its time, in each of its calls."""

from __future__ import annotations

import threading
import time
from typing import Any, ClassVar

import textarena


class SlowEnv(textarena.Env):  # type: ignore[misc]
    """Two players, `turns` turns. `pause_s` and `hang` happen in the call named by `where`.

    Args:
        where: `made`, `reset`, `observed`, `stepped` or `closed`.
        pause_s: how long to sleep there.
        hang: loop there for ever.
        first: the first of the calls of that name that is slow, from 1.
        turns: turns of the game.
    """

    threads: ClassVar[list[tuple[str, str]]] = []  # name of each call and of the thread it ran in

    def __init__(
        self, where: str = "stepped", pause_s: float = 0.0, hang: bool = False, first: int = 1, turns: int = 30
    ) -> None:
        self._where, self._pause_s, self._hang, self._first, self._turns = where, pause_s, hang, first, turns
        self._calls = 0
        self._called("made")

    def _called(self, name: str) -> None:
        self.threads.append((name, threading.current_thread().name))
        if name != self._where:
            return
        self._calls += 1
        if self._calls >= self._first:
            time.sleep(self._pause_s)
            while self._hang:
                pass

    def reset(self, num_players: int, seed: int | None = None) -> None:
        self._called("reset")
        self.state = textarena.TwoPlayerState(num_players=num_players, seed=seed, max_turns=self._turns)
        self.state.reset()

    def get_observation(self) -> Any:
        self._called("observed")
        return super().get_observation()

    def step(self, action: str) -> tuple[bool, dict[str, Any]]:
        self._called("stepped")
        if self.state.turn + 1 >= self._turns:
            self.state.set_draw(reason="all turns played")
        answer: tuple[bool, dict[str, Any]] = self.state.step()
        return answer

    def close(self) -> Any:
        self._called("closed")
        return super().close()


SLOW = f"{__name__}:SlowEnv"
