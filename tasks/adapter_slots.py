"""Decides which adapters an engine holds at a time: loaded when first asked for, kept while used, replaced when old.

Knows nothing of vLLM: what loading and unloading mean is given. All of it lives on one event loop.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, Generic, TypeVar

from tasks.contracts import AdapterRef

Handle = TypeVar("Handle")


class _Slot(Generic[Handle]):
    """One adapter that is loaded or being loaded. A slot that is `closing` takes no more users and empties."""

    def __init__(self, loading: asyncio.Future[Handle]) -> None:
        self.loading = loading
        self.users = 0
        self.closing = False


class AdapterSlots(Generic[Handle]):
    """Holds at most `capacity` adapters, however many are asked for at once.

    Whoever asks for one that is there gets it at once, whatever else is being loaded. Whoever needs room waits in line:
    the adapter that was not asked for longest is given up, an idle one if there is any, else the oldest as soon as its
    users are through; it takes no new ones, so the line always moves.

    Args:
        load: loads an adapter and returns the handle for it. What it raises is raised to all who wait for it; the next
            one to ask has it loaded anew.
        unload: gives the engine's room for a handle back.
        capacity: how many adapters the engine holds.
    """

    def __init__(
        self,
        load: Callable[[AdapterRef], Awaitable[Handle]],
        unload: Callable[[Handle], Awaitable[None]],
        capacity: int,
    ) -> None:
        self._load = load
        self._unload = unload
        self._capacity = capacity
        self._slots: OrderedDict[str, _Slot[Handle]] = OrderedDict()  # by uid, the one asked for last at the end
        self._line = asyncio.Lock()
        self._room = asyncio.Event()
        self._unloading: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def held(self, adapter: AdapterRef) -> AsyncIterator[Handle]:
        """The handle of an adapter, which stays loaded meanwhile.

        Raises:
            Exception: what `load` raises.
        """
        slot = self._open_slot(adapter.uid)
        if slot is None:
            async with self._line:
                slot = await self._new_slot(adapter)
        try:
            # Others wait for the same loading, which must not end with a game that was cancelled.
            yield await asyncio.shield(slot.loading)
        finally:
            slot.users -= 1
            self._empty_if_left(adapter.uid, slot)

    async def close(self) -> None:
        """Give up what is being loaded or unloaded, as the engine stops."""
        tasks: list[asyncio.Future[Any]] = [*self._unloading, *(slot.loading for slot in self._slots.values())]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _open_slot(self, uid: str) -> _Slot[Handle] | None:
        """The slot of an adapter with one user more; None where there is none to join."""
        slot = self._slots.get(uid)
        if slot is None or slot.closing:
            return None
        slot.users += 1
        self._slots.move_to_end(uid)
        return slot

    async def _new_slot(self, adapter: AdapterRef) -> _Slot[Handle]:
        """Wait until there is room for one adapter more, or somebody else has brought this one."""
        while True:
            slot = self._open_slot(adapter.uid)
            if slot is not None:
                return slot
            if adapter.uid not in self._slots and len(self._slots) < self._capacity:
                loading = asyncio.ensure_future(self._load(adapter))
                loading.add_done_callback(lambda task: self._forget_if_failed(adapter.uid, task))
                self._slots[adapter.uid] = _Slot(loading)
                continue
            self._room.clear()
            self._close_one()
            await self._room.wait()

    def _close_one(self) -> None:
        if any(slot.closing for slot in self._slots.values()):
            return
        idle = (uid for uid, slot in self._slots.items() if not slot.users)
        uid = next(idle, next(iter(self._slots)))
        self._slots[uid].closing = True
        self._empty_if_left(uid, self._slots[uid])

    def _empty_if_left(self, uid: str, slot: _Slot[Handle]) -> None:
        if slot.closing and not slot.users and self._slots.get(uid) is slot:
            task = asyncio.ensure_future(self._give_back(uid, slot))
            self._unloading.add(task)
            task.add_done_callback(self._unloading.discard)

    async def _give_back(self, uid: str, slot: _Slot[Handle]) -> None:
        await asyncio.wait([slot.loading])
        if self._slots.get(uid) is not slot:
            return  # it failed to load, and has made room itself
        await self._unload(slot.loading.result())
        del self._slots[uid]
        self._room.set()

    def _forget_if_failed(self, uid: str, loading: asyncio.Future[Handle]) -> None:
        if loading.cancelled() or loading.exception() is not None:
            del self._slots[uid]
            self._room.set()
