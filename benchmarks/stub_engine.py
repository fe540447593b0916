"""An engine of fixed latency whose answers weigh as much as real ones: 300 prompt and 24 completion tokens.

`EngineSpec.engine_args` it understands: `latency_s`, seconds per request; `latency_by_process`, other latencies for the
worker processes of these ids.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tasks.contracts import AdapterRef, Completion, EngineReply, EngineSpec, SamplingSpec
from tasks.engine_keeper import EngineLoad

PROMPT_TOKENS = 300
COMPLETION_TOKENS = 24
VOCABULARY = 49_152
RULES_TOKENS = 200  # of the prompt's, the same in every prompt of a game

_CANNED = tuple(np.random.default_rng(0).integers(VOCABULARY, size=20_000).tolist())
_LOGPROBS = tuple((-np.random.default_rng(1).exponential(size=20_011)).tolist())  # out of step with the ids


class CannedEngine:
    """The engine's interface (`tasks.engine_keeper.Engine`) without a model.

    Every reply is made of fresh tuples, so that pickling finds nothing to share, and its completion's numbers come from
    somewhere else in a long list each time. Prompts have their first two thirds in common, as those of one game do.
    """

    def __init__(self, spec: EngineSpec) -> None:
        latencies = spec.engine_args.get("latency_by_process", {})
        self._latency_s = float(latencies.get(str(os.getpid()), spec.engine_args["latency_s"]))
        self._answered = 0
        self._running = 0

    async def start(self) -> None:
        """Nothing to start."""

    async def stop(self) -> None:
        """Nothing to stop."""

    async def generate(
        self,
        messages: Sequence[Mapping[str, str]],
        sampling: SamplingSpec,
        *,
        n: int,
        seed: int,
        adapter: AdapterRef | None,
    ) -> EngineReply:
        """Wait for the latency, then play a move that the prompt offers, chosen by `seed`."""
        self._running += 1
        try:
            await asyncio.sleep(self._latency_s)
        finally:
            self._running -= 1
        self._answered += n
        text = f"Let me think about what my opponent may hold here. I play \\boxed{{{_move(messages, seed)}}}"
        return EngineReply(
            self._prompt_ids(), tuple(self._complete(text) for _ in range(n)), token_limit=sampling.max_tokens
        )

    def _prompt_ids(self) -> tuple[int, ...]:
        return _CANNED[:RULES_TOKENS] + _excerpt(_CANNED, self._answered, PROMPT_TOKENS - RULES_TOKENS)

    def _complete(self, text: str) -> Completion:
        place = self._answered * COMPLETION_TOKENS
        ids, logprobs = (_excerpt(numbers, place, COMPLETION_TOKENS) for numbers in (_CANNED, _LOGPROBS))
        return Completion(text, ids, logprobs, "stop")

    def load(self) -> EngineLoad:
        """Requests under way, and tokens since the start."""
        return EngineLoad(
            running_requests=self._running,
            waiting_requests=0,
            prompt_tokens=self._answered * PROMPT_TOKENS,
            generated_tokens=self._answered * COMPLETION_TOKENS,
            kv_use=None,
            prefix_hit_rate=None,
        )


def _excerpt(numbers: tuple[Any, ...], place: int, length: int) -> tuple[Any, ...]:
    """So many of them, from a place that may be past the end."""
    start = place % (len(numbers) - length)
    return numbers[start : start + length]


def _move(messages: Sequence[Mapping[str, str]], seed: int) -> str:
    """One of the moves in Kuhn Poker's last line of available actions, brackets included."""
    _, _, offered = messages[-1]["content"].rpartition("available actions are: ")
    moves = offered.partition("\n")[0].split(", ")
    return moves[seed % len(moves)].strip("'")
