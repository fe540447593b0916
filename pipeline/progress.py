"""What a person sees while a run goes on: one line, renewed at least every other second.

On a terminal the line rewrites itself; in a log each is a line of its own.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import TextIO

from pipeline.ledger import Snapshot
from tasks.contracts import Mode

TERMINAL_EVERY_S = 0.5
LOG_EVERY_S = 1.5
LATER_LOG_EVERY_S = 30.0  # nobody watches a log for hours, and everybody has to read it
LATER_S = 600.0


class Progress:
    """Prints the stage, then the games. A context manager with its own thread, so that no import or start stalls it.

    Args:
        stream: where to; standard error by default.
    """

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self._terminal = self._stream.isatty()
        self._stage = "starting"
        self._snapshot: Callable[[], Snapshot | None] = lambda: None
        self._started = time.monotonic()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="selfplay-progress", daemon=True)

    def __enter__(self) -> Progress:
        self._print()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Print a last line and be silent from then on. Closing twice is no error."""
        if not self._stopped.is_set():
            self._stopped.set()
            self._thread.join()
            self._print(last=True)

    def stage(self, text: str) -> None:
        """What is being done now, in a few words; shown until `watch` has something better or the next stage."""
        self._snapshot = lambda: None
        self._stage = text
        self._print()

    def watch(self, snapshot: Callable[[], Snapshot | None]) -> None:
        """From now on show what this returns, while it returns something."""
        self._snapshot = snapshot

    def line(self) -> str:
        """The line as it would be printed now."""
        snapshot = self._snapshot()
        text = self._stage if snapshot is None else describe(snapshot)
        return f"[{time.monotonic() - self._started:4.0f} s] {text}"

    def _run(self) -> None:
        while not self._stopped.wait(self._pause_s()):
            self._print()

    def _pause_s(self) -> float:
        if self._terminal:
            return TERMINAL_EVERY_S
        return LOG_EVERY_S if time.monotonic() - self._started < LATER_S else LATER_LOG_EVERY_S

    def _print(self, *, last: bool = False) -> None:
        if self._terminal:
            self._stream.write("\r\x1b[2K" + self.line() + ("\n" if last else ""))
        else:
            self._stream.write(self.line() + "\n")
        self._stream.flush()


def describe(snapshot: Snapshot) -> str:
    """A collection in one line: games done, in flight, queued and failed, tokens per second, the policy's win rate."""
    if not snapshot.in_flight and not any(snapshot.done.values()):
        return snapshot.stage
    parts = [
        snapshot.stage,
        f"train {snapshot.done[Mode.TRAIN]} done",
        f"eval {snapshot.done[Mode.EVAL]} done",
        f"{snapshot.in_flight} in flight (+{snapshot.queued} queued)",
        f"{snapshot.failed} failed",
    ]
    if snapshot.tokens_per_s:
        parts.append(f"{snapshot.tokens_per_s:.0f} tokens/s")
    if snapshot.eval_results:
        share = snapshot.eval_wins / snapshot.eval_results
        parts.append(f"win rate {share:.0%} ({snapshot.eval_wins} of {snapshot.eval_results} evaluation games)")
    return " · ".join(parts)
