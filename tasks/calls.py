"""Where an environment's calls run: on the event loop while they are quick, in threads otherwise.

A call that does not come back is interrupted by an exception raised inside its thread, which ends every loop written in
Python. What sits in compiled code stays where it is, its thread abandoned; threads are daemons, so that no exit waits
for one.
"""

from __future__ import annotations

import asyncio
import ctypes
import math
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from queue import Empty, SimpleQueue
from typing import Any, ClassVar, Generic, TypeVar

from tasks.errors import EnvironmentFault, EnvironmentHungError, MustWaitError, SelfplayError, boundary

SLOW_CALL_S = 0.005
PROOF_CALLS = 20  # quick calls after which an environment's calls stay on the loop; a slow one undoes as many
INLINE_LIMIT_S = 5.0
CALL_LIMIT_S = 60.0
MAKING_LIMIT_S = 600.0  # includes the wait for others of the same package
MAX_STUCK = 4
MAX_IDLE_THREADS = 32

T = TypeVar("T")


class _Interrupted(BaseException):
    """Raised inside a call that is no longer waited for. No `Exception`, so that environments let it through."""


class _Outcome(Generic[T]):
    """What a call gave or raised, to be had in another thread."""

    def __init__(self, function: Callable[[], T]) -> None:
        self.error: Exception | None = None
        started = time.perf_counter()
        try:
            with boundary() as caught:
                self._value = function()
            self.error = caught.error
        except SelfplayError as error:
            self.error = error
        self.seconds = time.perf_counter() - started

    def get(self) -> T:
        """Return what the call gave, or raise what it raised."""
        if self.error is not None:
            raise self.error
        return self._value


class EnvironmentCalls:
    """Runs the calls of one game, one at a time.

    An environment's calls run in threads until some were quick, over all games of this process; then they run on the
    loop, where a call costs nothing extra. A slow call moves its game's later calls to threads, and counts against the
    environment, which goes back to threads when slow calls are more than a rare stall of the machine. Making an
    environment has a record of its own.

    Args:
        env_id: whose record counts.
    """

    _standing: ClassVar[Counter[str]] = Counter()
    _making_standing: ClassVar[Counter[str]] = Counter()
    _hung: ClassVar[set[str]] = set()  # environments that hung on the loop once

    def __init__(self, env_id: str) -> None:
        self._env_id = env_id
        self._slow = False

    async def make(self, function: Callable[[bool], T]) -> T:
        """Run what makes the environment.

        Args:
            function: told whether it may wait for a lock that others hold, which nothing can interrupt; raises
                `MustWaitError` where it may not and would have to.

        Raises:
            EnvironmentFault: too many calls of this environment hang already.
            EnvironmentHungError: the call did not come back in time.
        """
        stuck = _stuck_calls(self._env_id)
        if stuck >= MAX_STUCK:
            raise EnvironmentFault(
                f"{self._env_id} has {stuck} calls in this process that never came back, at most {MAX_STUCK} are put "
                "up with; leave this environment out, or restart the worker."
            )
        outcome = self._inline(lambda: function(False)) if self._trusted(self._making_standing) else None
        if outcome is None or isinstance(outcome.error, MustWaitError):
            outcome = await _in_thread(lambda: function(True), self._env_id, MAKING_LIMIT_S)
        self._note(self._making_standing, outcome)
        return outcome.get()

    async def run(self, function: Callable[[], T]) -> T:
        """Run one call and return what it returns.

        Raises:
            EnvironmentHungError: the call did not come back in time.
        """
        if self._trusted(self._standing) and not self._slow:
            outcome = self._inline(function)
        else:
            outcome = await _in_thread(function, self._env_id, CALL_LIMIT_S)
        self._slow |= self._note(self._standing, outcome)
        return outcome.get()

    def _trusted(self, standing: Counter[str]) -> bool:
        return standing[self._env_id] >= PROOF_CALLS and self._env_id not in self._hung

    def _note(self, standing: Counter[str], outcome: _Outcome[Any]) -> bool:
        """Keep the record; returns whether the call was slow."""
        slow = outcome.seconds > SLOW_CALL_S
        changed = min(standing[self._env_id] + 1, 2 * PROOF_CALLS)
        standing[self._env_id] = max(changed - PROOF_CALLS, 0) if slow else changed
        return slow

    def _inline(self, function: Callable[[], T]) -> _Outcome[T]:
        _WATCHDOG.enter()
        try:
            outcome = _Outcome(function)
            _WATCHDOG.leave()
            return outcome
        except _Interrupted:
            _WATCHDOG.forget()
            self._hung.add(self._env_id)
            raise _hung_error(self._env_id, INLINE_LIMIT_S) from None


def call_with_limit(function: Callable[[], T], name: str, limit_s: float) -> T:
    """Run a call in a thread and wait for it, without an event loop.

    Args:
        function: the call; what it raises is raised here.
        name: the environment, for the message.
        limit_s: how long to wait.

    Raises:
        EnvironmentHungError: the call did not come back in time.
    """
    answers: SimpleQueue[_Outcome[T]] = SimpleQueue()
    thread = _ready_thread()
    thread.start_call(lambda: answers.put(_Outcome(function)))
    try:
        outcome = answers.get(timeout=limit_s)
    except Empty:
        thread.abandon(name)
        raise _hung_error(name, limit_s) from None
    _put_back(thread)
    return outcome.get()


