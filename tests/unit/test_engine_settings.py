"""How vLLM is set up: arguments, environment, number format and cores."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tasks import engine_settings
from tasks.contracts import EngineSpec, LoraSpec
from tasks.engine_settings import (
    adapter_places,
    core_binding,
    cpu_dtype,
    cpu_flags,
    engine_arguments,
    physical_cores,
    set_environment,
)


@pytest.fixture(autouse=True)
def own_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VLLM_CPU_KVCACHE_SPACE", raising=False)


def arguments(on_cpu: bool = True, **changes: Any) -> dict[str, Any]:
    return engine_arguments(EngineSpec("a/model", **changes), "/models/a", on_cpu=on_cpu)


def test_the_spec_becomes_arguments() -> None:
    made = arguments(max_model_len=512, max_num_seqs=3, seed=7, dtype="float16")
    expected = {"model": "/models/a", "max_model_len": 512, "max_num_seqs": 3, "seed": 7, "dtype": "float16"}
    assert made.items() >= expected.items()
    assert made["enable_prefix_caching"] is True
    assert made["logprobs_mode"] == "processed_logprobs"
    assert "enable_lora" not in made


def test_a_gpu_keeps_vllms_own_choice_of_memory_format_and_compilation() -> None:
    made = arguments(on_cpu=False)
    assert made["dtype"] == "auto"
    assert made.keys().isdisjoint({"kv_cache_memory_bytes", "enforce_eager"})


def test_a_cpu_gets_a_modest_kv_cache_unless_the_user_sized_it(monkeypatch: pytest.MonkeyPatch) -> None:
    assert arguments()["kv_cache_memory_bytes"] == 2 * 1024**3
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "8")
    assert "kv_cache_memory_bytes" not in arguments()


def test_lora_is_on_when_the_spec_has_it() -> None:
    made = arguments(on_cpu=False, lora=LoraSpec(max_rank=16, max_adapters=4, target_modules=("q_proj",)))
    assert made.items() >= {"enable_lora": True, "max_lora_rank": 16, "max_loras": 4, "max_cpu_loras": 8}.items()
    assert made["lora_target_modules"] == ["q_proj"]


def test_on_a_cpu_there_is_a_place_for_adapters_that_is_never_filled() -> None:
    lora = LoraSpec(max_rank=16, max_adapters=4, target_modules=("q_proj",))
    made = arguments(on_cpu=True, lora=lora)
    assert made["max_loras"] == made["max_cpu_loras"] == adapter_places(lora, on_cpu=True) + 1 == 5
    assert adapter_places(lora, on_cpu=False) == 8


def test_engine_args_have_the_last_word() -> None:
    made = arguments(engine_args={"enforce_eager": False, "swap": {"unchanged": 1}})
    assert made["enforce_eager"] is False
    assert made["swap"] == {"unchanged": 1}


@pytest.mark.parametrize(
    ("requested", "flags", "dtype"),
    [
        ("auto", {"avx2", "avx512f"}, "float32"),
        ("auto", {"avx512f", "avx512_bf16"}, "bfloat16"),
        ("auto", {"amx_bf16"}, "bfloat16"),
        ("auto", set(), "float32"),
        ("bfloat16", {"avx2"}, "bfloat16"),
    ],
)
def test_auto_is_bfloat16_only_where_the_cpu_has_instructions_for_it(
    requested: str, flags: set[str], dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert cpu_dtype(requested, flags) == dtype
    monkeypatch.setattr(engine_settings, "cpu_flags", lambda: frozenset(flags))
    assert arguments(dtype=requested)["dtype"] == dtype


def test_cpu_flags_are_read_from_the_first_processor(tmp_path: Path) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("processor\t: 0\nflags\t\t: fpu avx2\nbugs\t\t: none\n\nprocessor\t: 1\nflags\t\t: fpu\n")
    assert cpu_flags(cpuinfo) == {"fpu", "avx2"}
    assert cpu_flags(tmp_path / "none") == frozenset()


@pytest.mark.parametrize(("cores", "binding"), [({1, 0}, "0,1"), ({2, 3, 4, 9}, "2,3,4,9"), (set(range(5)), "auto")])
def test_few_cores_are_all_used(cores: set[int], binding: str) -> None:
    assert core_binding(cores) == binding


def test_physical_cores_are_some_of_those_this_process_may_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_settings.os, "sched_getaffinity", lambda _pid: {0, 100_000})
    assert physical_cores() == {0, 100_000}


@pytest.mark.parametrize("on_cpu", [True, False])
def test_the_environment_is_quiet_and_private(on_cpu: bool) -> None:
    made: dict[str, str] = {}
    set_environment(on_cpu=on_cpu, environment=made)
    assert made["VLLM_NO_USAGE_STATS"] == made["DO_NOT_TRACK"] == "1"
    assert made["VLLM_LOGGING_LEVEL"] == "ERROR"
    assert ("VLLM_CPU_OMP_THREADS_BIND" in made) is on_cpu


def test_what_the_user_set_stays() -> None:
    own = {"VLLM_LOGGING_LEVEL": "DEBUG", "VLLM_LOGGING_STREAM": "ext://sys.stdout", "VLLM_CPU_OMP_THREADS_BIND": "7"}
    made = dict(own)
    set_environment(on_cpu=True, environment=made)
    assert made.items() >= own.items()


def test_a_nannys_single_thread_is_taken_back_on_a_cpu_and_a_users_number_stays() -> None:
    made = {"MKL_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "4"}
    set_environment(on_cpu=True, environment=made)
    assert "MKL_NUM_THREADS" not in made
    assert made["OPENBLAS_NUM_THREADS"] == "4"
