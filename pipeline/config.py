"""The whole configuration of a run as typed settings: YAML in, resolved YAML out.

Every model refuses unknown keys and values out of range when it is made, before anything starts. No setting holds a
secret: keys and tokens stay in the environment.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from pydantic import Field, ValidationInfo, field_validator

from pipeline.config_errors import IMPORT_PATH, Settings, name_or_path
from pipeline.config_games import EnvironmentsConfig, EvalEnvSpec, ModelsConfig, TrainEnvSpec
from pipeline.config_learner import LearnerConfig
from pipeline.config_opponents import ApiOpponent
from pipeline.config_vllm import SCRIPTED_MODELS, LoraConfig, VLLMConfig
from pipeline.config_yaml import override, read_yaml, to_yaml
from tasks.action_samplers import action_sampler
from tasks.errors import ConfigError, boundary
from tasks.names import nearest

__all__ = [
    "SCRIPTED_MODELS",
    "ApiOpponent",
    "BufferConfig",
    "ClusterConfig",
    "CollectConfig",
    "EnvironmentsConfig",
    "EvalEnvSpec",
    "LearnerConfig",
    "LoraConfig",
    "ModelsConfig",
    "RunConfig",
    "StopConfig",
    "StoreConfig",
    "TrackingConfig",
    "TrainEnvSpec",
    "VLLMConfig",
    "dump",
    "import_object",
    "load",
]

_ADDRESS = re.compile(r"(tcp|tls)://.+:\d+")
_FOLDER_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def _belongs(kind: str, value: str | None, info: ValidationInfo) -> str | None:
    """`value` where it is set exactly when the cluster's kind is the one it is for."""
    chosen = info.data.get("kind", kind)
    if value is None and chosen == kind:
        raise ValueError(f"missing; a cluster of kind {kind!r} needs it")
    if value is not None and chosen != kind:
        raise ValueError(
            f"got {value!r}, but the cluster's kind is {chosen!r}; set cluster.kind to {kind!r} or remove it"
        )
    return value


class CollectConfig(Settings):
    """How many games, and how the collection bears with trouble.

    `num_train_workers` and `num_eval_workers` are the most games of each kind in flight; up to the share `prefetch`
    more wait in line. `action_sampler` is that of evaluation games. A game whose worker or engine died is played again
    up to `retries` times. Each training game is played `group_size` times, one environment, seed and seating with
    replies sampled anew; a group of which some game has nothing to learn from reaches the buffer without that
    (`incomplete_groups` `deliver`) or not at all (`drop`).
    """

    num_train_workers: int = Field(default=8, ge=1)
    num_eval_workers: int | None = Field(default=None, ge=0)
    action_sampler: str = Field(default="default", min_length=1)
    prefetch: float = Field(default=0.25, ge=0)
    retries: int = Field(default=2, ge=0)
    max_consecutive_failures: int = Field(default=20, ge=1)
    group_size: int = Field(default=1, ge=1)
    incomplete_groups: Literal["deliver", "drop"] = "deliver"

    @field_validator("action_sampler")
    @classmethod
    def _known_action_sampler(cls, name: str) -> str:
        try:
            return action_sampler(name).name
        except ConfigError as error:
            raise ValueError(str(error)) from None


class StopConfig(Settings):
    """When the buffer ends the collection: whichever comes first; None is no limit. Counts are of training games."""

    episodes: int | None = Field(default=None, ge=1)
    steps: int | None = Field(default=None, ge=1)
    seconds: float | None = Field(default=None, gt=0)


class BufferConfig(Settings):
    """What the learner draws from: at most `capacity` steps, by single steps or whole episodes (`kind`); `truncated`
    says whether games cut off at their turn cap are among them."""

    kind: str = "step"
    capacity: int = Field(default=100_000, ge=1)
    truncated: Literal["drop", "keep"] = "drop"
    stop: StopConfig = StopConfig()

    @field_validator("kind")
    @classmethod
    def _kind(cls, name: str) -> str:
        return name_or_path(name, ("step", "episode"))


class StoreConfig(Settings):
    """When a shard of games is closed and can be read: after so many episodes or seconds."""

    episodes_per_shard: int = Field(default=256, ge=1)
    seconds_per_shard: float = Field(default=60.0, gt=0)


