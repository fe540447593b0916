"""An environment that takes its process with it."""

from __future__ import annotations

import os
import signal


class CrashEnv:
    """Ends the process in which it is made or reset.

    Args:
        where: `made` or `reset`.
        segfault: by a signal, as a fault in compiled code does; otherwise with exit status 3.
    """

    def __init__(self, where: str = "made", segfault: bool = False) -> None:
        self._where, self._segfault = where, segfault
        self._called("made")

    def _called(self, name: str) -> None:
        if name == self._where:
            if self._segfault:
                os.kill(os.getpid(), signal.SIGSEGV)
            os._exit(3)

    def reset(self, num_players: int, seed: int | None = None) -> None:
        self._called("reset")


CRASH = f"{__name__}:CrashEnv"
