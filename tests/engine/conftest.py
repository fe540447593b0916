"""Engines as a worker has them: on an event loop in a thread of its own, with a tiny random model."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest

from tasks.contracts import AdapterRef, Completion, EngineReply, EngineSpec, LoraSpec, SamplingSpec
from tasks.engine import VLLMEngine
from tests.tiny_model import TARGET_MODULES, make_adapter, make_model

MAX_MODEL_LEN = 256
FOREIGN_WARNINGS = (
    # What torch, and vLLM with this torch, say of themselves when they are imported.
    "ignore:`torch.jit.script:DeprecationWarning",
    "ignore:`torch.distributed.reduce_op` is deprecated:FutureWarning",
)
ENGINE_MARKS = [pytest.mark.engine, *map(pytest.mark.filterwarnings, FOREIGN_WARNINGS)]
T = TypeVar("T")


class LoopThread:
    """An event loop in a thread of its own."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name="loop", daemon=True)
        self._thread.start()

    def run(self, coroutine: Coroutine[Any, Any, T], timeout_s: float = 240.0) -> T:
        """What the coroutine returns when it is run on the loop."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(timeout_s)

    def close(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()


class Served:
    """An engine on a loop, with `generate` for tests that wait for one answer after the other."""

    def __init__(self, engine: VLLMEngine, on: LoopThread) -> None:
        self.engine = engine
        self.on = on

    def generate(self, content: str, *, n: int = 1, adapter: AdapterRef | None = None, **sampling: Any) -> EngineReply:
        return self.on.run(self.engine.generate(chat(content), SamplingSpec(**sampling), n=n, seed=0, adapter=adapter))

    def complete(self, content: str, **how: Any) -> tuple[EngineReply, Completion]:
        """One reply and its only completion."""
        reply = self.generate(content, **how)
        (completion,) = reply.completions
        return reply, completion


def chat(content: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": content}]


def tiny_spec(model: Path, **changes: Any) -> EngineSpec:
    """A float32 engine, so that its numbers can be compared; 16 MiB of KV cache are 500 contexts of this model."""
    return EngineSpec(
        model_name=str(model),
        max_model_len=MAX_MODEL_LEN,
        max_num_seqs=32,
        **{"dtype": "float32", "engine_args": {"kv_cache_memory_bytes": 16 * 1024**2}} | changes,
    )


@pytest.fixture(scope="package")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("models") / "base")


@pytest.fixture(scope="package")
def adapters(base: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[AdapterRef, AdapterRef]:
    """Two versions of one policy."""
    folder = tmp_path_factory.mktemp("adapters")
    first, second = (
        AdapterRef(f"policy@{version}", str(make_adapter(folder / f"v{version}", base, seed=version)))
        for version in (1, 2)
    )
    return first, second


@pytest.fixture(scope="package")
def foreign_adapter(tmp_path_factory: pytest.TempPathFactory) -> AdapterRef:
    """An adapter for a wider model than `base`."""
    folder = tmp_path_factory.mktemp("foreign")
    wider = make_model(folder / "base", hidden_size=96)
    return AdapterRef("foreign", str(make_adapter(folder / "adapter", wider)))


@pytest.fixture(scope="package")
def loop_thread() -> Iterator[LoopThread]:
    thread = LoopThread()
    yield thread
    thread.close()


@contextmanager
def running_engine(spec: EngineSpec, on: LoopThread) -> Iterator[Served]:
    """An engine that has started, and is stopped in the end."""
    engine = VLLMEngine(spec)
    try:
        on.run(engine.start())
        yield Served(engine, on)
    finally:
        on.run(engine.stop())
        gc.collect()  # while the warnings about vLLM's sockets are expected


@pytest.fixture(scope="module")
def served(base: Path, loop_thread: LoopThread) -> Iterator[Served]:
    """The engine most tests share: it serves LoRA adapters of rank up to 8, under a Dask nanny's OMP_NUM_THREADS."""
    lora = LoraSpec(max_rank=8, max_adapters=2, target_modules=TARGET_MODULES)
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("OMP_NUM_THREADS", "1")
        with running_engine(tiny_spec(base, lora=lora), loop_thread) as served:
            yield served
