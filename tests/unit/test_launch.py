"""What a collection refuses before it starts anything."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest

from pipeline import launch
from pipeline.config import CollectConfig, EnvironmentsConfig, LoraConfig, RunConfig, TrainEnvSpec, VLLMConfig
from pipeline.progress import Progress
from tasks.errors import ConfigError
from tests.unit.example_adapters import write_base


def test_target_modules_that_the_model_lacks_are_refused_before_the_cluster_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def connect(*_: Any, **__: Any) -> None:
        raise AssertionError("the cluster was started")

    monkeypatch.setattr(launch, "connect", connect)
    config = RunConfig(
        vllm=VLLMConfig(
            model_name=str(write_base(tmp_path / "base")),
            lora_config=LoraConfig(target_modules=("q_proj", "query", "w1")),
        ),
        environments=EnvironmentsConfig(train=(TrainEnvSpec(env_id="KuhnPoker-v0-train", num_players=2),)),
        collect=CollectConfig(num_train_workers=1),
    )
    with pytest.raises(ConfigError, match=r"has 'query', 'w1', which the model .* does not have; expected .* q_proj"):
        launch.run_collect(config, tmp_path / "run", Progress(io.StringIO()))
    assert not (tmp_path / "run").exists()
