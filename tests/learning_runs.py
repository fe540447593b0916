"""Training runs small enough for tests: the tiny random model in the environment of one decision."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import yaml

from pipeline.config import RunConfig
from pipeline.launch_train import run_train
from pipeline.model_registry import ModelRegistry
from pipeline.progress import Progress
from tasks.adapter_files import WEIGHTS_NAME
from tasks.contracts import EngineReply, ModelRef, SamplingSpec
from tests.processes import REPOSITORY
from tests.stub_engine import StubEngine
from tests.tiny_model import TARGET_MODULES

TINY_VOCABULARY = 260


class SmallVocabularyEngine(StubEngine):
    """The stub engine with token ids that the tiny model has, too."""

    async def generate(self, messages: Any, sampling: SamplingSpec, **how: Any) -> EngineReply:
        reply = await super().generate(messages, sampling, **how)
        completions = tuple(
            replace(completion, token_ids=tuple(token % TINY_VOCABULARY for token in completion.token_ids))
            for completion in reply.completions
        )
        prompt_ids = tuple(token % TINY_VOCABULARY for token in reply.prompt_ids)
        return replace(reply, prompt_ids=prompt_ids, completions=completions)


def training_config(model: Path, *, learner: Mapping[str, Any], **vllm: Any) -> dict[str, Any]:
    """A run whose answers are two tokens long, on real engines unless `vllm` says otherwise."""
    return {
        "name": "first-token",
        "vllm": {
            "model_name": str(model),
            "max_tokens": 2,
            "max_model_len": 128,
            "dtype": "float32",
            "engine_args": {"kv_cache_memory_bytes": 16 * 1024**2},
            "lora_config": {"lora_rank": 8, "lora_alpha": 16.0, "target_modules": list(TARGET_MODULES)},
            **vllm,
        },
        "environments": {
            "train": [
                {
                    "env_id": "configs.examples.first_token:FirstToken",
                    "num_players": 1,
                    "prompt_template": "raw",
                    "action_extraction": "raw",
                }
            ]
        },
        "collect": {"num_train_workers": 32},
        "learner": {
            "batch_steps": 64,
            "learning_rate": 0.005,
            "max_grad_norm": 1.0,
            "algorithm_args": {"length": "token_mean"},
            **learner,
        },
    }


def start_training(config: Mapping[str, Any], run_dir: Path, *options: str) -> subprocess.Popen[bytes]:
    """Start `selfplay train --json` as a process of its own; its output is `RUN.out`, what it shows `RUN.log`."""
    path = run_dir.with_suffix(".yaml")
    path.write_text(yaml.safe_dump(dict(config)))
    with run_dir.with_suffix(".out").open("wb") as output, run_dir.with_suffix(".log").open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "pipeline.cli", "train", str(path), "--run-dir", str(run_dir), "--json", *options],
            cwd=REPOSITORY,
            env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
            stdout=output,
            stderr=log,
            start_new_session=True,
        )


def result_of(process: subprocess.Popen[bytes], run_dir: Path, timeout_s: float = 280) -> dict[str, Any]:
    """Wait for the run to end well; the JSON object on its last line."""
    code = process.wait(timeout=timeout_s)
    assert code == 0, run_dir.with_suffix(".log").read_text()[-4000:]
    summary: dict[str, Any] = json.loads(run_dir.with_suffix(".out").read_text().splitlines()[-1])
    return summary


def run_unpublished(config: Mapping[str, Any], run_dir: Path) -> dict[str, Any]:
    """Train in this process with publication cut: every version is published with weights of 0, the base model's."""
    publish = ModelRegistry.publish

    def publish_zeros(registry: ModelRegistry, files: Mapping[str, bytes], **about: Any) -> ModelRef:
        weights = files[WEIGHTS_NAME]
        begin = 8 + int.from_bytes(weights[:8], "little")  # the tensors come after the header and its length
        zeros = weights[:begin] + bytes(len(weights) - begin)
        return publish(registry, {**files, WEIGHTS_NAME: zeros}, **about)

    with mock.patch.object(ModelRegistry, "publish", publish_zeros), Progress() as progress:
        return run_train(RunConfig(**config), run_dir, progress)


class Diverging:
    """An algorithm whose loss is never a number."""

    def __init__(self, max_tokens: int) -> None:
        self.max_tokens = max_tokens

    def loss(self, tokens: Any) -> Any:
        return tokens.logprobs_N.sum() * float("nan")
