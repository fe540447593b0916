"""Every configuration that the project ships is valid, and the training recipes are the ones that they name."""

from __future__ import annotations

from pathlib import Path

import pytest
from textarena.envs.registration import ENV_REGISTRY

from pipeline.config import LearnerConfig, RunConfig, load
from pipeline.local_cluster import gpu_environments
from tasks.learner_checks import check_learner

CONFIGS = Path(__file__).resolve().parents[2] / "configs"
GPUS = {1: (1, True), 2: (1, False), 8: (7, False)}


def learner_of(config: RunConfig) -> LearnerConfig:
    assert config.learner is not None
    return config.learner


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.yaml")), ids=lambda path: path.stem)
def test_it_is_valid_and_its_environments_exist(path: Path, tmp_path: Path) -> None:
    config = load(path)
    for env in (*config.environments.train, *config.environments.eval):
        assert ":" in env.env_id or env.env_id in ENV_REGISTRY
    if config.learner is not None:
        check_learner(config.learner.spec(config.vllm, config.seed, tmp_path))


@pytest.mark.parametrize("size", ["1_7b", "4b"])
@pytest.mark.parametrize("gpus", [1, 2, 8])
def test_the_recipe_of_the_field(size: str, gpus: int) -> None:
    config = load(CONFIGS / f"qwen3_{size}_{gpus}gpu.yaml")
    learner, lora = learner_of(config), config.vllm.lora_config
    assert lora is not None
    assert (lora.lora_rank, len(lora.target_modules)) == (32, 7)
    assert (learner.batch_steps, learner.learning_rate, learner.max_grad_norm) == (384, 1e-5, 0.2)
    assert (config.collect.num_train_workers, config.collect.num_eval_workers) == (384, 16)
    assert (config.vllm.temperature, config.vllm.max_tokens, config.vllm.max_model_len) == (0.6, 4096, 8192)
    assert (config.cluster.workers, learner.share_gpu) == GPUS[gpus]
    assert config.vllm.max_parallel_seq * config.cluster.workers >= 384 + 16
    names = [str(index) for index in range(gpus)]
    places = gpu_environments(config.cluster.workers, "shared_gpu" if learner.share_gpu else "own_gpu", names)
    assert {place["CUDA_VISIBLE_DEVICES"] for place in places} == set(names)
    assert config.vllm.model_name == {"1_7b": "Qwen/Qwen3-1.7B", "4b": "Qwen/Qwen3-4B"}[size]
