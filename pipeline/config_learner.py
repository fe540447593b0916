"""Settings of learning: what a batch is, what rewards become, how far collection may run ahead, the optimiser."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationInfo, field_validator

from pipeline.config_errors import Settings
from pipeline.config_vllm import VLLMConfig
from pipeline.rewards import (
    BatchTransform,
    FinalTransform,
    FormatReward,
    IllegalMovePenalty,
    RewardTransforms,
    RoleAdvantage,
    StepTransform,
)
from tasks.advantages import Normaliser, by_key, mean_only, z_score
from tasks.errors import ConfigError
from tasks.learner_contracts import LearnerSpec


class RewardsConfig(Settings):
    """What a step is worth to the learner (`pipeline.rewards`).

    `role_baseline` subtracts from a final reward its running mean for that environment and seat, which keeps the share
    `decay` of itself. `format_reward` is added to each step in the form asked for, `illegal_move_penalty` taken from
    each that the environment refused. `normalise` the rewards of a batch: `z_score`, `mean` (subtracted only), or
    `none`; each environment for itself with `per_environment`.
    """

    role_baseline: bool = True
    decay: float = Field(default=0.95, ge=0, lt=1)
    format_reward: float = 0.0
    illegal_move_penalty: float = Field(default=0.0, ge=0)
    normalise: Literal["z_score", "mean", "none"] = "z_score"
    per_environment: bool = False

    def transforms(self) -> RewardTransforms:
        """The three stages as these settings have them."""
        final: list[FinalTransform] = [RoleAdvantage(self.decay)] if self.role_baseline else []
        step: list[StepTransform] = []
        if self.format_reward:
            step.append(FormatReward(self.format_reward))
        if self.illegal_move_penalty:
            step.append(IllegalMovePenalty(self.illegal_move_penalty))
        return RewardTransforms(final, step, self._batch())

    def _batch(self) -> BatchTransform | None:
        normalisers: dict[str, Normaliser] = {"z_score": z_score, "mean": mean_only}
        if self.normalise == "none":
            return None
        normalise = normalisers[self.normalise]
        return partial(by_key, normalise) if self.per_environment else lambda rewards, _env_ids: normalise(rewards)


class LearnerConfig(Settings):
    """How the policy learns. Learning is on when this is there.

    Each of `learning_steps` takes a batch of at least `batch_steps` decisions, none generated more than
    `max_policy_lag` versions ago; 0 is on-policy. `algorithm_args` are keywords of the algorithm's class. The learning
    rate rises over `warmup_steps` and then follows `schedule` to 0 at the last learning step. `max_grad_norm` null
    clips nothing. `micro_batch_tokens` bounds what is computed at once, padding included. `max_skipped` steps in a row
    without a finite loss and gradient end the run. With `share_gpu` the learner of a local cluster runs on the first
    engine's GPU, which leaves it the share `engine_memory` of its memory; without, it has the GPU after the engines'.
    The `canary` shows once per run that engines put adapters to work.
    """

    learning_steps: int = Field(default=200, ge=1)
    batch_steps: int = Field(default=384, ge=1)
    max_policy_lag: int = Field(default=1, ge=0)
    algorithm: str = Field(default="reinforce", min_length=1)
    algorithm_args: dict[str, Any] = Field(default_factory=dict)
    rewards: RewardsConfig = RewardsConfig()
    learning_rate: float = Field(default=1e-5, gt=0)
    weight_decay: float = Field(default=0.0, ge=0)
    betas: tuple[float, float] = Field(default=(0.9, 0.999), strict=False)
    schedule: Literal["constant", "cosine", "linear"] = "constant"
    warmup_steps: int = Field(default=0, ge=0)
    max_grad_norm: float | None = Field(default=0.2, gt=0)
    micro_batch_tokens: int = Field(default=16_384, ge=1)
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    gradient_checkpointing: bool = True
    max_skipped: int = Field(default=3, ge=1)
    share_gpu: bool = False
    engine_memory: float = Field(default=0.5, gt=0, lt=1)
    canary: bool = True

    @field_validator("betas")
    @classmethod
    def _are_shares(cls, betas: tuple[float, float]) -> tuple[float, float]:
        if not all(0 <= beta < 1 for beta in betas):
            raise ValueError(f"got {list(betas)}, expected two numbers of at least 0 and below 1")
        return betas

    @field_validator("warmup_steps")
    @classmethod
    def _ends_before_learning_does(cls, steps: int, info: ValidationInfo) -> int:
        total = info.data.get("learning_steps")
        if total is not None and steps >= total:
            raise ValueError(f"got {steps}, expected less than learning_steps, which is {total}")
        return steps

    def spec(self, vllm: VLLMConfig, seed: int, checkpoint_dir: Path) -> LearnerSpec:
        """What the learner's worker is given.

        Raises:
            ConfigError: `vllm` names no model with an adapter to train.
        """
        lora = vllm.lora_config
        if lora is None or vllm.is_scripted:
            raise ConfigError(
                f"learner: vllm.model_name is {vllm.model_name!r} and vllm.lora_config {lora}; expected a language "
                "model and the shape of the adapter to train, such as lora_config: {lora_rank: 32, lora_alpha: 32}"
            )
        return LearnerSpec(
            model_name=vllm.model_name,
            checkpoint_dir=str(checkpoint_dir),
            lora_rank=lora.lora_rank,
            lora_alpha=lora.lora_alpha,
            target_modules=lora.target_modules,
            lora_dropout=lora.lora_dropout,
            sampling=vllm.sampling(),
            algorithm=self.algorithm,
            algorithm_args=dict(self.algorithm_args),
            learning_rate=self.learning_rate,
            weight_decay=self.weight_decay,
            betas=self.betas,
            schedule=self.schedule,
            warmup_steps=self.warmup_steps,
            total_steps=self.learning_steps,
            max_grad_norm=self.max_grad_norm,
            micro_batch_tokens=self.micro_batch_tokens,
            dtype=self.dtype,
            gradient_checkpointing=self.gradient_checkpointing,
            max_skipped=self.max_skipped,
            seed=seed,
        )
