"""What a learning step costs beside a straight loop: time, memory and the difference of their gradients.

`python -m benchmarks.learner --json` prints one JSON line. The straight loop takes one step at a time through the model
and `log_softmax` over all positions. Each variant runs in a process of its own, in turn with the others.
"""

from __future__ import annotations

import argparse
import ctypes
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from benchmarks.measure import run_alone, show
from tasks.batch import samples_of
from tasks.contracts import Role, SamplingSpec
from tasks.learner_contracts import LearnerSample, LearnerSpec
from tasks.prefixes import Row, micro_batches, rows_of

if TYPE_CHECKING:
    from torch import Tensor

    from pipeline.replay import TrainingStep
    from tasks.collate import MicroBatch
    from tasks.policy_model import PolicyModel

MODEL = "builtin:smollm2-135m-instruct"
MODULES = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
LORA_RANK = 32
MICRO_BATCH_TOKENS = 1024
MAX_TOKENS = 96
MEGABYTE = 1e6
M_MMAP_THRESHOLD = -3  # of glibc's malloc.h
MMAP_THRESHOLD_BYTES = 65_536

FIRST = LearnerSample(
    tuple(range(9)), ((8, 9),), (-1.0,), (1.0,), "", Role.ACTOR.value, player_id=0, game_id="", policy_version=0
)

Logprobs = Callable[["PolicyModel", "MicroBatch"], "Tensor"]


@dataclass(frozen=True)
class Variant:
    """One way to get the gradient of a batch.

    `chats`: steps that continue each other, else steps with their history in one message. `learner`: merged, packed
    into rows, log-probabilities at trained positions only; else all over the whole vocabulary. `memory`: for memory's
    sake, so with gradient checkpointing, and in the learner's micro-batches whoever computes.
    """

    chats: bool = False
    learner: bool = False
    memory: bool = False


VARIANTS: Mapping[str, Variant] = {
    "straight": Variant(),
    "learner": Variant(learner=True),
    "straight_chats": Variant(chats=True),
    "learner_chats": Variant(chats=True, learner=True),
    "full_memory": Variant(memory=True),
    "learner_memory": Variant(learner=True, memory=True),
}


def run_variant(variant: Variant, options: argparse.Namespace) -> dict[str, float]:
    """One gradient of the whole batch in this process: its seconds, and its peak of memory above the loaded model."""
    import torch

    from tasks.policy_model import PolicyModel

    torch.set_num_threads(options.threads)
    if variant.memory:
        _return_freed_memory()
    policy = PolicyModel(learner_spec(options.model, checkpointing=variant.memory))
    randomise(policy)
    steps = _steps(variant, options)
    if variant.learner or variant.memory:
        batches = micro_batches(rows_of(samples_of(steps), share=policy.shares_prefixes), MICRO_BATCH_TOKENS)
    else:
        batches = [rows_of(samples_of([step])) for step in steps]
    logprobs = learner_logprobs if variant.learner else full_logprobs
    _backward(policy, [rows_of([FIRST])], logprobs, 1)  # libraries set themselves up in the first pass
    for parameter in policy.parameters:
        parameter.grad = None
    _reset_peak()
    loaded_mb = _status_mb("VmRSS")
    began, cpu_began = time.perf_counter(), time.process_time()
    _backward(policy, batches, logprobs, len(steps))
    seconds, cpu_s = time.perf_counter() - began, time.process_time() - cpu_began
    peak_mb = _status_mb("VmHWM") - loaded_mb
    if options.gradients is not None:
        _save_gradients(policy, options.gradients)
    tokens = sum(len(row.token_ids) for rows in batches for row in rows)
    sizes = {"steps": len(steps), "passes": len(batches), "tokens": tokens}
    return {"seconds": seconds, "cpu_s": cpu_s, "peak_mb": peak_mb, **sizes}


def full_logprobs(policy: PolicyModel, batch: MicroBatch) -> Tensor:
    """`log_softmax` in float32 at every position, over the whole vocabulary; then the trained ones."""
    logits_BTV: Tensor = policy.adapted(
        input_ids=batch.ids_BT, position_ids=batch.positions_BT, attention_mask=batch.mask_B1TT, use_cache=False
    ).logits
    return logits_BTV.float().log_softmax(dim=-1)[batch.rows_N, batch.places_N, batch.targets_N]


def learner_logprobs(policy: PolicyModel, batch: MicroBatch) -> Tensor:
    """As the learner computes them; the entropy it measures on the way is part of its time."""
    return policy.token_logprobs(batch)[0]


