"""The vLLM engine behind the project's engine interface (`tasks.engine_keeper.Engine`): the only vLLM import.

Chat messages in; text, token ids and log-probabilities out. vLLM is imported when the engine starts, in the engine's
own thread, because the import takes seconds and reads the environment. The core of the engine is a child process.
"""

from __future__ import annotations

import asyncio
import itertools
import multiprocessing
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import fields
from multiprocessing.process import BaseProcess
from typing import Any

import psutil  # type: ignore[import-untyped]  # comes with vLLM; its stubs do not

from tasks.base_model import BaseModel, check_target_modules, read_base
from tasks.contracts import AdapterRef, Completion, EngineReply, EngineSpec, SamplingSpec
from tasks.engine_adapters import EngineAdapters, answer
from tasks.engine_keeper import EngineLoad
from tasks.engine_lifetime import claim_engines
from tasks.engine_settings import adapter_places, engine_arguments, set_environment
from tasks.errors import AdapterError, EngineDiedError, EngineStartError, PromptTooLongError, boundary
from tasks.models import resolve_model
from tasks.names import nearest

STOP_TIMEOUT_S = 5.0


class VLLMEngine:
    """vLLM's asynchronous engine with prefix caching, continuous batching and, where the spec says so, LoRA.

    Used on one event loop, the one `start` was called on. `stop` it whatever became of `start`.
    """

    def __init__(self, spec: EngineSpec) -> None:
        self._spec = spec
        self._figures = _Figures()
        self._llm: Any = None
        self._on_cpu = False
        self._base: BaseModel | None = None
        self._adapters: EngineAdapters | None = None
        self._request_numbers = itertools.count()
        self._pending: set[str] = set()
        # Kept as long as the engine: the kernel kills the core when the thread that started it ends.
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="vllm-engine")
        self._building: asyncio.Future[None] | None = None
        self._earlier_cores = _running_cores()
        self._processes: list[psutil.Process] = []

    async def start(self) -> None:
        """Load the model and start the core; return when requests are answered.

        Raises:
            EngineStartError: vLLM could not start, or `engine_args` names an argument it does not have.
            ConfigError: there is no such model, or it lacks modules that adapters are to change.
        """
        self._building = asyncio.get_running_loop().run_in_executor(self._thread, self._build)
        with boundary() as caught:
            await asyncio.shield(self._building)
            await answer(self._llm, self._llm.get_supported_tasks())  # vLLM asks this once, before the first request
            if self._spec.lora is not None and self._base is not None:
                places = adapter_places(self._spec.lora, on_cpu=self._on_cpu)
                self._adapters = EngineAdapters(self._llm, self._base, self._spec.lora, places)
        if caught.error is not None:
            raise EngineStartError(
                f"vLLM could not start on model {self._spec.model_name!r}: {caught.summary}. The worker's log has the "
                "lines before that; vLLM's arguments are set under vllm.engine_args"
            ) from caught.error

    async def stop(self) -> None:
        """Fail pending requests, shut the core down and wait until its processes are gone; again is harmless.

        A start that is under way is ended first. What does not end within `STOP_TIMEOUT_S` is killed.
        """
        if self._building is not None:
            while not self._building.done():
                for core in _running_cores() - self._earlier_cores:
                    core.kill()
                await asyncio.wait([self._building], timeout=0.2)
            self._building.exception()  # looked at, where `start` was cancelled and nobody else will
        llm, self._llm = self._llm, None
        if llm is not None:
            if not llm.errored:
                await llm.abort(list(self._pending))
            if self._adapters is not None:
                await self._adapters.close()
            if llm.output_handler is not None:
                llm.output_handler.cancel()  # it would report the shutdown as an error
            await asyncio.get_running_loop().run_in_executor(self._thread, llm.shutdown, STOP_TIMEOUT_S)
        await asyncio.to_thread(_end_processes, self._processes)
        self._thread.shutdown(wait=False)

    async def generate(
        self,
        messages: Sequence[Mapping[str, str]],
        sampling: SamplingSpec,
        *,
        n: int,
        seed: int,
        adapter: AdapterRef | None,
    ) -> EngineReply:
        """Sample `n` completions of one chat. `seed` is not used: vLLM's results change with the batch anyway.

        The prompt is tokenised here, once, and goes to vLLM as ids. At most `sampling.max_tokens` tokens are sampled,
        fewer where the context has less room, which `EngineReply.token_limit` says. A stop string stays in the text.
        `Completion.logprobs` are of the distribution sampled from.

        Raises:
            PromptTooLongError: the prompt leaves no room for one token.
            AdapterError: the adapter cannot be served on this base.
            EngineDiedError: the core died or was stopped before the answer was whole.
        """
        if self._llm is None:
            raise self._died("is not running")
        from vllm.v1.engine.exceptions import EngineDeadError, EngineGenerateError

        llm = self._llm
        prompt_ids = _prompt_ids(llm, messages)
        params = _sampling_params(sampling, n, room=llm.model_config.max_model_len - len(prompt_ids))
        request_id = f"request-{next(self._request_numbers)}"
        self._pending.add(request_id)
        try:
            async with self._with_adapter(adapter) as lora_request:
                rendered = {"type": "token", "prompt_token_ids": prompt_ids}  # vLLM's name for ids it takes as they are
                stream = llm.generate(rendered, params, request_id, lora_request=lora_request)
                output = [output async for output in stream][-1]
        except EngineDeadError as error:
            raise self._died("died") from error
        except EngineGenerateError as error:
            if not llm.errored:
                raise
            raise self._died("died") from error
        finally:
            self._pending.discard(request_id)
        if any(answer.finish_reason == "abort" for answer in output.outputs):
            raise self._died("was stopped")
        return _reply(output, params.max_tokens)

    def load(self) -> EngineLoad:
        """How busy the engine is, as of its last step."""
        return self._figures.load

    def _build(self) -> None:
        """In the engine's thread: import vLLM, start its core, and set `_llm` to the `AsyncLLM` that runs."""
        claim_engines()
        set_environment(on_cpu=False)  # before vLLM is imported: it sets up its log then
        from vllm import AsyncEngineArgs
        from vllm.platforms import current_platform
        from vllm.v1.engine.async_llm import AsyncLLM

        self._on_cpu = on_cpu = current_platform.is_cpu()
        set_environment(on_cpu=on_cpu)
        model = resolve_model(self._spec.model_name)
        lora = self._spec.lora
        if lora is not None:
            self._base = read_base(model)
            check_target_modules(self._spec.model_name, self._base.shapes, lora.target_modules)
        arguments = engine_arguments(self._spec, model, on_cpu=on_cpu)
        _refuse_unknown(arguments, [field.name for field in fields(AsyncEngineArgs)])
        self._llm = AsyncLLM.from_engine_args(AsyncEngineArgs(**arguments), stat_loggers=[self._figures.logger()])
        for core in _running_cores() - self._earlier_cores:
            process = psutil.Process(core.pid)
            self._processes += [process, *process.children(recursive=True)]

    def _with_adapter(self, adapter: AdapterRef | None) -> AbstractAsyncContextManager[Any]:
        """vLLM's handle for an adapter, loaded meanwhile; of no adapter, None."""
        if adapter is None:
            return nullcontext()
        if self._adapters is None:
            raise AdapterError(
                f"the adapter {adapter.uid} cannot be served: the engine was started without LoRA. Set vllm.lora_config"
            )
        return self._adapters.held(adapter)

    def _died(self, what: str) -> EngineDiedError:
        return EngineDiedError(
            f"the vLLM engine of model {self._spec.model_name!r} {what} and answers no request; the worker's log has "
            "the cause. The game is played again on an engine that runs"
        )


