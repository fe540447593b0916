"""Token ids on their way between processes: packed while they travel, made of shared integers where they arrive.

A learner's buffer holds millions of the same few thousand. A fresh Python integer weighs 32 bytes, so that a tuple of
300 fresh ones weighs 12 kB; with shared ones it is 2.4 kB.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from operator import itemgetter

LARGEST_TABLE = 2**18  # more than vocabularies have

Packed = bytes | tuple[int, ...]
"""32 bits for each id, in the machine's byte order; or the ids as they are, where one of them is no token's."""


def packed(ids: tuple[int, ...]) -> Packed:
    """Ids in a form that is quick to pickle and to take apart again."""
    if len(ids) < 2:
        return ids
    try:
        return array("I", ids).tobytes()
    except OverflowError:
        return ids


class _Table:
    """The process's one object for each small integer; grows by being replaced, so that threads need no lock."""

    def __init__(self) -> None:
        self._integers: tuple[int, ...] = ()

    def unpacked(self, ids: Packed) -> tuple[int, ...]:
        """See the module's `unpacked`."""
        if isinstance(ids, tuple):
            return ids
        numbers = memoryview(ids).cast("I")
        # In one call: a loop in Python would take longer than the ids did to arrive.
        pick: Callable[[tuple[int, ...]], tuple[int, ...]] = itemgetter(*numbers)
        try:
            return pick(self._integers)
        except IndexError:
            largest = max(numbers)
            if largest >= LARGEST_TABLE:
                return tuple(numbers)
            integers = self._integers = tuple(range(largest + 1))
            return pick(integers)


unpacked = _Table().unpacked
"""The ids that were packed, made of integers that all others share."""
