"""Coroutines handed to the event loop of another thread, and their results handed back.

As `asyncio.run_coroutine_threadsafe`, but for what waking costs: two loops that share the interpreter stop each other
whenever one is woken, which takes longer than to hand over ten results. So results wait for each other for a moment.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import partial
from typing import Any, Generic, TypeVar

TOGETHER_S = 0.01

T = TypeVar("T")


class Errands:
    """Runs coroutines of one event loop, the home, on that of another thread. Made on the home loop, and used there.

    Args:
        there: the other loop.
    """

    def __init__(self, there: asyncio.AbstractEventLoop) -> None:
        self._home = asyncio.get_running_loop()
        self._there = there
        self._out: deque[Callable[[], None]] = deque()
        self._back: deque[Callable[[], None]] = deque()

    async def run(self, make: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run what `make` makes on the other loop; return what it returns, raise what it raises.

        Cancelled, it cancels what runs there and does not wait for the end of it.

        Raises:
            RuntimeError: the other loop is closed.
        """
        answer: asyncio.Future[T] = self._home.create_future()
        errand = _Errand(make, answer, self._ended)
        self._send(errand.begin)
        try:
            return await answer
        except asyncio.CancelledError:
            with suppress(RuntimeError):  # the other loop is closed: what ran there was cancelled with it
                self._send(errand.cancel)
            raise

    def deliver(self) -> None:
        """Hand the results back that there are. Once more after the other loop has ended, where none may be lost."""
        if self._back:
            with suppress(RuntimeError):  # the home loop is closed: nobody waits any more
                self._home.call_soon_threadsafe(_do_all, self._back)

    def _send(self, errand: Callable[[], None]) -> None:
        self._out.append(errand)
        # With more than one the other loop has been woken already and not come to the first of them.
        if len(self._out) == 1:
            try:
                self._there.call_soon_threadsafe(_do_all, self._out)
            except RuntimeError:
                self._out.clear()
                raise

    def _ended(self, settle: Callable[[], None]) -> None:
        self._back.append(settle)
        if len(self._back) == 1:
            self._there.call_later(TOGETHER_S, self.deliver)


class _Errand(Generic[T]):
    """One coroutine: begun and cancelled there, settled at home."""

    def __init__(
        self,
        make: Callable[[], Coroutine[Any, Any, T]],
        answer: asyncio.Future[T],
        ended: Callable[[Callable[[], None]], None],
    ) -> None:
        self._answer = answer
        self._make = make
        self._ended = ended
        self._task: asyncio.Task[T] | None = None

    def begin(self) -> None:
        """On the other loop."""
        self._task = asyncio.get_running_loop().create_task(self._run())
        self._task.add_done_callback(lambda task: self._ended(partial(self._settle, task)))

    def cancel(self) -> None:
        """On the other loop, after `begin`."""
        if self._task is not None:
            self._task.cancel()

    async def _run(self) -> T:
        return await self._make()  # in the task, so that an error in making it is the task's too

    def _settle(self, task: asyncio.Task[T]) -> None:
        error = None if task.cancelled() else task.exception()
        if self._answer.done():
            return
        if task.cancelled():
            self._answer.cancel()
        elif error is not None:
            self._answer.set_exception(error)
        else:
            self._answer.set_result(task.result())


def _do_all(errands: deque[Callable[[], None]]) -> None:
    while errands:
        errands.popleft()()
