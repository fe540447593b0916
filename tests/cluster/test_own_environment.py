"""The example environment of one's own, collected on a real cluster as its YAML has it."""

from __future__ import annotations

from pathlib import Path

import pytest
from distributed import Client

from pipeline.config import EvalEnvSpec, load
from tasks.shards import read_episodes
from tests.cluster.collections import check_books, scheduler
from tests.environments.slow import SLOW

pytestmark = pytest.mark.cluster

EXAMPLE = Path(__file__).parents[2] / "configs" / "own_environment.yaml"


def test_the_example_is_collected(client: Client, tmp_path: Path) -> None:
    (train,) = load(EXAMPLE).environments.train
    ledger = scheduler(client, tmp_path, episodes=12, train=train).collect(num_train_workers=4)
    assert set(check_books(ledger, tmp_path)) == {"completed"}
    rows = read_episodes(tmp_path).to_pylist()
    assert {row["env_id"] for row in rows} == {"configs.examples.nearest_number:NearestNumber"}
    assert {len(row["rewards"]) for row in rows} == {4}
    assert {row["turns"] for row in rows} == {8}


def test_an_environment_that_never_returns_times_out_beside_others_that_play_on(client: Client, tmp_path: Path) -> None:
    stuck = EvalEnvSpec(env_id=SLOW, env_kwargs={"hang": True, "first": 2}, time_limit_s=0.3)
    ledger = scheduler(client, tmp_path, episodes=200, evaluation=stuck).collect(4, num_eval_workers=2)
    check_books(ledger, tmp_path)
    rows = read_episodes(tmp_path).to_pylist()
    assert {row["status"] for row in rows if row["mode"] == "eval"} == {"timeout"}
    assert max(row["turns"] for row in rows if row["mode"] == "eval") == 1
    assert sum(row["status"] == "completed" for row in rows if row["mode"] == "train") >= 200
