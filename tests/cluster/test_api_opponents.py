"""Opponents behind an endpoint in a whole run: the games add up, and the key is nowhere in what the run leaves."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from pipeline.config import RunConfig
from pipeline.launch import run_collect
from pipeline.progress import Progress
from tasks.errors import ConfigError
from tasks.shards import read_episodes, read_steps
from tests.api_server import Answer, api_server, says

pytestmark = pytest.mark.cluster

KEY, KEY_VARIABLE = "sk-not-to-be-seen-0123456789", "SELFPLAY_TEST_KEY"


def config(base_url: str, **opponent: Any) -> RunConfig:
    """A scripted policy against the endpoint in both lanes, on a cluster of its own."""
    them = {
        "api": "vendor/model",
        "base_url": base_url,
        "key_variable": KEY_VARIABLE,
        "retries": 1,
        "backoff_s": 0.001,
        "max_concurrency": 2,
        **opponent,
    }
    kuhn = {"env_id": "KuhnPoker-v0-train", "num_players": 2, "num_actors": 1}
    return RunConfig(
        vllm={"model_name": "scripted:random"},
        environments={"train": [kuhn], "eval": [{**kuhn, "fixed_opponent": them}]},
        models={"sampler": "fixed", "opponents": [them]},
        collect={"num_train_workers": 4, "num_eval_workers": 2, "max_consecutive_failures": 1000},
        buffer={"stop": {"episodes": 12}},
    )


def files_with(folder: Path, secret: str) -> list[str]:
    """The files that hold a text, as it is or inside a compressed shard."""
    found = []
    for path in folder.rglob("*"):
        if path.is_file():
            content = path.read_bytes()
            if path.suffix == ".parquet":
                content += json.dumps(pq.read_table(path).to_pylist(), default=str).encode()
            if secret.encode() in content:
                found.append(str(path))
    return found


def test_a_run_leaves_the_key_nowhere_though_the_endpoint_repeats_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(KEY_VARIABLE, KEY)
    move = says(f"with {{authorization}} \\boxed{{[check]}} {KEY}")
    refusal = Answer({"error": {"message": f"{{authorization}} {KEY}"}}, 401)
    busy = Answer({"error": f"{{authorization}} {KEY}"}, 500)
    # Early enough to fail some games: refused at once, or busy twice in a row as each attempt of a decision may be.
    with api_server([move, refusal, move, refusal, *[busy] * 8, *[move] * 5, move]) as server:
        with Progress() as progress:
            ledger = run_collect(config(server.base_url), tmp_path / "run", progress)
        assert {KEY in (header or "") for header in server.authorizations} == {True}
        assert server.most_at_once <= 2
    summary = ledger.summary()
    rows = read_episodes(tmp_path / "run").to_pylist()
    assert len(rows) == summary["submitted"] == sum(summary["statuses"].values())
    failed = [row for row in rows if row["status"] == "failed"]
    assert failed
    assert all("OpponentError: the opponent 'vendor/model' at " in row["reason"] for row in failed)
    assert {row["offender"] for row in failed} == {None}
    said = {step["completion"] for step in read_steps(tmp_path / "run").to_pylist() if step["role"] == "opponent"}
    assert said == {"with Bearer *** \\boxed{[check]} ***"}
    assert {kind for row in rows for kind in row["model_kind"]} == {"scripted", "api"}
    assert files_with(tmp_path / "run", KEY_VARIABLE) != []
    assert files_with(tmp_path / "run", KEY) == []
    assert KEY not in "".join(capfd.readouterr())


def test_a_key_that_is_not_set_is_refused_before_the_first_game(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(KEY_VARIABLE, raising=False)
    with (
        api_server([says("x")]) as server,
        Progress() as progress,
        pytest.raises(
            ConfigError, match=rf"needs a key, but the environment variable {KEY_VARIABLE} is not set on 1 of 1"
        ),
    ):
        run_collect(config(server.base_url), tmp_path / "run", progress)
    assert server.requests == []
    assert read_episodes(tmp_path / "run").num_rows == 0
