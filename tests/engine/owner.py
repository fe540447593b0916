"""A process that owns an engine, for tests that kill it: `python -m tests.engine.owner MODEL`.

Prints `ready` and the ids of the engine's processes; then answers each line it reads with the number of tokens that
the engine generated for it. Deaf to SIGINT, as a Dask worker under a nanny is.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path

from tasks.contracts import SamplingSpec
from tasks.engine import VLLMEngine
from tests.engine.conftest import chat, tiny_spec


async def serve(model: Path) -> None:
    engine = VLLMEngine(tiny_spec(model))
    await engine.start()
    print("ready", *(process.pid for process in engine._processes), flush=True)
    while line := await asyncio.to_thread(sys.stdin.readline):
        reply = await engine.generate(chat(line), SamplingSpec(max_tokens=4), n=1, seed=0, adapter=None)
        print(len(reply.completions[0].token_ids), flush=True)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    asyncio.run(serve(Path(sys.argv[1])))
