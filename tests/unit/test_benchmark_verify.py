"""The benchmark of `selfplay verify` refuses to time a run that does not verify."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import verify
from pipeline.verify import Report
from tasks.errors import DatasetError


def test_steps_that_are_not_replayed_are_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verify, "verify_run", lambda run_dir: Report(Path(run_dir), replayed_steps=1))
    with pytest.raises(DatasetError, match=r"1 of \d+ steps replayed, expected all: "):
        verify.verified(verify.arguments().parse_args(["--games", "1", "--passes", "1"]))
