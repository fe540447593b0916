"""Keeps Python's garbage collector from walking again and again over what a process has loaded for good.

A driver or a worker holds hundreds of thousands of objects of its libraries. Games make new ones fast enough that
collections, the full ones over all of them, took a third of the processor time of a turn.
"""

from __future__ import annotations

import gc

YOUNG = 10_000  # objects made since the last collection that start one; Python's own is 700


class LoadedHeap:
    """What is there when the first game has ended, for then everything that games need has been loaded."""

    def __init__(self) -> None:
        self._thresholds: tuple[int, int, int] | None = None

    def set_aside(self) -> None:
        """Leave what is there now out of collections, and have fewer of them; the first call counts.

        Objects still die by reference count.
        """
        if self._thresholds is None:
            self._thresholds = gc.get_threshold()
            gc.freeze()
            gc.set_threshold(YOUNG, *self._thresholds[1:])

    def take_back(self) -> None:
        """Collect as before."""
        if self._thresholds is not None:
            gc.set_threshold(*self._thresholds)
            gc.unfreeze()
            self._thresholds = None
