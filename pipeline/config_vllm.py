"""Settings of the model: how it is sampled and how its engines are set up."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field, ValidationInfo, field_validator

from pipeline.config_errors import Settings, name_or_path, not_empty
from tasks.adapter_files import SERVED_RANKS, served_rank
from tasks.contracts import EngineSpec, LoraSpec, ModelKind, ModelRef, SamplingSpec
from tasks.names import nearest

SCRIPTED_MODELS = ("scripted:random", "scripted:first")
ALL_PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


class LoraConfig(Settings):
    """The LoRA adapters that engines serve and the learner trains. LoRA is on when this is there."""

    lora_rank: int = Field(default=16, ge=1, le=512)
    lora_alpha: float = Field(default=32.0, gt=0)
    lora_dropout: float = Field(default=0.0, ge=0, le=1)
    target_modules: tuple[str, ...] = Field(default=ALL_PROJECTIONS, strict=False)
    modules_to_save: tuple[str, ...] = Field(default=(), strict=False)

    @field_validator("modules_to_save")
    @classmethod
    def _nothing_beside_the_matrices(cls, modules: tuple[str, ...]) -> tuple[str, ...]:
        if modules:
            raise ValueError(
                f"got {list(modules)}, expected none: engines serve the low-rank matrices alone and would play on "
                "with the base model's own weights there. Remove it, or name linear layers in target_modules"
            )
        return modules

    @field_validator("target_modules")
    @classmethod
    def _some(cls, modules: tuple[str, ...]) -> tuple[str, ...]:
        return not_empty(modules, f"names of modules, such as {', '.join(ALL_PROJECTIONS)}")

    @property
    def served_rank(self) -> int:
        """The rank that the engine reserves: the smallest that vLLM takes and that holds `lora_rank`."""
        return served_rank(self.lora_rank)


class VLLMConfig(Settings):
    """The model, how it is sampled and how its engines are set up.

    `model_name` is a folder, a hub name, `builtin:smollm2-135m-instruct`, or a scripted player, which needs no engine.
    `max_tokens` are those of one answer, `max_model_len` those of prompt and answer together. `max_parallel_seq` bounds
    what one engine batches, `max_loras` the adapters in one batch. `top_k` 0 is off. `engine` is the class behind the
    engine's interface; `engine_args` reach it unchanged.
    """

    model_name: str = Field(min_length=1)
    temperature: float = Field(default=1.0, ge=0)
    top_p: float = Field(default=1.0, gt=0, le=1)
    top_k: int = Field(default=0, ge=0)
    stop: tuple[str, ...] = Field(default=(), strict=False)
    max_model_len: int = Field(default=4096, ge=2)
    max_tokens: int = Field(default=256, ge=1)
    max_parallel_seq: int = Field(default=64, ge=1)
    max_loras: int = Field(default=4, ge=1)
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    engine: str = "tasks.engine:VLLMEngine"
    engine_args: dict[str, Any] = Field(default_factory=dict)
    lora_config: LoraConfig | None = None

    @field_validator("model_name")
    @classmethod
    def _known_if_scripted(cls, name: str) -> str:
        if name.startswith("scripted:") and name not in SCRIPTED_MODELS:
            raise ValueError(f"got {name!r}, expected {' or '.join(SCRIPTED_MODELS)}.{nearest(name, SCRIPTED_MODELS)}")
        return name

    @field_validator("max_tokens")
    @classmethod
    def _leaves_room_for_a_prompt(cls, tokens: int, info: ValidationInfo) -> int:
        length = info.data.get("max_model_len")
        if length is not None and tokens >= length:
            raise ValueError(f"got {tokens}, expected less than max_model_len, which is {length}")
        return tokens

    @field_validator("engine")
    @classmethod
    def _import_path(cls, path: str) -> str:
        return name_or_path(path, ())

    @field_validator("engine_args")
    @classmethod
    def _left_to_others(cls, arguments: dict[str, Any]) -> dict[str, Any]:
        if "hf_token" in arguments:
            raise ValueError("hf_token is a secret, which no config may hold: set HF_TOKEN in the workers' environment")
        for name in ("max_loras", "max_cpu_loras"):
            if name in arguments:
                raise ValueError(f"{name} follows from vllm.max_loras: set that, and remove it here")
        return arguments

    @field_validator("lora_config")
    @classmethod
    def _rank_is_served(cls, lora: LoraConfig | None, info: ValidationInfo) -> LoraConfig | None:
        """`engine_args` win over what we set, so they may not take less than the rank away."""
        reserved = info.data.get("engine_args", {}).get("max_lora_rank")
        if lora is not None and reserved is not None and (reserved not in SERVED_RANKS or reserved < lora.lora_rank):
            sizes = ", ".join(map(str, SERVED_RANKS))
            raise ValueError(
                f"lora_rank is {lora.lora_rank}, but engine_args.max_lora_rank is {reserved}, and vLLM takes the "
                f"sizes {sizes}: set max_lora_rank to {lora.served_rank}, or remove it"
            )
        return lora

    @classmethod
    def of(cls, config: VLLMConfig | Mapping[str, Any]) -> VLLMConfig:
        """The configuration behind what `GameScheduler` takes.

        Raises:
            ConfigError: the mapping has unknown keys or values out of range.
        """
        return config if isinstance(config, VLLMConfig) else cls(**config)

    @property
    def is_scripted(self) -> bool:
        """Whether no engine is needed: `model_name` names a scripted player."""
        return self.model_name in SCRIPTED_MODELS

    def engine_spec(self, seed: int) -> EngineSpec:
        """What every engine worker is given; its factory is None for a scripted model."""
        lora = None
        if self.lora_config is not None:
            lora = LoraSpec(self.lora_config.served_rank, self.max_loras, self.lora_config.target_modules)
        return EngineSpec(
            model_name=self.model_name,
            factory=None if self.is_scripted else self.engine,
            max_model_len=self.max_model_len,
            max_num_seqs=self.max_parallel_seq,
            seed=seed,
            dtype=self.dtype,
            lora=lora,
            engine_args=dict(self.engine_args),
        )

    def sampling(self) -> SamplingSpec:
        """How the policy's answers are sampled."""
        return SamplingSpec(self.temperature, self.top_p, self.top_k, self.max_tokens, self.stop)

    def policy(self) -> ModelRef:
        """The model in training before its first update."""
        if self.is_scripted:
            return ModelRef(self.model_name, ModelKind.SCRIPTED)
        return ModelRef("policy@0", ModelKind.ENGINE, policy_version=0)