class ClusterConfig(Settings):
    """Where games are played: on `workers` processes here, or on a cluster found by `address` or `scheduler_file`.

    `timeout_s` is how long to wait for a cluster that is there, with enough workers, before the run is refused. The
    dashboard of a local cluster is off unless `dashboard_address`, such as `:8787`, is set.
    """

    kind: Literal["local", "address", "scheduler_file"] = "local"
    workers: int = Field(default=1, ge=1)
    address: str | None = None
    scheduler_file: str | None = Field(default=None, min_length=1)
    timeout_s: float = Field(default=8.0, gt=0)
    dashboard_address: str | None = None

    @field_validator("address")
    @classmethod
    def _address(cls, address: str | None, info: ValidationInfo) -> str | None:
        if address is not None and not _ADDRESS.fullmatch(address):
            raise ValueError(
                f"got {address!r}, expected the scheduler's address, such as tcp://host:8786 or tls://host:8786"
            )
        return _belongs("address", address, info)

    @field_validator("scheduler_file")
    @classmethod
    def _scheduler_file(cls, path: str | None, info: ValidationInfo) -> str | None:
        return _belongs("scheduler_file", path, info)


class TrackingConfig(Settings):
    """Where MLflow keeps the run: the tracking server at `uri`, or the run's own folder. Metrics are aggregated over
    `window_s` seconds. A `kind` of your own, `package.module:Name`, is called with these settings."""

    kind: str = "mlflow"
    uri: str | None = Field(default=None, min_length=1)
    experiment: str = Field(default="selfplay", min_length=1)
    window_s: float = Field(default=5.0, gt=0)

    @field_validator("kind")
    @classmethod
    def _kind(cls, name: str) -> str:
        return name_or_path(name, ("mlflow",))

    @field_validator("uri")
    @classmethod
    def _no_password(cls, uri: str | None) -> str | None:
        if uri is not None and urlsplit(uri).password is not None:
            raise ValueError(
                "holds a password, which no config may: set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD in "
                "the environment"
            )
        return uri


class RunConfig(Settings):
    """A whole run. `name` names its folder and its MLflow run; the same config and `seed` give the same games.

    `learner` is for training runs; a collection leaves it alone.
    """

    name: str = "run"
    seed: int = Field(default=0, ge=0, le=2**32 - 1)  # vLLM hands it to NumPy, whose seeds end there
    vllm: VLLMConfig
    environments: EnvironmentsConfig
    models: ModelsConfig = ModelsConfig()
    collect: CollectConfig = CollectConfig()
    buffer: BufferConfig = BufferConfig()
    learner: LearnerConfig | None = None
    store: StoreConfig = StoreConfig()
    cluster: ClusterConfig = ClusterConfig()
    tracking: TrackingConfig = TrackingConfig()

    @field_validator("name")
    @classmethod
    def _folder_name(cls, name: str) -> str:
        if not _FOLDER_NAME.fullmatch(name):
            raise ValueError(
                f"got {name!r}, expected letters, digits, '.', '_' and '-', for a folder is named after it"
            )
        return name

    @field_validator("collect")
    @classmethod
    def _evaluation_has_environments(cls, collect: CollectConfig, info: ValidationInfo) -> CollectConfig:
        environments = info.data.get("environments")
        if collect.num_eval_workers and environments is not None and not environments.eval:
            raise ConfigError(
                f"num_eval_workers: got {collect.num_eval_workers} without evaluation environments, expected 0 or "
                "null, or entries in environments.eval"
            )
        return collect


def load(path: Path, overrides: Sequence[str] = ()) -> RunConfig:
    """The run that a YAML file describes, changed by `key.path=value` settings.

    Raises:
        ConfigError: the file cannot be read, or one line for each thing that is wrong in it.
    """
    data = read_yaml(path)
    override(data, overrides)
    try:
        return RunConfig(**data)
    except ConfigError as error:
        raise ConfigError("\n".join([f"{path}:", *(f"  {line}" for line in str(error).splitlines())])) from None


def dump(config: RunConfig) -> str:
    """The resolved configuration as YAML, every default written out; it loads back to an equal one."""
    return to_yaml(config.model_dump())


def import_object(path: str) -> Any:
    """The object that `package.module:Name` names.

    Raises:
        ConfigError: not such a path, no such module or name, or the module raised an error of its own.
    """
    if not IMPORT_PATH.fullmatch(path):
        raise ConfigError(
            f"cannot import {path!r}: expected package.module:Name, such as my_package.samplers:MySampler"
        )
    module_name, _, name = path.partition(":")
    with boundary() as imported:
        module = importlib.import_module(module_name)
    if imported.error is not None:
        raise ConfigError(
            f"cannot import {path!r}: {imported.summary}; expected a module that Python finds from the current folder "
            "or among the installed packages"
        ) from imported.error
    if not hasattr(module, name):
        raise ConfigError(f"cannot import {path!r}: {module_name} has no {name!r}.{nearest(name, vars(module))}")
    return getattr(module, name)