@contextmanager
def held(lock: threading.Lock, may_wait: bool) -> Iterator[None]:
    """Hold a lock; for what is given to `EnvironmentCalls.make`.

    Raises:
        MustWaitError: others hold it, and this must not wait.
    """
    if not lock.acquire(blocking=may_wait):
        raise MustWaitError("others hold what this needs")
    try:
        yield
    finally:
        lock.release()


class _CallThread(threading.Thread):
    """A daemon that runs calls, one at a time, until it is told to stop or is interrupted."""

    def __init__(self) -> None:
        super().__init__(name="environment-call", daemon=True)
        self._calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self.start()

    def run(self) -> None:
        """Take calls, one after the other."""
        try:
            while (call := self._calls.get()) is not None:
                call()
        except _Interrupted:
            return

    def start_call(self, call: Callable[[], None]) -> None:
        """Give it a call and do not wait."""
        self._calls.put(call)

    def last(self) -> None:
        """Stop after the calls given so far."""
        self._calls.put(None)

    def abandon(self, env_id: str) -> None:
        """Wait for its call no longer: interrupt it, and remember the thread while it lives."""
        _interrupt(self.ident)  # before it may end: thread ids are used again
        self.last()
        _abandoned[env_id].append(self)


class _Watchdog:
    """Interrupts calls on event loops that hold their loop for longer than `INLINE_LIMIT_S`.

    An interruption must end the call it was meant for and nothing after it: it is sent only while the call is entered,
    and `leave` waits for one that was sent and has not arrived.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._since: dict[int, float] = {}  # by thread; infinity once an interruption was sent
        self._thread: threading.Thread | None = None

    def enter(self) -> None:
        """A call begins on this thread."""
        with self._lock:
            self._since[threading.get_ident()] = time.monotonic()
            if self._thread is None:
                self._thread = threading.Thread(target=self._watch, name="environment-watchdog", daemon=True)
                self._thread.start()

    def leave(self) -> None:
        """The call has ended by itself."""
        with self._lock:
            sent = self._since.pop(threading.get_ident()) == math.inf
        while sent:
            time.sleep(0.001)  # ends by the interruption

    def forget(self) -> None:
        """After an interruption has arrived."""
        with self._lock:
            self._since.pop(threading.get_ident(), None)

    def _watch(self) -> None:
        while True:
            time.sleep(INLINE_LIMIT_S / 10)
            with self._lock:
                for thread_id, since in self._since.items():
                    if math.inf > since < time.monotonic() - INLINE_LIMIT_S:
                        self._since[thread_id] = math.inf
                        _interrupt(thread_id)


async def _in_thread(function: Callable[[], T], env_id: str, limit_s: float) -> _Outcome[T]:
    """Run a call in a thread; when it is waited for no longer, by limit or by cancellation, the thread is abandoned."""
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[_Outcome[T]] = loop.create_future()

    def settle(outcome: _Outcome[T]) -> None:
        """On the loop; too late where the wait was given up."""
        if not answer.done():
            answer.set_result(outcome)

    def call() -> None:
        """In the thread."""
        outcome = _Outcome(function)
        with suppress(RuntimeError):  # the loop was closed meanwhile
            loop.call_soon_threadsafe(settle, outcome)

    thread = _ready_thread()
    thread.start_call(call)
    try:
        done, _ = await asyncio.wait([answer], timeout=limit_s)
    finally:
        if answer.done():
            _put_back(thread)
        else:
            answer.cancel()
            thread.abandon(env_id)
    if not done:
        raise _hung_error(env_id, limit_s)
    return answer.result()


def _ready_thread() -> _CallThread:
    try:
        return _idle.pop()
    except IndexError:
        return _CallThread()


def _put_back(thread: _CallThread) -> None:
    """Keep a thread for the next call, but not one for each of the games that a run begins with at once."""
    if len(_idle) < MAX_IDLE_THREADS:
        _idle.append(thread)
    else:
        thread.last()


def _hung_error(env_id: str, limit_s: float) -> EnvironmentHungError:
    return EnvironmentHungError(
        f"a call of {env_id} did not come back within {limit_s:g} s; if it keeps happening, leave this environment out."
    )


def _interrupt(thread_id: int | None) -> None:
    """Raise `_Interrupted` in a thread as soon as it runs Python code."""
    if thread_id is not None:
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread_id), ctypes.py_object(_Interrupted))


def _stuck_calls(env_id: str) -> int:
    """Abandoned calls of the environment that still run."""
    _abandoned[env_id] = [thread for thread in _abandoned[env_id] if thread.is_alive()]
    return len(_abandoned[env_id])


_idle: list[_CallThread] = []
_abandoned: defaultdict[str, list[_CallThread]] = defaultdict(list)
_WATCHDOG = _Watchdog()
