"""Which adapters are refused, and in what words. The files are written byte by byte: no torch, no PEFT."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.adapter_files import CONFIG_NAME, WEIGHTS_NAME, Shape, check_adapter, content_digest, safetensors_shapes
from tasks.contracts import LoraSpec
from tasks.errors import AdapterError
from tests.unit.example_adapters import BASE, CONFIG, DOWN, LORA, TENSORS, Q, write_adapter


def without(name: str) -> dict[str, Shape]:
    return {key: shape for key, shape in TENSORS.items() if key != name}


def test_an_adapter_that_fits_passes(tmp_path: Path) -> None:
    check_adapter(write_adapter(tmp_path), BASE, LORA)


def test_target_modules_may_be_whole_names(tmp_path: Path) -> None:
    check_adapter(write_adapter(tmp_path), BASE, LoraSpec(8, 2, (Q, DOWN)))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"peft_type": "IA3"}, r"peft_type 'IA3'; the engine serves 'LORA' only"),
        ({"r": 16}, r"rank r=16; the engine serves ranks 1 to 8\. Set vllm\.lora_config\.lora_rank to 16, the next"),
        ({"r": 20}, r"rank r=20; .*lora_rank to 32, the next of vLLM's sizes that holds it"),
        ({"r": 1024}, r"rank r=1024; .*vLLM serves ranks up to 512: train an adapter of such a rank"),
        ({"r": 0}, r"rank r=0"),
        ({"r": None}, r"rank r=None"),
        ({"use_dora": True}, r"use_dora True, which the engine does not serve; expected False"),
        ({"bias": "all"}, r"bias 'all', which the engine does not serve; expected 'none'"),
        ({"modules_to_save": ["lm_head"]}, r"modules_to_save \['lm_head'\]"),
        ({"rank_pattern": {"q_proj": 2}}, r"rank_pattern \{'q_proj': 2\}"),
        ({"init_lora_weights": "pissa"}, r"init_lora_weights 'pissa'"),
    ],
)
def test_a_configuration_that_cannot_be_served_is_refused(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    with pytest.raises(AdapterError, match=message):
        check_adapter(write_adapter(tmp_path, CONFIG | change), BASE, LORA)


@pytest.mark.parametrize(
    "unused", [{"use_dora": False, "modules_to_save": None, "rank_pattern": {}, "lora_bias": False}]
)
def test_features_that_are_written_but_unused_are_no_hindrance(tmp_path: Path, unused: dict[str, Any]) -> None:
    check_adapter(write_adapter(tmp_path, CONFIG | unused), BASE, LORA)


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        (
            TENSORS | {f"base_model.model.{Q}.lora_A.weight": (4, 48)},
            r"A \(4, 48\) and lora_B \(64, 4\) on .*q_proj; expected \(4, 32\) and \(64, 4\) for rank 4 .* another",
        ),
        (
            TENSORS | {f"base_model.model.{Q}.lora_B.weight": (96, 4)},
            r"lora_B \(96, 4\) .* \(4, 32\) and \(64, 4\)",
        ),
        (TENSORS | {f"base_model.model.{Q}.lora_A.weight": (2, 32)}, r"lora_A \(2, 32\) .* expected \(4, 32\)"),
        (TENSORS | {f"base_model.model.{Q}.lora_A.weight": (128,)}, r"lora_A \(128,\) .* expected two dimensions each"),
        (without(f"base_model.model.{DOWN}.lora_B.weight"), r"no lora_B for .*down_proj; expected both halves"),
        (without(f"base_model.model.{DOWN}.lora_A.weight"), r"no lora_A for .*down_proj; expected both halves"),
        ({}, r"holds no tensors in adapter_model\.safetensors"),
        (TENSORS | {"base_model.model.lm_head.weight": (8, 8)}, r"holds a tensor 'base_model\.model\.lm_head\.weight'"),
        (
            {name.replace("layers.0", "layers.7"): shape for name, shape in TENSORS.items()},
            r"model\.layers\.7\.self_attn\.q_proj, which the base model does not have: it was made for another base",
        ),
        (
            {name.replace("q_proj", "k_proj"): shape for name, shape in TENSORS.items()},
            r"on q_proj, down_proj only\. Add 'k_proj' to vllm\.lora_config\.target_modules",
        ),
    ],
)
def test_tensors_that_do_not_fit_are_refused(tmp_path: Path, tensors: dict[str, Shape], message: str) -> None:
    with pytest.raises(AdapterError, match=message):
        check_adapter(write_adapter(tmp_path, tensors=tensors), BASE, LORA)


def test_without_the_bases_files_shapes_are_still_compared_with_the_rank(tmp_path: Path) -> None:
    unknown_base = TENSORS | {f"base_model.model.{Q}.lora_A.weight": (4, 48)}
    check_adapter(write_adapter(tmp_path, tensors=unknown_base), None, LORA)
    wrong_rank = TENSORS | {f"base_model.model.{Q}.lora_A.weight": (2, 32)}
    with pytest.raises(AdapterError, match=r"lora_A \(2, 32\)"):
        check_adapter(write_adapter(tmp_path, tensors=wrong_rank), None, LORA)


def cut_to(size: int) -> Callable[[Path], None]:
    def cut(file: Path) -> None:
        file.write_bytes(file.read_bytes()[:size])

    return cut


def write(content: bytes) -> Callable[[Path], object]:
    return lambda file: file.write_bytes(content)


@pytest.mark.parametrize(
    ("name", "damage", "message"),
    [
        (CONFIG_NAME, Path.unlink, r"has no adapter_config\.json; expected a LoRA adapter"),
        (CONFIG_NAME, cut_to(0), r"adapter_config\.json is not JSON .* empty or cut off"),
        (CONFIG_NAME, write(b"[]"), r"adapter_config\.json holds list; expected a JSON object"),
        (
            WEIGHTS_NAME,
            Path.unlink,
            r"adapter_model\.safetensors is missing; expected weights in the safetens",
        ),
        (WEIGHTS_NAME, cut_to(0), r"has 0 bytes and names a header of 0 bytes; .* cut off"),
        (WEIGHTS_NAME, cut_to(100), r"has 100 bytes and names a header of \d+ bytes; .* cut off"),
        (WEIGHTS_NAME, cut_to(-1), r"has \d+ bytes; its header promises \d+\. The file is cut off"),
        (
            WEIGHTS_NAME,
            lambda file: file.write_bytes(struct.pack("<Q", 2**60) + b"{}"),
            r"names a header of 1152921504606846976 bytes",
        ),
        (
            WEIGHTS_NAME,
            lambda file: file.write_bytes(struct.pack("<Q", 4) + b"true"),
            r"a header that is not safetensors' JSON",
        ),
    ],
)
def test_damaged_files_are_refused(tmp_path: Path, name: str, damage: Callable[[Path], Any], message: str) -> None:
    write_adapter(tmp_path)
    damage(tmp_path / name)
    with pytest.raises(AdapterError, match=message):
        check_adapter(tmp_path, BASE, LORA)


@given(st.binary(max_size=64))
def test_a_file_of_any_bytes_is_read_or_refused(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    file = tmp_path_factory.mktemp("any") / "x.safetensors"
    file.write_bytes(content)
    with pytest.raises(AdapterError):
        safetensors_shapes(file)


def test_the_digest_is_of_the_content_alone_and_changes_with_either_file(tmp_path: Path) -> None:
    here, copy = (write_adapter(tmp_path / name) for name in ("here", "copy"))
    digest = content_digest(here)
    assert len(digest) == 64
    assert content_digest(copy) == digest
    for name in (CONFIG_NAME, WEIGHTS_NAME):
        before = (copy / name).read_bytes()
        (copy / name).write_bytes(before + b" ")
        assert content_digest(copy) != digest
        (copy / name).unlink()
        with pytest.raises(AdapterError, match=f"has no {name} that can be read"):
            content_digest(copy)
        (copy / name).write_bytes(before)
