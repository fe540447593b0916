"""How busy games keep a real vLLM engine: tokens per second while games go on over those of one offline `generate`.

The offline run takes the very prompts that the games made, in their order, on an engine with the same settings and the
same batch size, while the games' engine stands still. `--model tiny` is two random layers under SmolLM2's tokenizer: so
fast an engine that it shows soonest when games do not keep up with it. On a CPU `--engine-cores 1` leaves the others to
games, driver and Dask, as an engine on a GPU does.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from operator import itemgetter
from pathlib import Path
from statistics import fmean
from typing import Any

import psutil  # type: ignore[import-untyped]  # its stubs are a package of their own
from distributed import Client

from benchmarks.learner import LORA_RANK, MODULES, learner_spec, randomise
from benchmarks.measure import Result, add_repetition, medians, run_check
from benchmarks.stub_games import KUHN, KeptGames, collect, local_cluster
from pipeline.config import VLLMConfig
from pipeline.config_vllm import LoraConfig
from pipeline.model_registry import ModelRegistry
from tasks.base_model import read_base
from tasks.contracts import AdapterRef, EngineFigures, EngineSpec, Episode, LoraSpec
from tasks.engine_settings import engine_arguments, physical_cores, set_environment
from tasks.models import resolve_model
from tasks.token_ids import TokenIds

SMALL_MODEL = "builtin:smollm2-135m-instruct"
MAX_TOKENS = 24
# A random model makes no legal move; its games must not end for that.
PATIENT_KUHN = KUHN.model_copy(update={"error_allowance": 20, "max_turns": 10})


def efficiency(options: argparse.Namespace) -> Result:
    """Tokens per second while games go on and offline over their prompts, in turns: medians of the rounds.

    In turns because a machine's speed changes within minutes.
    """
    n = options.in_flight
    if options.engine_cores:
        cores = sorted(physical_cores())[: options.engine_cores]
        os.environ["VLLM_CPU_OMP_THREADS_BIND"] = ",".join(map(str, cores))
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
        with local_cluster(n) as client:
            offline = Offline(vllm.engine_spec(0), registry.current().adapter)
            rounds = Rounds(options, client, offline)
            reports = collect(client, vllm, n, rounds, env=PATIENT_KUHN, registry=registry).reports
    results = rounds.results(reports)
    return {
        "model": options.model,
        "lora": options.lora,
        "in_flight": n,
        "batch": options.batch,
        "engine_cores": options.engine_cores or len(physical_cores()),
        **medians(results),
        "efficiency_least": min(result["efficiency"] for result in results),
        "efficiency_most": max(result["efficiency"] for result in results),
    }


class Rounds(KeptGames):
    """Rounds of some seconds of play and then, while the engine stands still, of its prompts offline.

    Play goes on for the seconds of `warm_up` before each round. Every second mark ends the play of a round.
    """

    def __init__(self, options: argparse.Namespace, client: Client, offline: Offline) -> None:
        super().__init__([self._is_due] * (2 * options.rounds))
        self._options = options
        self._client = client
        self._offline = offline
        self._offline_figures: list[Result] = []
        self._next_at = options.warm_up

    def _is_due(self, at: float, games: int, turns: int) -> bool:
        """Whether it is time and a game has come in since the last mark."""
        return at >= self._next_at and bool(self.episodes[len(self.marks)])

    def look(self) -> None:
        """Take the mark that is due, if one is; after one that ends the play, go offline."""
        taken = len(self.marks)
        super().look()
        if len(self.marks) == taken or self.first_at is None:
            return
        if taken % 2:
            self._go_offline(*map(prompts_in_order, self.episodes[taken - 1 : taken + 1]))
        pause = self._options.warm_up if taken % 2 else self._options.seconds
        self._next_at = time.monotonic() - self.first_at + pause

    def _go_offline(self, before: list[TokenIds], within: list[TokenIds]) -> None:
        """Both caches are warm: the engine's from the games before the round, the offline one's from their prompts."""
        with standing_still(self._client):
            self._offline.fill_cache(before)
            self._offline_figures.append(self._offline.timed(within))

    def results(self, reports: Sequence[tuple[float, EngineFigures]]) -> list[Result]:
        """Of each round, what came of playing, by the engine's reports, and of going offline."""
        results = []
        for began, ended, episodes, offline in zip(
            self.marks[::2], self.marks[1::2], self.episodes[1::2], self._offline_figures, strict=True
        ):
            choices = [step.choice for episode in episodes for step in episode.steps]
            within = [(at, figures) for at, figures in reports if began.at <= at <= ended.at]
            (first_at, first), (last_at, last) = within[0], within[-1]
            playing = (last.generated_tokens - first.generated_tokens) / (last_at - first_at)
            results.append(
                {
                    "playing_tokens_per_s": playing,
                    **offline,
                    "efficiency": playing / offline["offline_tokens_per_s"],
                    "running_requests": fmean(figures.running_requests for _, figures in within),
                    "prefix_hit_share": sum(choice.cached_tokens for choice in choices)
                    / sum(len(choice.prompt_ids) for choice in choices),
                }
            )
        return results


