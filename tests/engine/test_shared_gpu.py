"""Engine and learner on one GPU, where there is one."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.local_cluster import visible_gpus
from tests.engine.conftest import ENGINE_MARKS
from tests.learning_runs import result_of, start_training, training_config

pytestmark = [*ENGINE_MARKS, pytest.mark.gpu, pytest.mark.skipif(not visible_gpus(), reason="there is no GPU here")]


def test_the_learner_has_room_beside_the_engine(base: Path, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    learner = {"learning_steps": 30, "share_gpu": True, "engine_memory": 0.3}
    config = training_config(base, learner=learner, engine_args={})
    summary = result_of(start_training(config, run_dir), run_dir)
    assert summary["updates"] == 30
    assert summary["final_reward"] >= 0.9
