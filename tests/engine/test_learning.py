"""It learns: real engines, a real learner and real adapters, from chance to nearly every answer right."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pipeline.training_log import read_log
from pipeline.verify import verify_run
from tests.engine.conftest import ENGINE_MARKS
from tests.learning_runs import result_of, run_unpublished, start_training, training_config

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


@pytest.mark.long
@pytest.mark.parametrize("lag", [0, 4])
def test_it_learns_at_any_lag(base: Path, tmp_path: Path, lag: int) -> None:
    run_dir = tmp_path / "run"
    config = training_config(base, learner={"learning_steps": 40, "max_policy_lag": lag})
    summary = result_of(start_training(config, run_dir), run_dir)
    assert summary["start_reward"] < CHANCE
    assert summary["final_reward"] >= 0.9
    assert max(map(int, summary["lags"])) <= lag
    if lag == 0:
        assert summary["mean_abs_logprob_diff"] < 1e-4
        assert all(line["ratio_max"] < 1.001 for line in read_log(run_dir / "learning.jsonl"))


@pytest.mark.long
def test_with_the_sign_of_the_reward_flipped_it_learns_the_opposite(base: Path, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    config = training_config(base, learner={"learning_steps": 30})
    config["environments"]["train"][0]["env_kwargs"] = {"sign": -1}
    summary = result_of(start_training(config, run_dir), run_dir)
    assert -CHANCE < summary["start_reward"] < -0.1
    assert summary["final_reward"] > -0.05, "what earned 1 before is hardly said any more"


@pytest.mark.long
def test_without_publication_it_stays_at_chance(base: Path, tmp_path: Path) -> None:
    summary = run_unpublished(training_config(base, learner={"learning_steps": 30}), tmp_path / "run")
    assert summary["final_reward"] < CHANCE
