"""Ctrl-C as a request: once to drain, twice to cancel; SIGTERM cancels at once."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any


class Interrupts:
    """Counts requests to stop while the block runs; in any thread but the main one it changes nothing.

    A third request raises `KeyboardInterrupt` on the spot, for a driver that no longer answers.
    """

    def __init__(self) -> None:
        self.count = 0
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is threading.main_thread():
            for signum, handler in ((signal.SIGINT, self._on_interrupt), (signal.SIGTERM, self._on_terminate)):
                self._previous[signum] = signal.signal(signum, handler)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for signum, handler in self._previous.items():
            signal.signal(signum, handler)

    @property
    def draining(self) -> bool:
        """No new games; the ones in flight play on."""
        return self.count >= 1

    @property
    def cancelling(self) -> bool:
        """The games in flight end now."""
        return self.count >= 2

    def _on_interrupt(self, signum: int, frame: FrameType | None) -> None:
        self.count += 1
        if self.count > 2:
            raise KeyboardInterrupt

    def _on_terminate(self, signum: int, frame: FrameType | None) -> None:
        self.count = max(self.count, 2)
