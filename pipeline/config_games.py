"""Settings of the games: which environments, who learns in them and against whom."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from typing import Any

from pydantic import Field, ValidationInfo, field_validator

from pipeline.config_errors import Settings, name_or_path, not_empty, shown
from pipeline.config_opponents import Opponent
from pipeline.config_vllm import SCRIPTED_MODELS

ENV_SAMPLERS = ("uniform", "weighted", "round_robin")
MODEL_SAMPLERS = ("mirror", "fixed", "last_k")
SECRET_NAME = re.compile(r"(?:^|[_-])(?:(?:api|access|secret|private)[_-]?key|passw(?:or)?d)$", re.IGNORECASE)


def _names(value: object) -> Iterator[str]:
    """All names of mappings within `value`."""
    if isinstance(value, dict):
        yield from map(str, value)
    for item in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _names(item)


class _EnvSpec(Settings):
    """One environment and how it is played.

    `num_actors` players are the policy, the others opponents. `env_kwargs` go to the environment. `error_allowance` is
    how many illegal moves in a row it forgives, None its own number. A game ends as truncated after `max_turns`
    decisions and as a time-out after `time_limit_s` seconds.
    """

    env_id: str = Field(min_length=1)
    num_players: int = Field(default=2, ge=1)
    num_actors: int = Field(default=1, ge=1)
    prompt_template: str = Field(default="default", min_length=1)
    action_extraction: str = Field(default="boxed", min_length=1)
    env_kwargs: dict[str, Any] = Field(default_factory=dict)
    error_allowance: int | None = Field(default=None, ge=0)
    max_turns: int | None = Field(default=None, ge=1)
    time_limit_s: float | None = Field(default=None, gt=0)

    @field_validator("num_actors")
    @classmethod
    def _seats_enough(cls, actors: int, info: ValidationInfo) -> int:
        players = info.data.get("num_players", actors)
        if actors > players:
            raise ValueError(f"got {actors}, expected a whole number from 1 to num_players, which is {players}")
        return actors

    @field_validator("env_kwargs")
    @classmethod
    def _json(cls, kwargs: dict[str, Any]) -> dict[str, Any]:
        """Shards keep them as JSON text, so that a stored game can be played again; no place for a secret."""
        secrets = sorted(name for name in _names(kwargs) if SECRET_NAME.search(name))
        if secrets:
            raise ValueError(
                f"{secrets[0]} is a secret, which no config may hold: let the environment read it from a variable of "
                "the workers' environment"
            )
        try:
            json.dumps(kwargs, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise ValueError(f"got {shown(kwargs)}, expected values that JSON can hold ({error})") from None
        return kwargs


class TrainEnvSpec(_EnvSpec):
    """An environment of the training lane. `num_actors` None means all players."""

    num_actors: int = Field(default_factory=lambda data: int(data["num_players"]), ge=1)

    @field_validator("num_actors", mode="before")
    @classmethod
    def _all_players(cls, actors: object, info: ValidationInfo) -> object:
        return info.data.get("num_players", 1) if actors is None else actors


class EvalEnvSpec(_EnvSpec):
    """An environment of the evaluation lane: the policy against `fixed_opponent`, named as in `models.opponents`."""

    fixed_opponent: Opponent = "scripted:random"


class EnvironmentsConfig(Settings):
    """What is played. `weights`, one for each training environment, belong to the weighted sampler or a user's own."""

    train: tuple[TrainEnvSpec, ...] = Field(strict=False)
    eval: tuple[EvalEnvSpec, ...] = Field(default=(), strict=False)
    sampler: str = "uniform"
    weights: tuple[float, ...] | None = Field(default=None, strict=False)

    @field_validator("train")
    @classmethod
    def _some(cls, train: tuple[TrainEnvSpec, ...]) -> tuple[TrainEnvSpec, ...]:
        return not_empty(train, "at least one environment, such as {env_id: KuhnPoker-v0-train}")

    @field_validator("sampler")
    @classmethod
    def _sampler(cls, name: str) -> str:
        return name_or_path(name, ENV_SAMPLERS)

    @field_validator("weights")
    @classmethod
    def _one_for_each(cls, weights: tuple[float, ...] | None, info: ValidationInfo) -> tuple[float, ...] | None:
        train, sampler = info.data.get("train"), info.data.get("sampler")
        if train is None or sampler is None:
            return weights
        expected = f"{len(train)} numbers of at least 0, one for each training environment and one of them above 0"
        if weights is None:
            if sampler == "weighted":
                raise ValueError(f"missing; the sampler 'weighted' needs {expected}")
            return None
        if sampler in ENV_SAMPLERS and sampler != "weighted":
            raise ValueError(f"got {list(weights)}, but the sampler {sampler!r} has no weights; set it to 'weighted'")
        if len(weights) != len(train) or min(weights) < 0 or math.fsum(weights) == 0:
            raise ValueError(f"got {list(weights)}, expected {expected}")
        return weights


class ModelsConfig(Settings):
    """Against whom the policy trains: itself (`mirror`), its `k` newest versions (`last_k`), or `opponents` (`fixed`).

    Opponents are scripted players, `adapter:/path/to/folder`, OpenRouter's models as `vendor/model`, or the settings of
    any other endpoint (`ApiOpponent`).
    """

    sampler: str = "mirror"
    opponents: tuple[Opponent, ...] = Field(default=(), strict=False)
    k: int = Field(default=5, ge=1)

    @field_validator("sampler")
    @classmethod
    def _sampler(cls, name: str) -> str:
        return name_or_path(name, MODEL_SAMPLERS)

    @field_validator("opponents")
    @classmethod
    def _some(cls, opponents: tuple[Opponent, ...], info: ValidationInfo) -> tuple[Opponent, ...]:
        if info.data.get("sampler") == "fixed":
            not_empty(opponents, f"opponents for the sampler 'fixed', such as {SCRIPTED_MODELS[0]}")
        return opponents
