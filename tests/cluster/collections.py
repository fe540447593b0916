"""Collections for tests: a scheduler with a stub engine or scripted players, a real store, and what must hold after."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from distributed import Client

from pipeline.config import EvalEnvSpec, TrainEnvSpec
from pipeline.env_samplers import BaseEnvSampler, UniformEnvSampler
from pipeline.episode_store import EpisodeStore
from pipeline.game_scheduler import GameScheduler, SchedulerOptions
from pipeline.ledger import Ledger
from pipeline.model_registry import ModelRegistry
from pipeline.model_samplers import MirrorSampler
from pipeline.replay import ReplayBuffer, StepBuffer, StopConditions
from pipeline.tracking import BaseTracker, NullTracker
from tasks.contracts import Mode, ModelKind, ModelRef
from tasks.shards import read_episodes, read_steps

KUHN = "KuhnPoker-v0-train"
SCRIPTED = {"model_name": "scripted:random"}
POLICY = {
    "stub": ModelRef("policy@0", ModelKind.ENGINE, 0),
    "scripted": ModelRef("scripted:random", ModelKind.SCRIPTED),
}


def stub(name: str = "stub", **engine_args: Any) -> dict[str, Any]:
    """A `vllm_config` whose engine is the stub; the name tells stubs of one worker process apart."""
    return {"model_name": name, "engine": "tests.stub_engine:StubEngine", "engine_args": engine_args}


def kuhn(**changes: Any) -> TrainEnvSpec:
    """Kuhn Poker to train in, mirror self-play."""
    return TrainEnvSpec(**{"env_id": KUHN, "num_players": 2, **changes})


def kuhn_eval(**changes: Any) -> EvalEnvSpec:
    """Kuhn Poker to evaluate in, against the scripted random player."""
    return EvalEnvSpec(**{"env_id": KUHN, "num_players": 2, **changes})


def scheduler(
    client: Client,
    run_dir: Path,
    vllm: Mapping[str, Any] = SCRIPTED,
    *,
    episodes: int = 20,
    buffer: ReplayBuffer | None = None,
    train: TrainEnvSpec | None = None,
    evaluation: EvalEnvSpec | None = None,
    env_sampler: BaseEnvSampler | None = None,
    tracker: BaseTracker | None = None,
    **options: Any,
) -> GameScheduler:
    """A scheduler that stops after `episodes` training games and keeps all in `run_dir`."""
    policy = POLICY["scripted" if vllm["model_name"].startswith("scripted:") else "stub"]
    return GameScheduler(
        vllm,
        tracker or NullTracker(),
        buffer or StepBuffer(stop=StopConditions(episodes=episodes)),
        MirrorSampler(ModelRegistry(policy)),
        env_sampler or UniformEnvSampler([train or kuhn()], [evaluation] if evaluation else []),
        client=client,
        store=EpisodeStore(run_dir),
        options=SchedulerOptions(**options),
    )


def check_books(ledger: Ledger, run_dir: Path) -> Counter[str]:
    """Every submitted game is one row with one status, in the books and on disk alike; returns the rows' statuses."""
    summary = ledger.summary()
    rows = read_episodes(run_dir).to_pylist()
    statuses = Counter(row["status"] for row in rows)
    assert len({row["game_id"] for row in rows}) == len(rows) == summary["submitted"]
    assert summary["submitted"] == sum(summary["statuses"].values())
    assert statuses == Counter({status: count for status, count in summary["statuses"].items() if count})
    for mode in Mode:
        lane = summary["lanes"][mode.value]
        assert lane["submitted"] == sum(lane["statuses"].values()) == sum(row["mode"] == mode.value for row in rows)
    turns = Counter(step["game_id"] for step in read_steps(run_dir).to_pylist())
    assert turns == Counter({row["game_id"]: row["turns"] for row in rows if row["turns"]})
    return statuses
