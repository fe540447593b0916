"""Adapters on workers that cannot read the driver's folder: the bytes come through Dask, or only their games fail."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from distributed import Client

from pipeline.config import TrainEnvSpec
from pipeline.env_samplers import UniformEnvSampler
from pipeline.episode_store import EpisodeStore
from pipeline.game_scheduler import GameScheduler, SchedulerOptions
from pipeline.ledger import Ledger
from pipeline.model_registry import ModelRegistry
from pipeline.model_samplers import BaseModelSampler, MirrorSampler
from pipeline.replay import StepBuffer, StopConditions
from pipeline.tracking import NullTracker
from tasks.base_model import BaseModel
from tasks.contracts import ModelKind, ModelRef
from tasks.shards import read_episodes
from tests.cluster.collections import check_books, kuhn, stub
from tests.processes import DaskProcesses
from tests.unit.example_adapters import BASE, LORA, adapter_bytes

pytestmark = pytest.mark.cluster

BASE_MODEL = BaseModel("base", None, BASE)
POLICY = ModelRef("policy@0", ModelKind.ENGINE, 0)


@pytest.fixture
def client(processes: DaskProcesses, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Client]:
    """A cluster whose worker runs in another folder than the driver, which goes to the run's."""
    address = processes.scheduler()
    processes.worker(address)
    monkeypatch.chdir(tmp_path)
    with Client(address) as client:
        client.wait_for_workers(1, timeout=30)
        yield client


class EitherSampler(BaseModelSampler):
    """Opponents that play at random, and every other time one given model."""

    def __init__(self, registry: ModelRegistry, model: ModelRef) -> None:
        super().__init__(registry)
        self._turns = itertools.cycle([model, ModelRef("scripted:random", ModelKind.SCRIPTED)])

    def sample_opponent(self, env: TrainEnvSpec) -> ModelRef:
        return next(self._turns)


def published() -> ModelRef:
    """The first version of a policy, by a path that only leads somewhere from the driver's folder."""
    registry = ModelRegistry(POLICY, Path("run/registry.json"))
    model = registry.publish(adapter_bytes(), base=BASE_MODEL, lora=LORA, step=1, algorithm="reinforce")
    assert model.adapter is not None
    return replace(model, adapter=replace(model.adapter, path="run/adapters/policy@1"))


def collect(client: Client, model: ModelRef, log: Path, models: BaseModelSampler) -> Ledger:
    scheduler = GameScheduler(
        stub(model.uid, open_adapters=True, log=str(log)) | {"lora_config": {"target_modules": ["q_proj"]}},
        NullTracker(),
        StepBuffer(stop=StopConditions(episodes=8)),
        models,
        UniformEnvSampler([kuhn(num_actors=1)], []),
        client=client,
        store=EpisodeStore(Path("run")),
        options=SchedulerOptions(max_consecutive_failures=100),
    )
    return scheduler.collect(num_train_workers=4)


def test_a_worker_that_cannot_read_the_run_folder_gets_the_adapter_through_dask(client: Client, tmp_path: Path) -> None:
    model, log = published(), tmp_path / "engine.log"
    assert model.adapter is not None
    ledger = collect(client, model, log, MirrorSampler(ModelRegistry(model)))
    statuses = check_books(ledger, tmp_path / "run")
    assert set(statuses) <= {"completed", "illegal_move"}
    opened = [line.split() for line in log.read_text().splitlines() if line.startswith("adapter")]
    assert opened
    for _, uid, digest, folder in opened:
        assert (uid, digest) == ("policy@1", model.adapter.digest)
        assert not Path(folder).exists(), "a copy is kept no longer than it takes to load it"
        assert "run" not in Path(folder).parts
    paths = {path for row in read_episodes(tmp_path / "run").to_pylist() for path in row["adapter_path"]}
    assert paths == {"run/adapters/policy@1"}, "a game is recorded as it was submitted"


def test_an_adapter_that_the_driver_has_not_either_fails_its_games_alone(client: Client, tmp_path: Path) -> None:
    gone = published()
    (tmp_path / "run/adapters/policy@1/adapter_model.safetensors").unlink()
    ledger = collect(client, gone, tmp_path / "engine.log", EitherSampler(ModelRegistry(POLICY), gone))
    check_books(ledger, tmp_path / "run")
    rows = read_episodes(tmp_path / "run").to_pylist()
    by_opponent = Counter((gone.uid in row["model_uid"], row["status"] == "failed") for row in rows)
    assert by_opponent[True, True] >= 1 and by_opponent[False, False] >= 1
    assert by_opponent[True, False] == by_opponent[False, True] == 0
    (reason,) = {row["reason"].partition(" is not to be had")[0] for row in rows if row["status"] == "failed"}
    assert reason == "AdapterError: the adapter policy@1"
    failed = next(row["reason"] for row in rows if row["status"] == "failed")
    assert "has no adapter_config.json and no adapter_model.safetensors" in failed
    assert "not from the driver (No such file or directory: run/adapters/policy@1/adapter_model.safetensors)" in failed
