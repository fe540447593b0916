"""`selfplay collect` on a `dask scheduler` and two `selfplay worker` processes that others started."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tasks.shards import read_episodes
from tests.processes import REPOSITORY, DaskProcesses

pytestmark = pytest.mark.cluster

SELFPLAY = "import sys; from pipeline.cli import main; sys.exit(main())"


def test_both_workers_play_and_the_cluster_stays(processes: DaskProcesses, tmp_path: Path) -> None:
    address = processes.scheduler()
    for _ in range(2):
        processes.python(SELFPLAY, "worker", address, "--games", "4")
    config = tmp_path / "config.yaml"
    config.write_text(
        yaml.safe_dump(
            {
                "vllm": {
                    "model_name": "stub",
                    "engine": "tests.stub_engine:StubEngine",
                    "engine_args": {"latency_s": 0.005},
                },
                "environments": {
                    "train": [{"env_id": "KuhnPoker-v0-train", "num_players": 2}],
                    "eval": [{"env_id": "KuhnPoker-v0-train", "num_players": 2}],
                },
                "collect": {"num_train_workers": 6, "num_eval_workers": 2},
                "buffer": {"stop": {"episodes": 400}},  # enough for a worker that is ready a second later to play some
                "cluster": {"kind": "address", "address": address, "timeout_s": 30},
            }
        )
    )
    for name in ("first", "second"):
        run_dir = tmp_path / name
        ran = subprocess.run(
            [sys.executable, "-m", "pipeline.cli", "collect", str(config), "--run-dir", str(run_dir)],
            cwd=REPOSITORY,
            capture_output=True,
            text=True,
            check=False,
        )
        assert ran.returncode == 0, ran.stderr
        rows = read_episodes(run_dir).to_pylist()
        summary = json.loads((run_dir / "summary.json").read_text())
        assert len(rows) == summary["submitted"] == sum(summary["statuses"].values())
        assert summary["lanes"]["train"]["submitted"] >= 400
        assert summary["lanes"]["eval"]["submitted"] >= 2
        assert len({row["worker"] for row in rows}) == 2
        registry = json.loads((run_dir / "registry.json").read_text())
        assert registry["models"]
        assert "games submitted" in ran.stdout


def test_a_refusal_is_advice_and_not_a_traceback(tmp_path: Path) -> None:
    ran = subprocess.run(
        [
            *(
                sys.executable,
                "-m",
                "pipeline.cli",
                "collect",
                "configs/scripted.yaml",
                "--run-dir",
                str(tmp_path / "run"),
            ),
            *("--set", "cluster.kind=address", "--set", "cluster.address=tcp://127.0.0.1:9"),
        ],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 1
    assert "selfplay: " in ran.stderr
    assert "tcp://127.0.0.1:9" in ran.stderr
    assert "Traceback" not in ran.stderr
