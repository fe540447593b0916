"""LoRA adapters in training: made, read out as the files engines serve, and read back. The only PEFT import."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import torch
from peft import LoraConfig, PeftModel, get_peft_model, get_peft_model_state_dict, set_peft_model_state_dict
from safetensors.torch import load, save

from tasks.adapter_files import CONFIG_NAME, WEIGHTS_NAME
from tasks.errors import LearnerError
from tasks.learner_contracts import LearnerSpec

_NAME = "default"  # PEFT's own name for a model's only adapter


def add_adapter(base: Any, spec: LearnerSpec) -> PeftModel:
    """Put a new adapter on a base model, which is frozen; it changes nothing until it is trained.

    Which random weights it begins with is decided by `spec.seed`.
    """
    config = LoraConfig(
        r=spec.lora_rank,
        lora_alpha=spec.lora_alpha,
        lora_dropout=spec.lora_dropout,
        target_modules=sorted(spec.target_modules),
        task_type="CAUSAL_LM",
    )
    with torch.random.fork_rng():
        torch.manual_seed(spec.seed)
        model: PeftModel = get_peft_model(base, config)
    model.peft_config[_NAME].base_model_name_or_path = spec.model_name  # PEFT put the resolved path there
    return model


def adapter_files(model: PeftModel) -> dict[str, bytes]:
    """The adapter as files by name, as PEFT saves them. The same weights give the same bytes."""
    weights = {name: tensor.detach().cpu().contiguous() for name, tensor in _weights(model).items()}
    config = model.peft_config[_NAME].to_dict() | {"inference_mode": True}
    text = json.dumps(config, indent=2, sort_keys=True, default=sorted)  # PEFT makes sets of lists
    return {CONFIG_NAME: text.encode(), WEIGHTS_NAME: save(weights, metadata={"format": "pt"})}


def load_adapter(model: PeftModel, files: Mapping[str, bytes]) -> None:
    """Take the weights of `adapter_files`.

    Raises:
        LearnerError: the names or shapes are not the model's.
    """
    weights = load(files[WEIGHTS_NAME])
    expected = {name: tuple(tensor.shape) for name, tensor in _weights(model).items()}
    got = {name: tuple(tensor.shape) for name, tensor in weights.items()}
    if got != expected:
        differing = sorted(name for name in got.keys() | expected.keys() if got.get(name) != expected.get(name))
        raise LearnerError(
            f"the saved adapter does not fit: {differing[0]} is {got.get(differing[0])}, expected "
            f"{expected.get(differing[0])} ({len(differing)} tensors differ). It was saved for another base model or "
            "LoRA shape: go on with those, or begin a new run"
        )
    set_peft_model_state_dict(model, weights)


def _weights(model: PeftModel) -> dict[str, torch.Tensor]:
    weights: dict[str, torch.Tensor] = get_peft_model_state_dict(model, save_embedding_layers=False)
    return weights
