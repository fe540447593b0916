"""The stub engine is what most cluster tests rest on, so it is tested itself."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import pytest

from tasks.contracts import AdapterRef, EngineReply, EngineSpec, SamplingSpec
from tasks.errors import EngineDiedError, PromptTooLongError
from tests.stub_engine import StubEngine, prompt_token_ids

PROMPT = "- '[call]': match\n\nYour available actions are: '[check]', '[bet]'"


def engine(name: str = "stub", max_model_len: int = 4096, **engine_args: Any) -> StubEngine:
    return StubEngine(EngineSpec(name, max_model_len=max_model_len, engine_args=engine_args))


def chat(content: str) -> list[dict[str, str]]:
    return [{"role": "system", "content": "Play."}, {"role": "user", "content": content}]


async def ask(
    stub: StubEngine,
    content: str = PROMPT,
    seed: int = 0,
    n: int = 1,
    adapter: AdapterRef | None = None,
    **sampling: Any,
) -> EngineReply:
    return await stub.generate(chat(content), SamplingSpec(**sampling), n=n, seed=seed, adapter=adapter)


async def started(stub: StubEngine) -> StubEngine:
    await stub.start()
    return stub


def test_a_reply_follows_from_seed_and_messages_whatever_else_runs() -> None:
    async def main() -> None:
        alone = await ask(await started(engine()), seed=7)
        crowd = await started(engine())
        replies = await asyncio.gather(*(ask(crowd, seed=seed, n=2) for seed in range(50)))
        assert replies[7].completions[0] == alone.completions[0]
        texts = {reply.completions[0].text for reply in replies}
        assert texts == {"I choose \\boxed{[check]}", "I choose \\boxed{[bet]}"}

    asyncio.run(main())


def test_ids_and_log_probabilities_belong_together() -> None:
    async def main() -> None:
        stub = await started(engine())
        reply = await ask(stub, n=3)
        assert reply.prompt_ids == prompt_token_ids(chat(PROMPT))
        assert len(reply.completions) == 3
        for completion in reply.completions:
            assert len(completion.token_ids) == len(completion.logprobs) > 0
            assert all(logprob < 0 and math.isfinite(logprob) for logprob in completion.logprobs)
            assert completion.finish_reason == "stop"
        assert stub.load()["prompt_tokens"] == len(reply.prompt_ids)
        assert stub.load()["generated_tokens"] == sum(len(c.token_ids) for c in reply.completions)

    asyncio.run(main())


def test_an_adapter_changes_the_reply() -> None:
    async def main() -> None:
        stub = await started(engine())
        adapter = AdapterRef("policy@1", "/adapters/1")
        with_adapter, without = await ask(stub, adapter=adapter), await ask(stub)
        assert with_adapter.completions[0].logprobs != without.completions[0].logprobs

    asyncio.run(main())


def test_a_canned_reply_is_cut_at_max_tokens() -> None:
    async def main() -> None:
        completion = (await ask(await started(engine(reply="one two three")), max_tokens=2)).completions[0]
        assert completion.text == "one two" and len(completion.token_ids) == 2
        assert completion.finish_reason == "length"

    asyncio.run(main())


def test_a_long_prompt_is_refused() -> None:
    async def main() -> None:
        with pytest.raises(PromptTooLongError, match="expected fewer than max_model_len=8"):
            await ask(await started(engine(max_model_len=8)))

    asyncio.run(main())


def test_death_takes_the_pending_requests_and_counts_over_engines() -> None:
    async def main() -> None:
        first = await started(engine("stub-dies-once", die_after=3, latency_s=60))
        outcomes = await asyncio.gather(*(ask(first) for _ in range(4)), return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [EngineDiedError] * 4
        second = await started(engine("stub-dies-once", die_after=3))
        for _ in range(4):
            await ask(second)

    asyncio.run(main())


def test_a_failing_start_says_what_it_was_told_to() -> None:
    with pytest.raises(RuntimeError, match="no such card"):
        asyncio.run(engine(fail_start="no such card").start())
