"""The driver: decides what is played, keeps games in flight, stores and reports. A map of the loop, in its order:

1. `config` reads one YAML into typed settings; `cluster` connects to Dask and sees that it can carry the run.
2. `env_samplers` and `model_samplers` choose environment and opponent; `game_specs` makes the next `GameSpec`.
3. `placement` names the engine that plays it; `game_futures` submits it there as a Dask future; `engine_pool` starts
   the engines and watches them.
4. `game_scheduler` is the loop: submit what there is room for, deal with every event, end every game as one episode.
5. `episode_store` keeps all episodes as Parquet; `groups` hands those that can be learned from to `replay`, which holds
   what the learner draws from and says when to stop;
   `model_registry` keeps the results and the `ratings`; `tracking` tells MLflow.
6. `ledger` holds the books behind `summary.json`; `progress` and `report` show them; `transcript` and
   `analysis` read a run back.

Learning runs beside that loop: `trainer` draws batches from `replay`, whose rewards `rewards` has transformed, hands
them to the learner through `learner_tasks`, and publishes what comes back in `model_registry`; the next game names it.
`staleness` says how many games may begin meanwhile and what is too old; `training_log` and `time_shares` keep the
figures; `checkpoints` is what a killed run goes on from.

`launch` and `launch_train` put the parts together for the command line, `cli`. The names below are the public
interface; importing this package loads none of them before it is asked for (PEP 562).
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pipeline.cluster import connect
    from pipeline.config import (
        ApiOpponent,
        ClusterConfig,
        EvalEnvSpec,
        LearnerConfig,
        LoraConfig,
        RunConfig,
        TrainEnvSpec,
        VLLMConfig,
    )
    from pipeline.env_samplers import BaseEnvSampler, RoundRobinEnvSampler, UniformEnvSampler, WeightedEnvSampler
    from pipeline.episode_store import BaseEpisodeStore, EpisodeStore
    from pipeline.game_scheduler import GameScheduler, SchedulerOptions
    from pipeline.learner_tasks import LearnerTasks
    from pipeline.model_registry import ModelRegistry
    from pipeline.model_samplers import BaseModelSampler, FixedSampler, LastKSampler, MirrorSampler
    from pipeline.replay import EpisodeBuffer, ReplayBuffer, StepBuffer, StopConditions
    from pipeline.rewards import RewardTransforms
    from pipeline.staleness import Staleness
    from pipeline.tracking import BaseTracker, MLflowTracker, NullTracker
    from pipeline.trainer import Trainer
    from pipeline.training_log import TrainingLog

__all__ = [
    "ApiOpponent",
    "BaseEnvSampler",
    "BaseEpisodeStore",
    "BaseModelSampler",
    "BaseTracker",
    "ClusterConfig",
    "EpisodeBuffer",
    "EpisodeStore",
    "EvalEnvSpec",
    "FixedSampler",
    "GameScheduler",
    "LastKSampler",
    "LearnerConfig",
    "LearnerTasks",
    "LoraConfig",
    "MLflowTracker",
    "MirrorSampler",
    "ModelRegistry",
    "NullTracker",
    "ReplayBuffer",
    "RewardTransforms",
    "RoundRobinEnvSampler",
    "RunConfig",
    "SchedulerOptions",
    "Staleness",
    "StepBuffer",
    "StopConditions",
    "TrainEnvSpec",
    "Trainer",
    "TrainingLog",
    "UniformEnvSampler",
    "VLLMConfig",
    "WeightedEnvSampler",
    "connect",
]

_HOMES = {
    "cluster": ("connect",),
    "config": (
        "ApiOpponent",
        "ClusterConfig",
        "EvalEnvSpec",
        "LearnerConfig",
        "LoraConfig",
        "RunConfig",
        "TrainEnvSpec",
        "VLLMConfig",
    ),
    "env_samplers": ("BaseEnvSampler", "RoundRobinEnvSampler", "UniformEnvSampler", "WeightedEnvSampler"),
    "episode_store": ("BaseEpisodeStore", "EpisodeStore"),
    "game_scheduler": ("GameScheduler", "SchedulerOptions"),
    "learner_tasks": ("LearnerTasks",),
    "model_registry": ("ModelRegistry",),
    "model_samplers": ("BaseModelSampler", "FixedSampler", "LastKSampler", "MirrorSampler"),
    "replay": ("EpisodeBuffer", "ReplayBuffer", "StepBuffer", "StopConditions"),
    "rewards": ("RewardTransforms",),
    "staleness": ("Staleness",),
    "tracking": ("BaseTracker", "MLflowTracker", "NullTracker"),
    "trainer": ("Trainer",),
    "training_log": ("TrainingLog",),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'pipeline' has no attribute {name!r}")
    return getattr(importlib.import_module(f"pipeline.{_HOME_OF[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
