"""Adapters and a base model for tests, written byte by byte: no torch, no PEFT."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tasks.adapter_files import CONFIG_NAME, WEIGHTS_NAME, Shape
from tasks.contracts import LoraSpec

LORA = LoraSpec(max_rank=8, max_adapters=2, target_modules=("q_proj", "down_proj"))
Q, DOWN = "model.layers.0.self_attn.q_proj", "model.layers.0.mlp.down_proj"
BASE: dict[str, Shape] = {Q: (64, 32), DOWN: (32, 128)}
CONFIG = {"peft_type": "LORA", "r": 4, "lora_alpha": 8, "target_modules": ["q_proj", "down_proj"], "bias": "none"}
TENSORS: dict[str, Shape] = {
    f"base_model.model.{Q}.lora_A.weight": (4, 32),
    f"base_model.model.{Q}.lora_B.weight": (64, 4),
    f"base_model.model.{DOWN}.lora_A.weight": (4, 128),
    f"base_model.model.{DOWN}.lora_B.weight": (32, 4),
}


def safetensors_bytes(tensors: Mapping[str, Shape], fill: float = 0.0) -> bytes:
    """A safetensors file of float32 numbers, all the same."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, shape in tensors.items():
        size = 4
        for length in shape:
            size *= length
        header[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [end, end + size]}
        end += size
    raw = json.dumps(header).encode()
    return struct.pack("<Q", len(raw)) + raw + struct.pack("<f", fill) * (end // 4)


def write_adapter(folder: Path, config: Mapping[str, Any] = CONFIG, tensors: Mapping[str, Shape] = TENSORS) -> Path:
    folder.mkdir(exist_ok=True)
    for name, content in adapter_bytes(config, tensors).items():
        (folder / name).write_bytes(content)
    return folder


def adapter_bytes(
    config: Mapping[str, Any] = CONFIG, tensors: Mapping[str, Shape] = TENSORS, fill: float = 0.0
) -> dict[str, bytes]:
    """The files of an adapter by name, as a learner hands them over; another `fill` is another version."""
    return {CONFIG_NAME: json.dumps(config).encode(), WEIGHTS_NAME: safetensors_bytes(tensors, fill)}


def write_base(folder: Path, fill: float = 0.0) -> Path:
    """A base model of the shapes `BASE`, as far as adapters need to know it."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text("{}")
    tensors = {f"{module}.weight": shape for module, shape in BASE.items()}
    (folder / "model.safetensors").write_bytes(safetensors_bytes(tensors, fill))
    return folder
