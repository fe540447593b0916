"""Token ids as they are kept, sent and stored: an immutable sequence of 32 bits each.

A learner's buffer holds millions of them. In a tuple each costs 8 bytes and, unless it is shared, an object of 32; to
pickle, to collect garbage and to make a column of a shard takes them one by one. Here they stay bytes until someone
looks at them.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, SupportsIndex, overload

from tasks.errors import DatasetError

_TOP_BYTES = slice(3 if sys.byteorder == "little" else 0, None, 4)


class TokenIds(Sequence[int]):
    """Token ids; equal to a tuple or list of the same ids, and with a tuple's hash.

    Args:
        ids: whole numbers from 0 to 2**31 - 1, which is what the dataset's columns hold.

    Raises:
        DatasetError: one of `ids` is something else.
    """

    __slots__ = ("_data",)

    def __init__(self, ids: Iterable[int] = ()) -> None:
        listed = list(ids)
        try:
            self._data = array("I", listed).tobytes()
        except (TypeError, OverflowError) as error:
            raise _no_ids(listed) from error
        if not self._data[_TOP_BYTES].isascii():  # one of them has its highest bit set
            raise _no_ids(listed)

    @classmethod
    def of_bytes(cls, data: bytes) -> TokenIds:
        """The ids that `bytes(ids)` stands for: 32 bits each, in the machine's byte order."""
        ids = cls.__new__(cls)
        ids._data = data
        return ids

    def __bytes__(self) -> bytes:
        return self._data

    def __len__(self) -> int:
        return len(self._data) // 4

    def __iter__(self) -> Iterator[int]:
        return iter(self._view())

    @overload
    def __getitem__(self, at: int) -> int: ...

    @overload
    def __getitem__(self, at: slice) -> TokenIds: ...

    def __getitem__(self, at: int | slice) -> int | TokenIds:
        found = self._view()[at]
        return found if isinstance(found, int) else TokenIds.of_bytes(found.tobytes())

    def __add__(self, other: TokenIds) -> TokenIds:
        return TokenIds.of_bytes(self._data + other._data)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, TokenIds):
            return self._data == other._data
        return isinstance(other, tuple | list) and self._view().tolist() == list(other)

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __repr__(self) -> str:
        return f"TokenIds({self._view().tolist()})"

    def _view(self) -> memoryview:
        return memoryview(self._data).cast("I")


NO_IDS = TokenIds()


def _no_ids(ids: list[Any]) -> DatasetError:
    """The error that names the first of the ids that is none."""
    odd = next(one for one in ids if not (isinstance(one, SupportsIndex) and 0 <= one.__index__() < 2**31))
    return DatasetError(f"token ids are whole numbers from 0 to 2**31 - 1, got {odd!r}; look at what the engine gave")
