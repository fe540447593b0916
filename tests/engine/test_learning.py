"""It learns: real engines, a real learner and real adapters, from chance to nearly every answer right."""

from __future__ import annotations

import json
from pathlib import Path

from pipeline.training_log import read_log
from pipeline.verify import verify_run
from tests.engine.conftest import ENGINE_MARKS
from tests.learning_runs import result_of, start_training, training_config

pytestmark = ENGINE_MARKS
CHANCE = 0.5  # well above what random weights earn


def test_the_mean_reward_rises_from_chance_to_nearly_all(base: Path, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    config = training_config(base, learner={"learning_steps": 30})
    summary = result_of(start_training(config, run_dir), run_dir)
    assert summary["updates"] == 30 <= 60
    assert summary["start_reward"] < CHANCE
    assert summary["final_reward"] >= 0.9
    assert summary["minutes"] < 5
    assert summary["mean_abs_logprob_diff"] < 1e-4, "what the learner computes is what the engine sampled from"
    lines = list(read_log(run_dir / "learning.jsonl"))
    assert [line["number"] for line in lines] == list(range(30))
    assert all(line["lag_max"] <= 1 for line in lines)
    written = json.loads((run_dir / "summary.json").read_text())
    assert written["learning"]["policy_version"] == summary["policy_version"] == 30 - summary["skipped_updates"]
    assert (run_dir / "adapters" / summary["policy"] / "manifest.json").is_file()
    report = verify_run(run_dir)
    assert report.ok, str(report)
