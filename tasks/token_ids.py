"""Token ids that share their integers: a learner's buffer holds millions of the same few thousand.

A fresh Python integer weighs 32 bytes, so that a tuple of 300 fresh ones weighs 12 kB; with shared ones it is 2.4 kB.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import itemgetter

LARGEST_TABLE = 2**18  # more than vocabularies have


class _Table:
    """The process's one object for each small integer; grows by being replaced, so that threads need no lock."""

    def __init__(self) -> None:
        self._integers: tuple[int, ...] = ()

    def shared(self, ids: tuple[int, ...]) -> tuple[int, ...]:
        if len(ids) < 2 or min(ids) < 0:
            return ids
        # In one call: a loop in Python would take longer than the ids did to arrive.
        pick: Callable[[tuple[int, ...]], tuple[int, ...]] = itemgetter(*ids)
        try:
            return pick(self._integers)
        except IndexError:
            if max(ids) >= LARGEST_TABLE:
                return ids
            integers = self._integers = tuple(range(max(ids) + 1))
            return pick(integers)


shared = _Table().shared
"""Equal ids, made of integers that all others share; as they are where an id is no token's."""
