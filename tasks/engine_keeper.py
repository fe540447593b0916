"""Keeps one engine: starts it, rebuilds it once when its core dies, stops it. Knows nothing of Dask or of games.

Everything here lives on one event loop, the one the engine's own coroutines run on.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from importlib import import_module
from typing import Protocol, TypedDict

from tasks.contracts import AdapterRef, EngineReply, EngineSpec, EngineState, SamplingSpec
from tasks.errors import EngineDiedError, EngineStartError, SelfplayError, boundary

STOP_TIMEOUT_S = 20.0

logger = logging.getLogger(__name__)


class EngineLoad(TypedDict):
    """What an engine says of its work. Token counts are totals since it started.

    `kv_use` and `prefix_hit_rate` are shares in [0, 1], None before the first measurement.
    """

    running_requests: int
    waiting_requests: int
    prompt_tokens: int
    generated_tokens: int
    kv_use: float | None
    prefix_hit_rate: float | None


IDLE = EngineLoad(
    running_requests=0, waiting_requests=0, prompt_tokens=0, generated_tokens=0, kv_use=None, prefix_hit_rate=None
)


class Engine(Protocol):
    """What answers for the models of a worker. Made from an `EngineSpec`; used on one event loop only."""

    async def start(self) -> None:
        """Come up; return when requests are answered. Whatever it raises becomes the reason of the failure."""

    async def stop(self) -> None:
        """Go down and leave no process behind. Called once, also after `start` failed or was cancelled half-way, or
        after the engine died."""

    async def generate(
        self,
        messages: Sequence[Mapping[str, str]],
        sampling: SamplingSpec,
        *,
        n: int,
        seed: int,
        adapter: AdapterRef | None,
    ) -> EngineReply:
        """Answer chat messages with `n` completions; the model's own chat template is applied here.

        Raises:
            PromptTooLongError: the prompt leaves no room for one token.
            AdapterError: the adapter does not fit the base model.
            EngineDiedError: the engine died before or while it worked on the request, or was stopped.
        """

    def load(self) -> EngineLoad:
        """How busy the engine is."""


def import_engine(path: str) -> Callable[[EngineSpec], Engine]:
    """Import the class behind `package.module:Class`.

    Raises:
        EngineStartError: there is no such module or class here, or its import raised.
    """
    module, _, name = path.partition(":")
    with boundary() as caught:
        factory: Callable[[EngineSpec], Engine] = getattr(import_module(module), name)
        return factory
    raise EngineStartError(
        f"the engine {path!r} cannot be imported on the worker: {caught.summary}. Expected 'package.module:Class', "
        "installed where the worker runs or on its PYTHONPATH"
    ) from caught.error


class EngineKeeper:
    """One engine and where it stands.

    `engine` is None before the first start, and always when the spec names none. `load` is as last measured.

    Args:
        spec: the engine to keep; without a factory there is nothing to start and the keeper is ready at once.
        on_change: called after each change of `state`.
        on_start_failure: called with the reason when an engine, the first or the rebuilt one, cannot start.
    """

    def __init__(
        self, spec: EngineSpec, on_change: Callable[[], None], on_start_failure: Callable[[str], None]
    ) -> None:
        self.engine: Engine | None = None
        self.state = EngineState.STARTING
        self.reason = ""
        self.restarts = 0
        self.load = IDLE
        self._spec = spec
        self._on_change = on_change
        self._on_start_failure = on_start_failure
        self._up: Engine | None = None  # `engine` outlives its stop, so that the games it failed are known by it
        self._work: asyncio.Task[None] | None = None
        self._stopping: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start the engine in the background."""
        self._work = asyncio.create_task(self._build())

    def decline(self, reason: str) -> None:
        """Never start an engine, for this reason."""
        self._change(EngineState.STOPPED, reason)

    def lost(self, engine: Engine | None, error: EngineDiedError) -> None:
        """Hear from a game that its engine died. The first game to tell counts; the others saw the same death."""
        if engine is not self.engine or self.state is not EngineState.READY:
            return
        logger.warning("The engine died: %s", error)
        if self.restarts:
            self._change(EngineState.FAILED, f"the engine died a second time: {error}")
            self._work = asyncio.create_task(self._discard())
        else:
            self.restarts += 1
            self._change(EngineState.STARTING, f"the engine died: {error}")
            self._work = asyncio.create_task(self._rebuild())

    async def stop(self) -> None:
        """Give up what is under way and stop the engine. `state` is `stopped` afterwards, whatever happened before."""
        if self._work is not None:
            self._work.cancel()
            await asyncio.wait([self._work])
        await self._discard()
        self._change(EngineState.STOPPED, self.reason)

    def measure(self) -> None:
        """Ask the engine for its load, if it is ready."""
        if self.engine is not None and self.state is EngineState.READY:
            with boundary(lambda error: logger.error("The engine does not tell its load: %r", error)):
                self.load = self.engine.load()

    async def _rebuild(self) -> None:
        await self._discard()
        await self._build()

    async def _build(self) -> None:
        if self._spec.factory is None:
            self._change(EngineState.READY, "")
            return
        failure = await _failure_of(self._start_engine(self._spec.factory))
        if failure is None:
            self._change(EngineState.READY, "")
            return
        self._change(EngineState.FAILED, failure)
        await self._discard()
        self._on_start_failure(failure)

    async def _start_engine(self, path: str) -> None:
        # Importing an engine's libraries takes seconds; the loop has games to cancel and figures to send meanwhile.
        factory = await asyncio.to_thread(import_engine, path)
        self.load = IDLE
        self.engine = self._up = factory(self._spec)
        await self.engine.start()

    async def _discard(self) -> None:
        """Stop the engine that is up, if one is. To be cancelled while waiting does not leave it half stopped."""
        if self._up is not None:
            self._stopping = asyncio.create_task(_stop_in_time(self._up))
            self._up = None
        if self._stopping is not None:
            await asyncio.shield(self._stopping)

    def _change(self, state: EngineState, reason: str) -> None:
        self.state, self.reason = state, reason
        self._on_change()


async def _failure_of(step: Awaitable[None]) -> str | None:
    """Why an engine's own code did not come through, on one line; None when it did."""
    try:
        with boundary() as caught:
            await step
    except SelfplayError as error:
        return str(error)
    return caught.summary or None


async def _stop_in_time(engine: Engine) -> None:
    failure = await _failure_of(asyncio.wait_for(engine.stop(), STOP_TIMEOUT_S))
    if failure is not None:
        logger.error("The engine did not stop cleanly within %.0f s: %s", STOP_TIMEOUT_S, failure)
