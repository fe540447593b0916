"""Loads LoRA adapters into a running vLLM core and takes them out again, while other requests go on.

vLLM reads an adapter's files again when its own cache has dropped it, in the middle of a step, where a file that is
gone kills the core. So what the core holds is decided here, within the places it has, and its cache never drops one.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tasks.adapter_delivery import open_adapter
from tasks.adapter_files import check_adapter
from tasks.adapter_manifest import check_base
from tasks.adapter_slots import AdapterSlots
from tasks.base_model import BaseModel
from tasks.contracts import AdapterRef, LoraSpec
from tasks.errors import AdapterError, boundary

DEATH_CHECK_S = 0.5


class EngineAdapters:
    """The adapters of one engine, by uid. Used on the engine's event loop.

    Args:
        llm: vLLM's `AsyncLLM`, started with LoRA.
        base: the model it runs.
        lora: the shape of adapters it was started for.
        places: how many adapters the core may hold.
    """

    def __init__(self, llm: Any, base: BaseModel, lora: LoraSpec, places: int) -> None:
        self._llm = llm
        self._base = base
        self._lora = lora
        self._ids = itertools.count(1)  # never given twice, since the core may remember one it could not load
        self._slots: AdapterSlots[Any] = AdapterSlots(self._load, self._unload, capacity=places)

    @asynccontextmanager
    async def held(self, adapter: AdapterRef) -> AsyncIterator[Any]:
        """vLLM's request for an adapter, which stays loaded meanwhile.

        Raises:
            AdapterError: the files are incomplete, another's, or not fit for this engine.
            EngineDeadError: vLLM's own, where the core died.
        """
        async with self._slots.held(adapter) as request:
            yield request

    async def close(self) -> None:
        """Give up what is under way, as the engine stops."""
        await self._slots.close()

    async def _load(self, adapter: AdapterRef) -> Any:
        """Check an adapter and load it into the core. One that cannot be loaded fails here, and the core survives."""
        from vllm.lora.request import LoRARequest
        from vllm.v1.engine.exceptions import EngineDeadError

        async with open_adapter(adapter) as folder:
            await asyncio.to_thread(self._check, adapter, folder)
            request = LoRARequest(adapter.uid, next(self._ids), str(folder))
            with boundary() as caught:
                await answer(self._llm, self._llm.add_lora(request))
        if isinstance(caught.error, EngineDeadError):
            raise caught.error
        if caught.error is not None:
            await self._unload(request)
            raise AdapterError(f"vLLM could not load the adapter {adapter.path}: {caught.summary}") from caught.error
        return request

    def _check(self, adapter: AdapterRef, folder: Path) -> None:
        check_base(adapter, folder, self._base.fingerprint)
        check_adapter(folder, self._base.shapes, self._lora)

    async def _unload(self, request: Any) -> None:
        with boundary():  # a core that has died has none to take out
            await answer(self._llm, self._llm.remove_lora(request.lora_int_id))


async def answer(llm: Any, call: Awaitable[Any]) -> Any:
    """What the core answers to a call that is not a request; vLLM would wait for ever for a core that has died.

    Raises:
        EngineDeadError: vLLM's own.
    """
    from vllm.v1.engine.exceptions import EngineDeadError

    task = asyncio.ensure_future(call)
    try:
        while not task.done():
            if llm.errored:
                raise EngineDeadError()
            await asyncio.wait([task], timeout=DEATH_CHECK_S)
        return task.result()
    finally:
        task.cancel()
