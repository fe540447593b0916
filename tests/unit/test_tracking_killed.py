"""A process that is killed while MLflow creates its store leaves none; the next one creates it."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from pipeline.tracking import MLflowTracker
from tests.processes import REPOSITORY

OPEN = """
import sys, time
from pathlib import Path
from pipeline.tracking import MLflowTracker

with MLflowTracker(None, "experiment", "killed", run_dir=Path(sys.argv[1])):
    time.sleep(3600)
"""


def wait_until(condition: Callable[[], bool], process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.001)


def test_half_a_store_is_never_there(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    process = subprocess.Popen([sys.executable, "-c", OPEN, str(run_dir)], cwd=REPOSITORY)
    begun = run_dir / ".mlflow.db.tmp"
    try:
        wait_until(lambda: begun.exists() and begun.stat().st_size > 0, process)
    finally:
        process.kill()
        process.wait()
    assert begun.exists()
    assert not (run_dir / "mlflow.db").exists()
    with MLflowTracker(None, "experiment", "next", run_dir=run_dir) as tracker:
        deadline = time.monotonic() + 60
        while tracker.run_id is None:
            assert time.monotonic() < deadline
            time.sleep(0.05)
    assert [path.name for path in run_dir.iterdir() if "mlflow.db" in path.name] == ["mlflow.db"]