@contextmanager
def standing_still(client: Client) -> Iterator[None]:
    """Stop the processes of the workers' engines meanwhile, in the middle of what they do."""
    engines = [
        process
        for pid in client.run(os.getpid).values()
        for process in psutil.Process(pid).children(recursive=True)
        if process.name().startswith("VLLM")
    ]
    for process in engines:
        process.suspend()
    try:
        yield
    finally:
        for process in engines:
            process.resume()


def prompts_in_order(episodes: Sequence[Episode]) -> list[TokenIds]:
    """The prompts of all their steps, in the order in which they were asked."""
    asked: list[tuple[float, TokenIds]] = []
    for episode in episodes:
        at = episode.started_at
        for step in episode.steps:
            asked.append((at, step.choice.prompt_ids))
            at += step.latency_s
    return [prompt for _, prompt in sorted(asked, key=itemgetter(0))]


class Offline:
    """vLLM's offline `LLM`, on an engine with the settings that the workers' have."""

    def __init__(self, spec: EngineSpec, adapter: AdapterRef | None) -> None:
        set_environment(on_cpu=False)  # before vLLM is imported, as the engine does
        from vllm import LLM
        from vllm.lora.request import LoRARequest
        from vllm.platforms import current_platform

        on_cpu = current_platform.is_cpu()
        set_environment(on_cpu=on_cpu)
        self._llm: Any = LLM(**engine_arguments(spec, resolve_model(spec.model_name), on_cpu=on_cpu))
        self._adapter = None if adapter is None else LoRARequest(adapter.uid, 1, adapter.path)

    def fill_cache(self, prompts: Sequence[Sequence[int]]) -> None:
        """Read these prompts."""
        self._generate(prompts, max_tokens=1)

    def timed(self, prompts: Sequence[Sequence[int]]) -> Result:
        """Generated tokens per second of one `generate` over all prompts; the share of their tokens in its cache."""
        began = time.perf_counter()
        outputs = self._generate(prompts, MAX_TOKENS)
        seconds = time.perf_counter() - began
        generated = sum(len(answer.token_ids) for output in outputs for answer in output.outputs)
        hits = sum(output.num_cached_tokens for output in outputs)
        return {
            "prompts": len(prompts),
            "offline_tokens_per_s": generated / seconds,
            "offline_prefix_hit_share": hits / sum(map(len, prompts)),
        }

    def _generate(self, prompts: Sequence[Sequence[int]], max_tokens: int) -> Any:
        from vllm import SamplingParams

        params = SamplingParams(temperature=1.0, max_tokens=max_tokens, logprobs=0)
        inputs = [{"prompt_token_ids": list(ids)} for ids in prompts]
        return self._llm.generate(inputs, params, use_tqdm=False, lora_request=self._adapter)


def publish_random(registry: ModelRegistry, vllm: VLLMConfig) -> None:
    """Make an adapter of random weights on all projections the policy's next version."""
    from tasks.adapter import adapter_files
    from tasks.policy_model import PolicyModel

    policy = PolicyModel(learner_spec(vllm.model_name))
    randomise(policy)
    lora = LoraSpec(LORA_RANK, max_adapters=1, target_modules=MODULES)
    base = read_base(vllm.model_name)
    registry.publish(adapter_files(policy.adapted), base=base, lora=lora, step=0, algorithm="none")


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
    parser.add_argument("--in-flight", type=int, default=32, help="games at once")
    parser.add_argument("--batch", type=int, default=16, help="the most requests in a batch, playing and offline")
    parser.add_argument("--engine-cores", type=int, default=0, help="cores the engine computes on; 0: as in a run")
    parser.add_argument("--seconds", type=float, default=20.0, help="length of a round's play")
    parser.add_argument("--warm-up", type=float, default=5.0, help="seconds of play before each round")
    parser.add_argument("--rounds", type=int, default=5, help="play, then offline, so many times")
    add_repetition(parser)
    return parser


if __name__ == "__main__":
    run_check("benchmarks.engine_efficiency", CHECKS, arguments())
