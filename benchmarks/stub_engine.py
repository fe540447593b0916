"""An engine of fixed latency whose answers weigh as much as real ones: 300 prompt and 24 completion tokens.

`EngineSpec.engine_args` it understands: `latency_s`, seconds per request; `latency_by_process`, other latencies for the
worker processes of these ids.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from tasks.contracts import AdapterRef, Completion, EngineReply, EngineSpec, SamplingSpec
from tasks.engine_keeper import EngineLoad

PROMPT_TOKENS = 300
COMPLETION_TOKENS = 24
VOCABULARY = 49_152
RULES_TOKENS = 200  # of the prompt's, the same in every prompt of a game
BLOCK = 1024  # completions whose numbers are drawn at once: one by one would take more time than a game does

_CANNED = tuple(np.random.default_rng(0).integers(VOCABULARY, size=20_000).tolist())


class CannedEngine:
    """The engine's interface (`tasks.engine_keeper.Engine`) without a model.

    Every reply is made of fresh tuples, so that pickling finds nothing to share, and its completions of fresh numbers,
    so that compression finds nothing either. Prompts have their first two thirds in common, as those of one game do.
    """

    def __init__(self, spec: EngineSpec) -> None:
        latencies = spec.engine_args.get("latency_by_process", {})
        self._latency_s = float(latencies.get(str(os.getpid()), spec.engine_args["latency_s"]))
        self._answered = 0
        self._running = 0
        self._completions = self._drawn()

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
        start = self._answered % (len(_CANNED) - PROMPT_TOKENS)
        return _CANNED[:RULES_TOKENS] + _CANNED[start : start + PROMPT_TOKENS - RULES_TOKENS]

    def _complete(self, text: str) -> Completion:
        ids, logprobs = next(self._completions)
        return Completion(text, tuple(ids), tuple(logprobs), "stop")

    def _drawn(self) -> Iterator[tuple[list[int], list[float]]]:
        """Ids and log-probabilities of one completion after the other, without end."""
        rng = np.random.default_rng(0)
        while True:
            ids = rng.integers(VOCABULARY, size=(BLOCK, COMPLETION_TOKENS)).tolist()
            yield from zip(ids, (-rng.exponential(size=(BLOCK, COMPLETION_TOKENS))).tolist(), strict=True)

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


def _move(messages: Sequence[Mapping[str, str]], seed: int) -> str:
    """One of the moves in Kuhn Poker's last line of available actions, brackets included."""
    _, _, offered = messages[-1]["content"].rpartition("available actions are: ")
    moves = offered.partition("\n")[0].split(", ")
    return moves[seed % len(moves)].strip("'")
