"""Who may play now: a gate per lane that lets games in, in the order they came, up to the lane's limit.

Everything here lives on one event loop; nothing is locked.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict, deque
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from tasks.contracts import Mode
from tasks.errors import ConfigError, EngineStartError


def checked_limits(limits: Mapping[str, int | None]) -> dict[Mode, int | None]:
    """The limits by lane, as `Lanes.set_limits` takes them.

    Raises:
        ConfigError: a lane is unknown or a limit is negative.
    """
    for lane, limit in limits.items():
        if lane not in set(Mode):
            raise ConfigError(f"lane {lane!r} is unknown, expected one of {', '.join(Mode)}")
        if limit is not None and limit < 0:
            raise ConfigError(f"the limit of lane {lane!r} is {limit}, expected 0 or more, or None for no limit")
    return {Mode(lane): limit for lane, limit in limits.items()}


class Lanes:
    """Gates for all lanes. Shut until `open`; a lane without a limit lets everybody in once it is open."""

    def __init__(self) -> None:
        self._limits: dict[Mode, int | None] = {}
        self._running: Counter[Mode] = Counter()
        self._waiting: defaultdict[Mode, deque[asyncio.Future[None]]] = defaultdict(deque)
        self._open = False
        self._refusal: str | None = None

    @property
    def running(self) -> int:
        """Games inside, over all lanes."""
        return self._running.total()

    @asynccontextmanager
    async def slot(self, lane: Mode) -> AsyncIterator[None]:
        """Wait for a place in the lane and hold it inside the block.

        Raises:
            EngineStartError: `refuse` was called, before or while waiting.
        """
        await self._enter(lane)
        try:
            yield
        finally:
            self._leave(lane)

    def set_limits(self, limits: Mapping[Mode, int | None]) -> None:
        """Set the most games inside at once, by lane; None is no limit. Lanes not named keep theirs."""
        self._limits.update(limits)
        self._admit_all()

    def open(self) -> None:
        """Let games in, up to the limits."""
        self._open = True
        self._admit_all()

    def shut(self) -> None:
        """Let nobody else in until `open`; the games inside are left alone."""
        self._open = False

    def refuse(self, reason: str) -> None:
        """Turn away everybody who waits and everybody who will come."""
        self.shut()
        self._refusal = reason
        for waiting in self._waiting.values():
            for turn in waiting:
                if not turn.done():
                    turn.set_exception(EngineStartError(reason))
            waiting.clear()

    async def _enter(self, lane: Mode) -> None:
        if self._refusal is not None:
            raise EngineStartError(self._refusal)
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[lane].append(turn)
        self._admit(lane)
        try:
            await turn
        except asyncio.CancelledError:
            # The place may have been given to a game in the very moment it was cancelled.
            if turn.done() and not turn.cancelled() and turn.exception() is None:
                self._leave(lane)
            raise

    def _leave(self, lane: Mode) -> None:
        self._running[lane] -= 1
        self._admit(lane)

    def _admit_all(self) -> None:
        for lane in Mode:
            self._admit(lane)

    def _admit(self, lane: Mode) -> None:
        waiting, limit = self._waiting[lane], self._limits.get(lane)
        while self._open and waiting and (limit is None or self._running[lane] < limit):
            turn = waiting.popleft()
            if not turn.done():
                self._running[lane] += 1
                turn.set_result(None)
