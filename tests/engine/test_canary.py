"""Adapters on a real engine in a Dask worker that cannot read the run's folder: they are played, or the run stops."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pipeline.adapter_canary import Canary
from pipeline.cluster import connect
from pipeline.config import ClusterConfig
from pipeline.env_samplers import UniformEnvSampler
from pipeline.episode_store import EpisodeStore
from pipeline.game_scheduler import GameScheduler
from pipeline.model_registry import ModelRegistry
from pipeline.model_samplers import MirrorSampler
from pipeline.replay import StepBuffer, StopConditions
from pipeline.tracking import NullTracker
from tasks.adapter_files import CONFIG_NAME, WEIGHTS_NAME
from tasks.base_model import read_base
from tasks.contracts import Completion, EngineReply, EngineState, LoraSpec, ModelKind, ModelRef
from tasks.engine_adapters import EngineAdapters
from tasks.errors import AdapterError
from tasks.host import host_state
from tasks.shards import read_steps
from tests.cluster.collections import check_books, kuhn
from tests.engine.conftest import ENGINE_MARKS
from tests.engine.forward import forward_logprobs, load_model, mean_difference
from tests.engine.test_collect import tiny
from tests.tiny_model import TARGET_MODULES, make_adapter

pytestmark = ENGINE_MARKS

LORA = LoraSpec(max_rank=8, max_adapters=2, target_modules=TARGET_MODULES)


def publish(base: Path, saved: Path) -> ModelRef:
    """A first version, by a path that leads somewhere from the driver's folder only."""
    make_adapter(saved, base, seed=1)
    registry = ModelRegistry(ModelRef("policy@0", ModelKind.ENGINE, 0), Path("run/registry.json"))
    files = {name: (saved / name).read_bytes() for name in (CONFIG_NAME, WEIGHTS_NAME)}
    model = registry.publish(files, base=read_base(str(base)), lora=LORA, step=1, algorithm="reinforce")
    assert model.adapter is not None
    return replace(model, adapter=replace(model.adapter, path="run/adapters/policy@1"))


def play_the_base_in_silence() -> None:
    """On a worker: let adapters be loaded, and have no effect."""
    held = EngineAdapters.held

    @contextlib.asynccontextmanager
    async def ignored(self: EngineAdapters, adapter: Any) -> AsyncIterator[None]:
        async with held(self, adapter):
            yield None

    EngineAdapters.held = ignored  # type: ignore[method-assign]


def test_a_published_version_is_played_where_its_folder_cannot_be_read_and_a_silent_base_stops_the_run(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with connect(ClusterConfig(), slots=4, engine=True) as client:
        monkeypatch.chdir(tmp_path)
        model = publish(base, tmp_path / "saved")
        assert model.adapter is not None
        games = GameScheduler(
            tiny(base, max_loras=2, lora_config={"lora_rank": 8, "target_modules": TARGET_MODULES}),
            NullTracker(),
            StepBuffer(stop=StopConditions(episodes=6)),
            MirrorSampler(ModelRegistry(model)),
            UniformEnvSampler([kuhn()], []),
            client=client,
            store=EpisodeStore(tmp_path / "run"),
        )
        with games:
            ledger = games.collect(num_train_workers=4)
            assert [state.state for state in client.run(host_state).values()] == [EngineState.READY]
            Canary(client).check(model.adapter)
            client.run(play_the_base_in_silence)
            with pytest.raises(AdapterError) as stopped:
                Canary(client).check(model.adapter)
        for name in TARGET_MODULES:
            assert f"{name} (2, such as model.layers.0." in str(stopped.value)
    assert set(check_books(ledger, tmp_path / "run")) <= {"completed", "illegal_move"}
    steps = read_steps(tmp_path / "run").to_pylist()
    assert {(step["model_uid"], step["policy_version"]) for step in steps} == {("policy@1", 1)}
    step = steps[0]
    reply = EngineReply(tuple(step["prompt_ids"]), ())
    completion = Completion("", tuple(step["completion_ids"]), tuple(step["logprobs"]), "stop")
    expected, others = (
        forward_logprobs(load_model(base, adapter), reply, completion) for adapter in (model.adapter, None)
    )
    assert mean_difference(step["logprobs"], expected) < 1e-2 < mean_difference(step["logprobs"], others)
