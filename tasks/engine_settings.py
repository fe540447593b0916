"""Decides how vLLM is set up on this machine: its arguments, and the environment its processes start in.

Kept apart from tasks/engine.py so that it needs no vLLM. A user's own environment variables and `engine_args` win.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, MutableMapping
from pathlib import Path
from typing import Any

from tasks.contracts import EngineSpec, LoraSpec

# On a CPU vLLM would take nine tenths of the memory for the KV cache.
CPU_KV_CACHE_BYTES = 2 * 1024**3
# Instructions that multiply bfloat16 numbers; a CPU without them runs bfloat16 at a tenth of the speed of float32.
FAST_BFLOAT16 = frozenset({"avx512_bf16", "amx_bf16"})
# vLLM keeps one core back for its scheduler, which on few cores costs more than it brings.
FEW_CORES = 4


def engine_arguments(spec: EngineSpec, model: str, *, on_cpu: bool) -> dict[str, Any]:
    """The keyword arguments for vLLM's `AsyncEngineArgs`; `spec.engine_args` override any of them.

    Args:
        spec: what the run asks for.
        model: the folder or hub name that `spec.model_name` stands for.
        on_cpu: whether vLLM computes on the CPU.
    """
    arguments: dict[str, Any] = {
        "model": model,
        "max_model_len": spec.max_model_len,
        "max_num_seqs": spec.max_num_seqs,
        "seed": spec.seed,
        "dtype": spec.dtype,
        "enable_prefix_caching": True,
        # Log-probabilities of the distribution sampled from: after temperature, top-p and top-k.
        "logprobs_mode": "processed_logprobs",
        # Figures come from the engine's own stat logger, and a worker's log has no use for progress bars.
        "disable_log_stats": True,
        "use_tqdm_on_load": False,
    }
    if on_cpu:
        arguments |= _cpu_arguments(spec)
    if spec.lora is not None:
        arguments |= _lora_arguments(spec.lora, on_cpu=on_cpu)
    return arguments | dict(spec.engine_args)


def set_environment(*, on_cpu: bool, environment: MutableMapping[str, str] = os.environ) -> None:
    """Set what vLLM and its processes read from the environment, where the user has not.

    `OMP_NUM_THREADS` needs no care, though a Dask nanny sets it to 1: vLLM gives its worker one thread for each core
    that `VLLM_CPU_OMP_THREADS_BIND` names.
    """
    environment["VLLM_NO_USAGE_STATS"] = "1"
    environment["DO_NOT_TRACK"] = "1"
    # At WARNING vLLM says hundreds of lines of a start on a CPU that needs nothing done; set it there to look closer.
    environment.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    environment.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    environment.setdefault("PYTHONWARNINGS", "ignore::FutureWarning")
    environment.setdefault("VLLM_LOGGING_STREAM", "ext://sys.stderr")
    if on_cpu:
        for library in ("MKL", "OPENBLAS"):
            if environment.get(f"{library}_NUM_THREADS") == "1":  # a Dask nanny's, under which one core would compute
                del environment[f"{library}_NUM_THREADS"]
        environment.setdefault("VLLM_CPU_OMP_THREADS_BIND", core_binding(physical_cores()))


def core_binding(cores: Iterable[int]) -> str:
    """The value of `VLLM_CPU_OMP_THREADS_BIND`: all cores where there are few, else vLLM's own choice."""
    ids = sorted(cores)
    return ",".join(map(str, ids)) if len(ids) <= FEW_CORES else "auto"


def physical_cores() -> set[int]:
    """One CPU number for each physical core that this process may run on."""
    allowed = os.sched_getaffinity(0)
    siblings: dict[str, int] = {}
    for cpu in sorted(allowed):
        topology = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
        siblings.setdefault(topology.read_text() if topology.is_file() else str(cpu), cpu)
    return set(siblings.values())


def cpu_dtype(requested: str, flags: Iterable[str]) -> str:
    """The number format on a CPU with these features: what was asked for, or the faster one for `auto`."""
    if requested != "auto":
        return requested
    return "float32" if FAST_BFLOAT16.isdisjoint(flags) else "bfloat16"


def cpu_flags(cpuinfo: Path = Path("/proc/cpuinfo")) -> frozenset[str]:
    """The feature flags of the first processor; empty where the system does not tell."""
    if not cpuinfo.is_file():
        return frozenset()
    for line in cpuinfo.read_text(encoding="utf-8").splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "flags":
            return frozenset(value.split())
    return frozenset()


def _cpu_arguments(spec: EngineSpec) -> dict[str, Any]:
    arguments: dict[str, Any] = {
        "dtype": cpu_dtype(spec.dtype, cpu_flags()),
        # Compiling takes longer than the engine's whole start and brings a tenth.
        "enforce_eager": True,
    }
    if not os.environ.get("VLLM_CPU_KVCACHE_SPACE"):
        arguments["kv_cache_memory_bytes"] = CPU_KV_CACHE_BYTES
    return arguments


def adapter_places(lora: LoraSpec, *, on_cpu: bool) -> int:
    """How many adapters the core may hold at once.

    On a GPU twice those of a batch, for a new version comes in while games still play the one before. On a CPU no more
    than those of a batch, so that the last of vLLM's places stays empty: see `_lora_arguments`.
    """
    return lora.max_adapters if on_cpu else 2 * lora.max_adapters


def _lora_arguments(lora: LoraSpec, *, on_cpu: bool) -> dict[str, Any]:
    """On a CPU vLLM (0.32) has one place too many: it gives requests without an adapter, which it marks with place -1,
    the weights in the last place when others of the batch have an adapter. Empty, it holds zeros, which add nothing.
    """
    return {
        "enable_lora": True,
        "max_lora_rank": lora.max_rank,
        "max_loras": lora.max_adapters + on_cpu,
        "max_cpu_loras": adapter_places(lora, on_cpu=on_cpu) + on_cpu,
        "lora_target_modules": list(lora.target_modules),
    }
