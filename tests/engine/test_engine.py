"""What the vLLM engine promises of one request and of many at once."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path
from typing import Any

import pytest

from tasks.contracts import EngineReply, SamplingSpec
from tasks.engine import VLLMEngine
from tasks.engine_settings import core_binding, physical_cores
from tasks.errors import EngineStartError, PromptTooLongError
from tests.engine.conftest import ENGINE_MARKS, MAX_MODEL_LEN, LoopThread, Served, chat, tiny_spec
from tests.engine.forward import forward_logprobs, load_model

pytestmark = ENGINE_MARKS

TEMPLATE_TOKENS = 3  # <|user|>, <|end|>, <|assistant|>


def test_concurrent_requests_each_get_their_own_prompt_ids_back(served: Served) -> None:
    tags = [f"request {index}" for index in range(32)]

    async def ask_all() -> list[EngineReply]:
        sampling = SamplingSpec(max_tokens=8)
        return await asyncio.gather(
            *(served.engine.generate(chat(tag), sampling, n=1, seed=0, adapter=None) for tag in tags)
        )

    replies = served.on.run(ask_all())
    tokenizer = served.engine._llm.get_tokenizer()
    said = [tokenizer.decode(reply.prompt_ids) for reply in replies]
    assert said == [f"<|user|>{tag}<|end|><|assistant|>" for tag in tags]


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_logprobs_are_those_of_a_forward_pass(served: Served, base: Path, temperature: float) -> None:
    reply, completion = served.complete("move", max_tokens=24, temperature=temperature)
    expected = forward_logprobs(load_model(base), reply, completion, temperature)
    assert list(completion.logprobs) == pytest.approx(expected, abs=1e-2)


def test_logprobs_are_of_the_distribution_after_top_k(served: Served) -> None:
    _, completion = served.complete("move", max_tokens=8, top_k=1)
    assert completion.logprobs == (0.0,) * len(completion.token_ids)


def test_several_completions_come_from_one_request(served: Served) -> None:
    before = served.engine.load()["prompt_tokens"]
    reply = served.generate("move", n=3, max_tokens=16)
    assert len({completion.token_ids for completion in reply.completions}) == 3
    for completion in reply.completions:
        assert len(completion.logprobs) == len(completion.token_ids) <= 16
    assert served.engine.load()["prompt_tokens"] - before == 3 * len(reply.prompt_ids)


def test_a_prompt_that_fills_the_context_is_refused_with_its_length(served: Served) -> None:
    with pytest.raises(PromptTooLongError, match=f"has {MAX_MODEL_LEN} tokens, expected at most {MAX_MODEL_LEN - 1}"):
        served.generate("x" * (MAX_MODEL_LEN - TEMPLATE_TOKENS))


def test_a_prompt_one_token_short_of_the_context_is_answered_with_one_token(served: Served) -> None:
    reply, completion = served.complete("x" * (MAX_MODEL_LEN - TEMPLATE_TOKENS - 1), max_tokens=16)
    assert len(reply.prompt_ids) == MAX_MODEL_LEN - 1
    assert (len(completion.token_ids), reply.token_limit) == (1, 1)


def test_a_stop_string_ends_the_completion_and_stays_in_it(served: Served) -> None:
    _, completion = served.complete("move", max_tokens=200, stop=("a", "e", "i", "o", "u"))
    assert completion.finish_reason == "stop"
    assert [letter for letter in completion.text if letter in "aeiou"] == [completion.text[-1]]


def test_a_closing_bracket_as_stop_string_leaves_the_move_whole(served: Served) -> None:
    reply = served.generate("move", n=16, max_tokens=200, stop=("]",))
    closed = [completion for completion in reply.completions if "]" in completion.text]
    assert closed, "16 samples of one token in 260, 200 tokens each"
    for completion in closed:
        assert completion.finish_reason == "stop"
        assert completion.text.index("]") == len(completion.text) - 1
        assert len(completion.logprobs) == len(completion.token_ids)


def test_load_counts_tokens_and_prefix_hits(served: Served) -> None:
    before = dict(served.engine.load())
    prompt = "the same long prompt " * 10  # more than one block of 128 tokens
    replies = [served.generate(prompt, max_tokens=4) for _ in range(2)]
    after = served.engine.load()
    assert after["prompt_tokens"] - before["prompt_tokens"] == sum(len(reply.prompt_ids) for reply in replies)
    assert after["generated_tokens"] - before["generated_tokens"] == sum(
        len(reply.completions[0].token_ids) for reply in replies
    )
    assert [reply.cached_tokens for reply in replies] == [0, 128]
    assert after["prefix_hit_rate"] is not None and 0 < after["prefix_hit_rate"] < 1
    assert after["kv_use"] is not None and 0 <= after["kv_use"] <= 1
    assert after["running_requests"] == after["waiting_requests"] == 0


def test_a_cancelled_request_leaves_the_engine(served: Served) -> None:
    sampling = SamplingSpec(max_tokens=200)
    request = asyncio.run_coroutine_threadsafe(
        served.engine.generate(chat("move"), sampling, n=16, seed=0, adapter=None), served.on.loop
    )
    wait_until(lambda: served.engine.load()["running_requests"] > 0)
    request.cancel()
    # The engine tells its figures when it does something.
    wait_until(lambda: served.generate("next", max_tokens=1) and served.engine.load()["running_requests"] == 0)


def test_a_thread_computes_on_each_core_though_the_environment_asks_for_one_thread(served: Served) -> None:
    cores = physical_cores()
    if core_binding(cores) == "auto":
        pytest.skip("vLLM chooses the cores itself on a machine with many")
    assert os.environ["OMP_NUM_THREADS"] == "1"
    (worker,) = (process for process in served.engine._processes if process.name().startswith("VLLM::Worker"))
    served.generate("the threads begin with the first computation")

    def bound_to() -> list[set[int]]:
        return [os.sched_getaffinity(thread.id) for thread in worker.threads()]

    wait_until(lambda: all({core} in bound_to() for core in cores))


def test_an_unknown_engine_argument_is_refused_with_the_nearest(base: Path, loop_thread: LoopThread) -> None:
    engine = VLLMEngine(tiny_spec(base, engine_args={"max_num_batched_token": 64}))
    with pytest.raises(EngineStartError, match=r"'max_num_batched_token'.*Did you mean 'max_num_batched_tokens'"):
        loop_thread.run(engine.start())
    loop_thread.run(engine.stop())


def test_a_model_vllm_cannot_load_is_an_engine_that_cannot_start(tmp_path: Path, loop_thread: LoopThread) -> None:
    (tmp_path / "config.json").write_text("{}")
    engine = VLLMEngine(tiny_spec(tmp_path))
    with pytest.raises(EngineStartError, match="vLLM could not start on model"):
        loop_thread.run(engine.start())
    loop_thread.run(engine.stop())


def wait_until(condition: Any, timeout_s: float = 30.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)
