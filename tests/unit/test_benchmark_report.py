"""The report says of each row whether what is asked of it holds."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks import report

FIGURES = {"turns_per_s": 2500.0, "ideal_share": 0.95, "no_dask_share": 0.8, "no_dask_cpu_ms_per_turn": 0.25}


@pytest.mark.parametrize(
    ("changed", "holds"),
    [
        ({}, ["yes", "yes", "yes", "yes"]),
        ({"cpu_ms_per_turn": 0.61}, ["yes", "yes", "no", "yes"]),
        ({"rss_mb": 650.0}, ["no", "no", "yes", "yes"]),
        ({"no_dask_share": 0.4}, ["yes", "yes", "no", "yes"]),
        ({"ideal_share": 0.9}, ["no", "yes", "yes", "yes"]),
        ({"no_dask_share": 0.3}, ["yes", "yes", "no", "no"]),
    ],
)
def test_a_row_holds_what_is_asked_or_says_no(
    monkeypatch: pytest.MonkeyPatch, changed: dict[str, float], holds: list[str]
) -> None:
    run: dict[str, Any] = {**FIGURES, "cpu_ms_per_turn": 0.5, "rss_mb": 580.0, **changed}
    monkeypatch.setattr(report, "run_alone", lambda module, arguments: run)
    assert [row[-1] for row in report.steady(repeat=3, seconds=1.0)] == holds


def test_the_most_in_flight_is_compared_with_256_round_by_round(monkeypatch: pytest.MonkeyPatch) -> None:
    speeds = iter([1.0, 1.0, 1.0, 0.95, 0.5, 0.5, 0.5, 0.45, 2.0, 2.0, 2.0, 1.6])  # a machine that changes its own

    def run(module: str, arguments: list[str]) -> dict[str, float]:
        return {**FIGURES, "turns_per_s": 2500 * next(speeds), "cpu_ms_per_turn": 0.5, "rss_mb": 580.0}

    monkeypatch.setattr(report, "run_alone", run)
    at_256, at_1024 = list(report.steady(repeat=3, seconds=1.0))[2:]
    assert (at_256[2], at_1024[2], at_1024[-1]) == (1.0, 0.9, "yes")


def test_tables_are_markdown(capsys: pytest.CaptureFixture[str]) -> None:
    report.table(("in flight", "turns/s"), iter([(16, 0.12345), (64, 12.345), (256, 2500.4)]))
    lines = capsys.readouterr().out.splitlines()
    assert lines == ["", "| in flight | turns/s |", "|---|---|", "| 16 | 0.123 |", "| 64 | 12.35 |", "| 256 | 2,500 |"]
