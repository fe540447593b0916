"""Settings of learning: what is refused, what the learner's worker is given, what rewards become."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pipeline.config import LearnerConfig, VLLMConfig
from pipeline.config_learner import RewardsConfig
from pipeline.rewards import FormatReward, IllegalMovePenalty, RoleAdvantage
from tasks.errors import ConfigError


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_policy_lag": -1}, "max_policy_lag: got -1, expected a whole number of at least 0"),
        ({"batch_steps": 0}, "batch_steps: got 0, expected a whole number of at least 1"),
        ({"learning_rate": 0.0}, "learning_rate: got 0.0, expected a number above 0"),
        ({"betas": [0.9, 1.0]}, "betas: got [0.9, 1.0], expected two numbers of at least 0 and below 1"),
        (
            {"learning_steps": 5, "warmup_steps": 5},
            "warmup_steps: got 5, expected less than learning_steps, which is 5",
        ),
        ({"engine_memory": 1.0}, "engine_memory: got 1.0, expected a number above 0 and below 1"),
        ({"schedule": "step"}, "schedule: got 'step', expected 'constant', 'cosine' or 'linear'"),
        ({"learning_rat": 1.0}, "learning_rat: unknown key; valid are "),
    ],
)
def test_what_is_wrong_is_refused_by_field(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        LearnerConfig(**settings)
    assert str(caught.value).startswith(message)


def test_a_wrong_setting_of_rewards_is_named_with_its_path() -> None:
    with pytest.raises(ConfigError, match=r"decay: got 1\.0, expected a number of at least 0 and below 1"):
        RewardsConfig(decay=1.0)


@pytest.mark.parametrize("vllm", [{"model_name": "scripted:random"}, {"model_name": "some/model"}])
def test_there_must_be_an_adapter_to_train(vllm: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="expected a language model and the shape of the adapter to train"):
        LearnerConfig().spec(VLLMConfig(**vllm), 0, tmp_path)


def test_the_learner_is_given_the_engines_sampling_and_the_adapters_shape(tmp_path: Path) -> None:
    vllm = VLLMConfig(
        model_name="some/model",
        temperature=0.6,
        max_tokens=32,
        lora_config={"lora_rank": 4, "lora_alpha": 8.0, "target_modules": ["q_proj"]},
    )
    spec = LearnerConfig(learning_steps=7, learning_rate=0.5).spec(vllm, 3, tmp_path)
    assert (spec.model_name, spec.lora_rank, spec.lora_alpha, spec.target_modules) == ("some/model", 4, 8, ("q_proj",))
    assert spec.sampling == vllm.sampling()
    assert (spec.total_steps, spec.learning_rate, spec.seed, spec.checkpoint_dir) == (7, 0.5, 3, str(tmp_path))


def test_the_stages_are_those_that_are_asked_for() -> None:
    every = RewardsConfig(format_reward=0.5, illegal_move_penalty=1.0).transforms()
    assert [type(stage) for stage in every.final] == [RoleAdvantage]
    assert [type(stage) for stage in every.step] == [FormatReward, IllegalMovePenalty]
    none = RewardsConfig(role_baseline=False, normalise="none").transforms()
    assert (none.final, none.step, none.batch) == ((), (), None)


@pytest.mark.parametrize(
    ("normalise", "per_environment", "expected"),
    [
        ("none", False, [1.0, 3.0, 10.0, 20.0]),
        ("mean", False, [-7.5, -5.5, 1.5, 11.5]),
        ("mean", True, [-1.0, 1.0, -5.0, 5.0]),
        ("z_score", True, [-1.0, 1.0, -1.0, 1.0]),
    ],
)
def test_a_batch_is_normalised(normalise: Any, per_environment: bool, expected: list[float]) -> None:
    transforms = RewardsConfig(normalise=normalise, per_environment=per_environment).transforms()
    assert list(transforms.of_batch([1.0, 3.0, 10.0, 20.0], ["A", "A", "B", "B"])) == pytest.approx(expected)


@pytest.mark.parametrize("normalise", ["mean", "z_score"])
@pytest.mark.parametrize("rewards", [[], [2.0], [2.0, 2.0, 2.0]])
def test_rewards_that_say_nothing_become_zeros(normalise: Any, rewards: list[float]) -> None:
    transforms = RewardsConfig(normalise=normalise).transforms()
    assert list(transforms.of_batch(rewards, ["A"] * len(rewards))) == [0.0] * len(rewards)
