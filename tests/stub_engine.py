"""An engine without a model: fixed latency, text that follows from seed and messages alone, and deaths to order.

`EngineSpec.engine_args` it understands:

- `latency_s` (0.0): seconds per request, however many there are.
- `reply`: the text of every completion. Without it: `\\boxed{...}` around one of the quoted bracketed moves in the last
  line of the last message that has any.
- `start_s` (0.0): seconds to start. `fail_start`: the message of the error that `start` raises.
- `die_after`: the request that kills the engine, counted from 1 for each engine. `deaths` (1): how many engines of one
  `model_name` die so in a process, which says whether a rebuilt one lives.
- `open_adapters` (false): bring the files of each request's adapter here, as an engine does that serves them.
- `log`: a file that gets a line `start PID` and `stop PID` for each engine, and `adapter UID DIGEST FOLDER` for
  each adapter that was opened.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import random
import re
import zlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from tasks.adapter_delivery import open_adapter
from tasks.adapter_files import content_digest
from tasks.contracts import AdapterRef, Completion, EngineReply, EngineSpec, SamplingSpec
from tasks.errors import EngineDiedError, PromptTooLongError
from tasks.host import EngineLoad

VOCABULARY = 32_000
TOKEN = re.compile(r"\s*(?:\w{1,6}|[^\w\s])|\s+$")
MOVE = re.compile(r"'(\[[^\[\]']+\])'")

_deaths: Counter[str] = Counter()


class StubEngine:
    """The engine interface (`tasks.host.Engine`) without a model. Same seed and messages, same reply."""

    def __init__(self, spec: EngineSpec) -> None:
        self._spec = spec
        self._args = dict(spec.engine_args)
        self._latency_s = float(self._args.get("latency_s", 0.0))
        self._up = False
        self._pending: set[asyncio.Future[None]] = set()
        self._requests = 0
        self._prompt_tokens = 0
        self._generated_tokens = 0

    async def start(self) -> None:
        await asyncio.sleep(float(self._args.get("start_s", 0.0)))
        if "fail_start" in self._args:
            raise RuntimeError(self._args["fail_start"])
        self._up = True
        self._log(f"start {os.getpid()}")

    async def stop(self) -> None:
        self._fail_pending("the engine was stopped")
        self._log(f"stop {os.getpid()}")

    async def generate(
        self,
        messages: Sequence[Mapping[str, str]],
        sampling: SamplingSpec,
        *,
        n: int,
        seed: int,
        adapter: AdapterRef | None,
    ) -> EngineReply:
        if not self._up:
            raise EngineDiedError("the stub engine is down")
        prompt_ids = prompt_token_ids(messages)
        if len(prompt_ids) >= self._spec.max_model_len:
            raise PromptTooLongError(
                f"the prompt has {len(prompt_ids)} tokens, expected fewer than max_model_len={self._spec.max_model_len}"
            )
        if adapter is not None and self._args.get("open_adapters"):
            async with open_adapter(adapter) as folder:
                self._log(f"adapter {adapter.uid} {content_digest(folder)} {folder}")
        room = self._spec.max_model_len - len(prompt_ids)
        sampling = replace(sampling, max_tokens=min(sampling.max_tokens, room))
        await self._work()
        source = _source(messages, seed, adapter)
        completions = tuple(self._complete(messages, sampling, f"{source}:{index}") for index in range(n))
        self._prompt_tokens += len(prompt_ids)
        self._generated_tokens += sum(len(completion.token_ids) for completion in completions)
        return EngineReply(prompt_ids, completions, token_limit=sampling.max_tokens)

    def load(self) -> EngineLoad:
        return EngineLoad(
            running_requests=len(self._pending),
            waiting_requests=0,
            prompt_tokens=self._prompt_tokens,
            generated_tokens=self._generated_tokens,
            kv_use=0.0,
            prefix_hit_rate=0.0,
        )

    async def _work(self) -> None:
        """Take the latency, or die: now, if this is the request to die at, or with another that is."""
        self._requests += 1
        if self._requests == self._args.get("die_after") and _deaths[self._spec.model_name] < self._args.get(
            "deaths", 1
        ):
            _deaths[self._spec.model_name] += 1
            self._fail_pending("the stub engine was told to die")
            raise EngineDiedError("the stub engine was told to die")
        loop = asyncio.get_running_loop()
        answered: asyncio.Future[None] = loop.create_future()
        timer = loop.call_later(self._latency_s, _resolve, answered)
        self._pending.add(answered)
        try:
            await answered
        finally:
            self._pending.discard(answered)
            timer.cancel()

    def _fail_pending(self, reason: str) -> None:
        self._up = False
        for answered in self._pending:
            if not answered.done():
                answered.set_exception(EngineDiedError(reason))

    def _complete(self, messages: Sequence[Mapping[str, str]], sampling: SamplingSpec, source: str) -> Completion:
        rng = random.Random(source)
        text = self._args["reply"] if "reply" in self._args else _move(messages, rng)
        tokens = TOKEN.findall(text)
        kept = tokens[: sampling.max_tokens]
        return Completion(
            text="".join(kept),
            token_ids=tuple(map(_token_id, kept)),
            logprobs=tuple(-rng.uniform(0.01, 3.0) for _ in kept),
            finish_reason="stop" if len(kept) == len(tokens) else "length",
        )

    def _log(self, event: str) -> None:
        if "log" in self._args:
            with Path(self._args["log"]).open("a") as log:
                log.write(f"{event}\n")


def prompt_token_ids(messages: Sequence[Mapping[str, str]]) -> tuple[int, ...]:
    """The prompt ids the stub gives for these messages, so that a test can tell whose they are."""
    text = "".join(f"<{message['role']}> {message['content']}\n" for message in messages)
    return tuple(map(_token_id, TOKEN.findall(text)))


def _source(messages: Sequence[Mapping[str, str]], seed: int, adapter: AdapterRef | None) -> str:
    digest = hashlib.sha256(repr([(message["role"], message["content"]) for message in messages]).encode()).hexdigest()
    return f"{seed}:{'' if adapter is None else adapter.uid}:{digest}"


def _move(messages: Sequence[Mapping[str, str]], rng: random.Random) -> str:
    for line in reversed(messages[-1]["content"].splitlines()):
        if moves := MOVE.findall(line):
            return f"I choose \\boxed{{{rng.choice(moves)}}}"
    return "I see no move to choose"


def _token_id(token: str) -> int:
    return zlib.crc32(token.encode()) % VOCABULARY


def _resolve(answered: asyncio.Future[None]) -> None:
    if not answered.done():
        answered.set_result(None)