class _Figures:
    """Collects vLLM's statistics, which it hands to a stat logger after each step."""

    def __init__(self) -> None:
        self.load = EngineLoad(
            running_requests=0,
            waiting_requests=0,
            prompt_tokens=0,
            generated_tokens=0,
            kv_use=None,
            prefix_hit_rate=None,
        )
        self._queried_tokens = 0
        self._hit_tokens = 0

    def logger(self) -> Any:
        """A stat logger's class for vLLM, whose instance records here.

        It takes the place of vLLM's own for Prometheus, which nobody could ask and which takes a seventh of the loop's
        time.
        """
        from vllm.v1.metrics.loggers import PrometheusStatLogger

        figures = self

        class Recorder(PrometheusStatLogger):  # type: ignore[misc]  # vllm is untyped here
            def __init__(self, vllm_config: Any, engine_indexes: Any = None) -> None:
                pass

            def record(self, scheduler_stats: Any, iteration_stats: Any, *_args: Any, **_kwargs: Any) -> None:
                """Called by vLLM after each step of the engine."""
                figures.record(scheduler_stats, iteration_stats)

            def log_engine_initialized(self) -> None:
                """Asked for by vLLM's interface; there is nothing to say."""

        return Recorder

    def record(self, scheduler_stats: Any, iteration_stats: Any) -> None:
        """Add one step of the engine. Either part may be missing."""
        if scheduler_stats is not None:
            self._queried_tokens += scheduler_stats.prefix_cache_stats.queries
            self._hit_tokens += scheduler_stats.prefix_cache_stats.hits
            self.load["running_requests"] = scheduler_stats.num_running_reqs
            self.load["waiting_requests"] = scheduler_stats.num_waiting_reqs
            self.load["kv_use"] = scheduler_stats.kv_cache_usage
            if self._queried_tokens:
                self.load["prefix_hit_rate"] = self._hit_tokens / self._queried_tokens
        if iteration_stats is not None:
            self.load["prompt_tokens"] += iteration_stats.num_prompt_tokens
            self.load["generated_tokens"] += iteration_stats.num_generation_tokens


