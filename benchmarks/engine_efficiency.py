"""How busy games keep a real vLLM engine: tokens per second while games go on over those of one offline `generate`.

The offline run takes the very prompts that the games made, in their order, on an engine with the same settings and the
same batch size. `--model tiny` is two random layers under SmolLM2's tokenizer: so fast an engine that it shows soonest
when games do not keep up with it.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.learner import LORA_RANK, MODULES, learner_spec, randomise
from benchmarks.measure import Result, add_repetition, run_check
from benchmarks.stub_games import KUHN, KeptGames, after_seconds, collect, local_cluster
from pipeline.config import VLLMConfig
from pipeline.config_vllm import LoraConfig
from pipeline.model_registry import ModelRegistry
from tasks.base_model import read_base
from tasks.contracts import AdapterRef, EngineSpec, LoraSpec
from tasks.engine_settings import engine_arguments, set_environment
from tasks.models import resolve_model

SMALL_MODEL = "builtin:smollm2-135m-instruct"
MAX_TOKENS = 24
# A random model makes no legal move; its games must not end for that.
PATIENT_KUHN = KUHN.model_copy(update={"error_allowance": 20, "max_turns": 10})


def efficiency(options: argparse.Namespace) -> Result:
    """Tokens per second in a window of a collection, then offline; the prefix cache's share of hits beside it."""
    n = options.in_flight
    with tempfile.TemporaryDirectory(prefix="benchmark-") as folder:
        model = make_tiny_model(Path(folder)) if options.model == "tiny" else options.model
        vllm = VLLMConfig(
            model_name=str(model),
            max_tokens=MAX_TOKENS,
            max_model_len=2048,
            max_parallel_seq=options.batch,
            lora_config=LoraConfig(lora_rank=LORA_RANK, lora_alpha=LORA_RANK) if options.lora else None,
        )
        registry = ModelRegistry(vllm.policy(), Path(folder) / "registry.json")
        if options.lora:
            publish_random(registry, vllm)
        window = KeptGames([after_seconds(options.warm_up), after_seconds(options.warm_up + options.seconds)])
        with local_cluster(n) as client:
            reports = collect(client, vllm, n, window, env=PATIENT_KUHN, registry=registry).reports
        (began, first), (ended, last) = reports[0], reports[-1]
        playing = (last.generated_tokens - first.generated_tokens) / (ended - began)
        steps = [step for episode in window.episodes for step in episode.steps]
        prompts = [step.choice.prompt_ids for step in steps][: options.prompts]
        offline = offline_tokens_per_s(vllm.engine_spec(0), prompts, registry.current().adapter)
    return {
        "model": options.model,
        "lora": options.lora,
        "in_flight": n,
        "batch": options.batch,
        "prompts": len(prompts),
        "playing_tokens_per_s": playing,
        "offline_tokens_per_s": offline,
        "efficiency": playing / offline,
        "running_requests": fmean(figures.running_requests for _, figures in reports),
        "prefix_hit_share": last.prefix_hit_rate or 0.0,
    }


def publish_random(registry: ModelRegistry, vllm: VLLMConfig) -> None:
    """Make an adapter of random weights on all projections the policy's next version."""
    from tasks.adapter import adapter_files
    from tasks.policy_model import PolicyModel

    policy = PolicyModel(learner_spec(vllm.model_name))
    randomise(policy)
    lora = LoraSpec(LORA_RANK, max_adapters=1, target_modules=MODULES)
    base = read_base(vllm.model_name)
    registry.publish(adapter_files(policy.adapted), base=base, lora=lora, step=0, algorithm="none")


def offline_tokens_per_s(spec: EngineSpec, prompts: Sequence[Sequence[int]], adapter: AdapterRef | None) -> float:
    """Generated tokens per second of one `LLM.generate` over all prompts, on an engine as the workers have it."""
    set_environment(on_cpu=False)  # before vLLM is imported, as the engine does
    from vllm import LLM, SamplingParams
    from vllm.lora.request import LoRARequest
    from vllm.platforms import current_platform

    on_cpu = current_platform.is_cpu()
    set_environment(on_cpu=on_cpu)
    llm: Any = LLM(**engine_arguments(spec, resolve_model(spec.model_name), on_cpu=on_cpu))
    params = SamplingParams(temperature=1.0, max_tokens=MAX_TOKENS, logprobs=0)
    lora = None if adapter is None else LoRARequest(adapter.uid, 1, adapter.path)
    inputs = [{"prompt_token_ids": list(ids)} for ids in prompts]
    llm.generate(inputs[:1], params, use_tqdm=False, lora_request=lora)  # the first one warms up
    began = time.perf_counter()
    outputs = llm.generate(inputs, params, use_tqdm=False, lora_request=lora)
    seconds = time.perf_counter() - began
    return sum(len(answer.token_ids) for output in outputs for answer in output.outputs) / seconds


def make_tiny_model(folder: Path) -> Path:
    """Two random layers of width 64 with the small model's tokenizer and chat template."""
    import torch
    from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

    tokenizer = AutoTokenizer.from_pretrained(resolve_model(SMALL_MODEL))
    tokenizer.save_pretrained(folder)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,  # of 32: the smallest that vLLM's attention on the CPU has a kernel for
        num_key_value_heads=1,
        max_position_embeddings=2048,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        dtype="float32",
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


CHECKS: dict[str, Callable[[argparse.Namespace], Result]] = {"efficiency": efficiency}


def arguments() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", choices=CHECKS, default="efficiency")
    parser.add_argument("--model", default="tiny", help=f"`tiny`, or a model's name such as {SMALL_MODEL}")
    parser.add_argument("--lora", type=int, choices=(0, 1), default=0, help="whether an adapter plays")
    parser.add_argument("--in-flight", type=int, default=20, help="games at once")
    parser.add_argument("--batch", type=int, default=16, help="the most requests in a batch, playing and offline")
    parser.add_argument("--seconds", type=float, default=30.0, help="length of the window")
    parser.add_argument("--warm-up", type=float, default=10.0, help="seconds after the first game before it opens")
    parser.add_argument("--prompts", type=int, default=1000, help="most recorded prompts for the offline run")
    add_repetition(parser)
    return parser


if __name__ == "__main__":
    run_check("benchmarks.engine_efficiency", CHECKS, arguments())
