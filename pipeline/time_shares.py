"""Where the time of a training run goes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal

Phase = Literal["waiting", "learning", "publishing"]


class TimeShares:
    """Shares of wall time. Safe to use from several threads.

    What the learning thread does, one thing at a time: `waiting` for data, `learning`, `publishing` (with the
    checkpoint); the rest of its time is the start of the run. Beside it, as samples tell: `collecting` while games are
    in flight, `engines_idle` while engines are up and none has a game.

    Args:
        clock: gives the time in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._seconds = dict.fromkeys(("waiting", "learning", "publishing", "collecting", "engines_idle"), 0.0)
        self._began = clock()
        self._sampled = self._began

    @contextmanager
    def phase(self, name: Phase) -> Iterator[None]:
        """The block is that part of the learning thread's time."""
        began = self._clock()
        try:
            yield
        finally:
            with self._lock:
                self._seconds[name] += self._clock() - began

    def sample(self, in_flight: int, engines: int) -> None:
        """What is going on since the last sample: games in flight, and engines that are up."""
        with self._lock:
            now = self._clock()
            passed, self._sampled = now - self._sampled, now
            if in_flight:
                self._seconds["collecting"] += passed
            elif engines:
                self._seconds["engines_idle"] += passed

    def shares(self) -> dict[str, float]:
        """The shares up to now, each in [0, 1]."""
        with self._lock:
            wall = max(self._clock() - self._began, 1e-9)
            return {name: min(1.0, seconds / wall) for name, seconds in self._seconds.items()}
