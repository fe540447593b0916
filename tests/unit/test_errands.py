"""Coroutines handed to another thread's loop: what comes back, what is cancelled, and how often a loop is woken."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tasks.errands import TOGETHER_S, Errands


@pytest.fixture
def there() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    yield loop
    if not loop.is_closed():
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def wakes(loop: asyncio.AbstractEventLoop, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Fills as other threads wake the loop."""
    woken: list[Any] = []
    wake = loop.call_soon_threadsafe

    def counted(callback: Callable[..., Any], *args: Any, **kwargs: Any) -> asyncio.Handle:
        woken.append(callback)
        return wake(callback, *args, **kwargs)

    monkeypatch.setattr(loop, "call_soon_threadsafe", counted)
    return woken


async def doubled(number: int, seconds: float = 0.0) -> tuple[int, str]:
    await asyncio.sleep(seconds)
    return 2 * number, threading.current_thread().name


async def fail() -> None:
    raise LookupError("nothing there")


def test_each_caller_gets_its_own_result_from_the_other_thread(there: asyncio.AbstractEventLoop) -> None:
    async def many() -> list[tuple[int, str]]:
        errands = Errands(there)
        return await asyncio.gather(
            *(errands.run(lambda i=i: doubled(i, seconds=i % 7 / 100)) for i in range(500))  # type: ignore[misc]
        )

    results = asyncio.run(many())
    assert [number for number, _ in results] == [2 * i for i in range(500)]
    assert threading.current_thread().name not in {name for _, name in results}


def test_what_begins_and_ends_together_wakes_each_loop_once(
    there: asyncio.AbstractEventLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    woken_there = wakes(there, monkeypatch)

    async def many() -> list[Any]:
        woken_here = wakes(asyncio.get_running_loop(), monkeypatch)
        held = threading.Event()
        there.call_soon_threadsafe(held.wait)
        woken_there.clear()
        errands = Errands(there)
        calls = asyncio.gather(*(errands.run(lambda: doubled(1)) for _ in range(50)))
        await asyncio.sleep(0.01)
        held.set()
        await calls
        return woken_here

    assert len(asyncio.run(many())) == 1
    assert len(woken_there) == 1


def test_an_error_is_raised_where_it_is_waited_for(there: asyncio.AbstractEventLoop) -> None:
    async def wait() -> int:
        errands = Errands(there)
        with pytest.raises(LookupError, match="nothing there"):
            await errands.run(fail)
        return (await errands.run(lambda: doubled(3)))[0]

    assert asyncio.run(wait()) == 6


def test_an_error_in_making_a_coroutine_strands_no_other(there: asyncio.AbstractEventLoop) -> None:
    def unmade() -> Any:
        raise LookupError("nothing to make")

    async def three() -> list[Any]:
        errands = Errands(there)
        makes = (lambda: doubled(1), unmade, lambda: doubled(2))
        return await asyncio.wait_for(asyncio.gather(*map(errands.run, makes), return_exceptions=True), 5)

    first, second, third = asyncio.run(three())
    assert (first[0], repr(second), third[0]) == (2, "LookupError('nothing to make')", 4)


def test_a_cancelled_caller_cancels_what_runs_there(there: asyncio.AbstractEventLoop) -> None:
    begun, cancelled = threading.Event(), threading.Event()

    async def linger() -> None:
        begun.set()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.set()
            raise

    async def cancel() -> None:
        caller = asyncio.create_task(Errands(there).run(linger))
        await asyncio.to_thread(begun.wait, 10)
        caller.cancel()
        with pytest.raises(asyncio.CancelledError):
            await caller
        assert await asyncio.to_thread(cancelled.wait, 10)
        await asyncio.sleep(2 * TOGETHER_S)  # a result that nobody waits for arrives, and is no error

    asyncio.run(cancel())


def test_results_that_wait_as_the_other_loop_ends_are_delivered_all_the_same() -> None:
    there = asyncio.new_event_loop()
    last = asyncio.Event()

    async def end() -> int:
        last.set()
        return 8

    async def wait() -> list[Any]:
        errands = Errands(there)

        def main() -> None:
            with asyncio.Runner(loop_factory=lambda: there) as runner:
                runner.run(last.wait())  # type: ignore[arg-type]
            errands.deliver()

        calls = asyncio.gather(errands.run(lambda: doubled(4, 60)), errands.run(end), return_exceptions=True)
        thread = threading.Thread(target=main)
        thread.start()
        results = await asyncio.wait_for(calls, 10)
        await asyncio.to_thread(thread.join)
        return results

    cut_off, ended = asyncio.run(wait())
    assert isinstance(cut_off, asyncio.CancelledError)
    assert ended == 8


def test_a_loop_that_is_closed_takes_nothing_more(there: asyncio.AbstractEventLoop) -> None:
    async def late() -> None:
        errands = Errands(there)
        assert (await errands.run(lambda: doubled(5)))[0] == 10
        there.call_soon_threadsafe(there.stop)
        while there.is_running():
            await asyncio.sleep(0.001)
        there.close()
        for _ in range(2):
            with pytest.raises(RuntimeError, match="closed"):
                await errands.run(lambda: doubled(5))

    asyncio.run(late())