def _prompt_ids(llm: Any, messages: Sequence[Mapping[str, str]]) -> list[int]:
    """Tokenise a chat with the model's own template, ready for the assistant to speak.

    A base model without a template gets `plain_transcript`.
    """
    tokenizer = llm.get_tokenizer()
    if tokenizer.chat_template is None:
        ids = tokenizer.encode(plain_transcript(messages))
    else:
        ids = tokenizer.apply_chat_template(list(messages), add_generation_prompt=True, return_dict=False)
    room = llm.model_config.max_model_len
    if len(ids) >= room:
        raise PromptTooLongError(
            f"the prompt has {len(ids)} tokens, expected at most {room - 1}, so that one of the context's {room} is "
            "left for the answer. Raise vllm.max_model_len, or use a shorter prompt template"
        )
    return list(ids)


def _sampling_params(sampling: SamplingSpec, n: int, room: int) -> Any:
    """vLLM's `SamplingParams`; `room` is the most tokens the context can still take."""
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    return SamplingParams(
        n=n,
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k,
        max_tokens=min(sampling.max_tokens, room),
        stop=list(sampling.stop),
        include_stop_str_in_output=True,  # a `]` that ends the answer belongs to the move
        logprobs=0,  # of the sampled token alone
        flat_logprobs=True,
        output_kind=RequestOutputKind.FINAL_ONLY,
    )


def plain_transcript(messages: Sequence[Mapping[str, str]]) -> str:
    """A chat for a model without a chat template: `Role: content` paragraphs, then `Assistant:`."""
    turns = [f"{message['role'].capitalize()}: {message['content']}\n\n" for message in messages]
    return "".join(turns) + "Assistant:"


def _reply(output: Any, token_limit: int) -> EngineReply:
    """vLLM's `RequestOutput` as the project's own value."""
    return EngineReply(
        prompt_ids=tuple(output.prompt_token_ids),
        completions=tuple(
            Completion(
                text=answer.text,
                token_ids=tuple(answer.token_ids),
                logprobs=tuple(answer.logprobs.logprobs),
                finish_reason=answer.finish_reason,
            )
            for answer in output.outputs
        ),
        cached_tokens=output.num_cached_tokens or 0,
        token_limit=token_limit,
    )


def _running_cores() -> set[BaseProcess]:
    """The cores of all engines of this process."""
    return {child for child in multiprocessing.active_children() if child.name.startswith("EngineCore")}


def _refuse_unknown(arguments: Mapping[str, Any], known: Collection[str]) -> None:
    for name in arguments:
        if name not in known:
            raise EngineStartError(
                f"vllm.engine_args has {name!r}, which this version of vLLM does not have.{nearest(name, known)}"
            )


def _end_processes(processes: Sequence[psutil.Process]) -> None:
    """Wait until all are gone; kill those that do not go by themselves."""
    _, alive = psutil.wait_procs(processes, timeout=STOP_TIMEOUT_S)
    for process in alive:
        process.kill()
    psutil.wait_procs(alive, timeout=STOP_TIMEOUT_S)