def compared(options: argparse.Namespace) -> dict[str, float]:
    """All variants in turn, `--repeat` times over; the medians, and their ratios."""
    runs: dict[str, list[dict[str, float]]] = {name: [] for name in VARIANTS}
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(options.repeat):
            for name, own in runs.items():
                own.append(_in_process(name, Path(folder) / name, options))
        errors = [
            _relative_error(Path(folder) / name, Path(folder) / reference)
            for name, reference in (("learner", "straight"), ("learner_chats", "straight_chats"))
        ]
    of = {name: {field: median(run[field] for run in own) for field in own[0]} for name, own in runs.items()}
    return {
        "speedup": of["straight"]["seconds"] / of["learner"]["seconds"],
        "speedup_chats": of["straight_chats"]["seconds"] / of["learner_chats"]["seconds"],
        "cpu_speedup": of["straight"]["cpu_s"] / of["learner"]["cpu_s"],
        "cpu_speedup_chats": of["straight_chats"]["cpu_s"] / of["learner_chats"]["cpu_s"],
        "memory_ratio": of["learner_memory"]["peak_mb"] / of["full_memory"]["peak_mb"],
        "gradient_error": max(errors),
        **{f"{name}_s": of[name]["seconds"] for name, variant in VARIANTS.items() if not variant.memory},
        **{f"{name}_mb": of[name]["peak_mb"] for name, variant in VARIANTS.items() if variant.memory},
        "steps": of["learner"]["steps"],
        "tokens": of["straight"]["tokens"],
        "tokens_shared": of["learner"]["tokens"],
        "chat_steps": of["learner_chats"]["steps"],
        "chat_tokens": of["straight_chats"]["tokens"],
        "chat_tokens_shared": of["learner_chats"]["tokens"],
        "repeats": options.repeat,
    }


def learner_spec(model: str, *, checkpointing: bool = False) -> LearnerSpec:
    """An adapter on all projections of a model, in full precision."""
    return LearnerSpec(
        model_name=model,
        checkpoint_dir="",
        lora_rank=LORA_RANK,
        lora_alpha=LORA_RANK,
        target_modules=MODULES,
        sampling=SamplingSpec(max_tokens=MAX_TOKENS),
        gradient_checkpointing=checkpointing,
        dtype="float32",
    )


def _steps(variant: Variant, options: argparse.Namespace) -> list[TrainingStep]:
    from transformers import AutoTokenizer

    from benchmarks.learner_steps import Chat, chat_steps, single_steps
    from tasks.models import resolve_model

    chat = Chat(AutoTokenizer.from_pretrained(resolve_model(options.model)))
    return chat_steps(chat, options.chats) if variant.chats else single_steps(chat, options.steps)


def randomise(policy: PolicyModel) -> None:
    """The same random weights in both halves of the adapter, so that each has a gradient."""
    import torch

    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in policy.parameters:
            parameter.normal_(0, 0.02, generator=generator)


def _backward(policy: PolicyModel, batches: Sequence[Sequence[Row]], logprobs: Logprobs, steps: int) -> None:
    """Add up the gradient of REINFORCE's loss."""
    import torch

    from tasks.algorithms import TrainedTokens
    from tasks.algorithms.reinforce import Reinforce
    from tasks.collate import collate

    for rows in batches:
        batch = collate(rows, 0, policy.device)
        logprobs_N = logprobs(policy, batch)
        tokens = TrainedTokens(logprobs_N, batch.recorded_N, batch.advantages_N, logprobs_N.detach(), steps, 1)
        torch.autograd.backward(Reinforce(MAX_TOKENS).loss(tokens))


def _save_gradients(policy: PolicyModel, path: Path) -> None:
    import torch

    torch.save(
        torch.cat([parameter.grad.flatten() for parameter in policy.parameters if parameter.grad is not None]), path
    )


def _relative_error(path: Path, reference: Path) -> float:
    """|g - g'| / |g'| of two saved gradients, as vectors of all the adapter's weights."""
    import torch

    got, expected = torch.load(path), torch.load(reference)
    return float((got - expected).norm() / expected.norm())


def _in_process(name: str, gradients: Path, options: argparse.Namespace) -> dict[str, float]:
    given = [f"--{own}={getattr(options, own)}" for own in ("model", "threads", "steps", "chats")]
    return run_alone("benchmarks.learner", [f"--variant={name}", f"--gradients={gradients}", *given])


def _return_freed_memory() -> None:
    """Have glibc give every freed tensor back at once, so that what is resident is what is in use (mallopt(3))."""
    ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, MMAP_THRESHOLD_BYTES)


def _reset_peak() -> None:
    """Let the kernel's record of this process's largest resident set begin anew (Linux, proc(5): clear_refs)."""
    Path("/proc/self/clear_refs").write_text("5")


def _status_mb(field: str) -> float:
    """A figure of /proc/self/status, which gives kB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(f"{field}:")) / MEGABYTE


def arguments() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--variant", choices=VARIANTS, help="run only this one, in this process")
    parser.add_argument("--model", default=MODEL, help="the base model")
    parser.add_argument("--steps", type=int, default=8, help="steps of a batch")
    parser.add_argument("--chats", type=int, default=2, help="players of a batch of chats, about three steps each")
    parser.add_argument("--threads", type=int, default=1, help="of torch; more wait for each other on a busy machine")
    parser.add_argument("--gradients", type=Path, help="where a variant saves its gradient")
    parser.add_argument("--repeat", type=int, default=1, help="rounds over all variants; medians are shown")
    parser.add_argument("--json", action="store_true", help="one JSON line")
    return parser


def main() -> None:
    """Run one variant, or compare all."""
    options = arguments().parse_args()
    result = compared(options) if options.variant is None else run_variant(VARIANTS[options.variant], options)
    show(result, options.json)


if __name__ == "__main__":
    main()
