"""The books add up, the table says what they hold."""

from __future__ import annotations

import io
import json
import time
from pathlib import Path

import pytest
from rich.console import Console

from pipeline import progress as progress_module
from pipeline.ledger import Ledger, Snapshot
from pipeline.progress import Progress, describe
from pipeline.report import print_report
from tasks.contracts import AgentSpec, ApiRef, Choice, Episode, GameSpec, Mode, ModelKind, ModelRef, Role, Status, Step

POLICY = ModelRef("policy@0", ModelKind.ENGINE, 0)
RANDOM = ModelRef("scripted:random", ModelKind.SCRIPTED)


def game(number: int, mode: Mode, models: tuple[ModelRef, ...], env_id: str = "Kuhn") -> GameSpec:
    agents = tuple(
        AgentSpec(seat, Role.ACTOR if model is POLICY else Role.OPPONENT, model) for seat, model in enumerate(models)
    )
    return GameSpec("run", f"{mode}-{number}", mode, env_id, len(models), 7, agents)


def played(spec: GameSpec, status: Status, rewards: tuple[float, ...] | None, offender: int | None = None) -> Episode:
    choice = Choice("[bet]", "I [bet]", True, finish_reason="length", generated_tokens=5)
    steps = (Step(0, 0, "saw", choice, illegal=offender == 0),)
    return Episode(spec, status, steps, rewards, offender, started_at=100.0, finished_at=102.0)


def full_ledger() -> Ledger:
    ledger = Ledger("run")
    mirror, match = (POLICY, POLICY), (POLICY, RANDOM)
    ends = [
        (game(0, Mode.TRAIN, mirror), Status.COMPLETED, (1.0, -1.0), None),
        (game(1, Mode.TRAIN, mirror), Status.ILLEGAL_MOVE, (-1.0, 1.0), 0),
        (game(2, Mode.TRAIN, mirror), Status.FAILED, None, None),
        (game(3, Mode.TRAIN, mirror), Status.CANCELLED, None, None),
        (game(0, Mode.EVAL, match), Status.COMPLETED, (0.0, 0.0), None),
        (game(1, Mode.EVAL, match), Status.COMPLETED, (1.0, -1.0), None),
        (game(2, Mode.EVAL, (POLICY,), "Solo"), Status.COMPLETED, (1.0,), None),
    ]
    ledger.submit([spec for spec, *_ in ends])
    for spec, status, rewards, offender in ends:
        ledger.finish(played(spec, status, rewards, offender))
    return ledger


def test_submitted_equals_the_sum_of_the_statuses_by_lane_and_in_all(tmp_path: Path) -> None:
    full_ledger().write(tmp_path / "summary.json")
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["submitted"] == sum(summary["statuses"].values()) == 7
    for lane in summary["lanes"].values():
        assert lane["submitted"] == sum(lane["statuses"].values())
    assert summary["lanes"]["train"]["submitted"] == 4
    assert [path.name for path in tmp_path.iterdir()] == ["summary.json"]


def test_rewards_that_are_no_finite_number_leave_the_summary_readable() -> None:
    ledger = Ledger("run")
    spec = game(0, Mode.TRAIN, (POLICY, POLICY))
    ledger.submit([spec])
    ledger.finish(played(spec, Status.COMPLETED, (float("nan"), 1.0)))
    summary = json.loads(json.dumps(ledger.summary(), allow_nan=False))
    assert [(p["rewards"], p["reward_sum"]) for p in summary["environments"][0]["players"]] == [(0, 0.0), (1, 1.0)]


def test_results_by_player_leave_out_games_without_a_result() -> None:
    summary = full_ledger().summary()
    kuhn_train = next(row for row in summary["environments"] if (row["env_id"], row["mode"]) == ("Kuhn", "train"))
    assert kuhn_train["games"] == 4
    assert [(p["wins"], p["draws"], p["losses"], p["forfeit_wins"]) for p in kuhn_train["players"]] == [
        (1, 0, 1, 0),
        (1, 0, 1, 1),
    ]
    assert kuhn_train["illegal_moves"] == 1
    assert kuhn_train["length_stops"] == kuhn_train["engine_steps"] == 4


def test_the_policys_win_rate_is_of_games_against_others_only() -> None:
    tallies = full_ledger().environments
    assert (tallies["Kuhn", "eval"].policy_wins, tallies["Kuhn", "eval"].policy_results) == (1, 2)
    assert tallies["Kuhn", "train"].policy_results == 0


def test_tokens_per_second_are_over_the_time_games_were_played() -> None:
    assert full_ledger().tokens_per_s == 7 * 5 / 2.0
    assert Ledger("run").tokens_per_s == 0.0


def test_the_report_names_results_failures_and_where_to_look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = io.StringIO()
    monkeypatch.chdir(tmp_path)
    store = f"sqlite:///{tmp_path / 'run' / 'mlflow.db'}"
    print_report(full_ledger(), Path("run"), store, Console(file=out, width=118))
    text = out.getvalue()
    assert "p0 1/0/1" in text
    assert "p1 1/0/1" in text
    assert "solved 1 of 1, mean reward 1.00" in text
    assert "7 games submitted: 4 completed, 1 illegal_move, 1 failed, 1 cancelled" in text
    assert "show run train-000000" in text
    assert "--backend-store-uri sqlite:///run/mlflow.db" in text


def test_a_tracking_server_is_looked_at_as_it_is(tmp_path: Path) -> None:
    out = io.StringIO()
    print_report(full_ledger(), tmp_path, "http://tracking:5000", Console(file=out, width=118))
    assert "-m webbrowser http://tracking:5000" in out.getvalue()
    assert "--backend-store-uri" not in out.getvalue()


def test_the_report_counts_groups_where_there_are_any(tmp_path: Path) -> None:
    def report(groups: dict[str, int]) -> str:
        ledger, out = Ledger("run"), io.StringIO()
        ledger.groups = groups
        assert ledger.summary()["groups"] == groups
        print_report(ledger, tmp_path, "uri", Console(file=out, width=118))
        return out.getvalue()

    some = {"complete": 5, "incomplete": 1, "dropped": 2}
    assert "groups of 4 games: 5 complete, 1 incomplete, 2 dropped\n" in report({"size": 4, **some})
    assert "groups of" not in report({"size": 1, **some})


def snapshot(**changes: object) -> Snapshot:
    values: dict[str, object] = {
        "stage": "playing",
        "seconds": 3.0,
        "done": {Mode.TRAIN: 4, Mode.EVAL: 2},
        "in_flight": 10,
        "queued": 2,
        "failed": 1,
        "tokens_per_s": 120.4,
        "eval_wins": 1,
        "eval_results": 2,
        "engines": 1,
    }
    return Snapshot(**{**values, **changes})  # type: ignore[arg-type]


def test_progress_says_what_matters() -> None:
    line = describe(snapshot())
    assert line == (
        "playing · train 4 done · eval 2 done · 10 in flight (+2 queued) · 1 failed · 120 tokens/s · "
        "win rate 50% (1 of 2 evaluation games)"
    )
    nothing_yet = {Mode.TRAIN: 0, Mode.EVAL: 0}
    waiting = snapshot(stage="starting engines (0 of 1 ready)", done=nothing_yet, in_flight=0)
    assert describe(waiting) == "starting engines (0 of 1 ready)"
    assert "tokens/s" not in describe(snapshot(tokens_per_s=0.0))
    assert "win rate" not in describe(snapshot(eval_results=0))


def test_progress_shows_the_stage_then_the_games_then_the_stage_again() -> None:
    out = io.StringIO()
    with Progress(out) as progress:
        progress.stage("starting engines")
        progress.watch(lambda: None)
        assert progress.line().endswith("starting engines")
        progress.watch(snapshot)
        assert "train 4 done" in progress.line()
        progress.stage("stopping")
    lines = out.getvalue().splitlines()
    assert lines[0].endswith("starting")
    assert lines[-1].endswith("stopping")
    progress.close()
    assert out.getvalue().splitlines() == lines


def test_a_log_gets_fewer_lines_once_a_run_has_lasted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress_module, "LOG_EVERY_S", 0.005)
    monkeypatch.setattr(progress_module, "LATER_LOG_EVERY_S", 3600.0)
    out = io.StringIO()
    with Progress(out):
        deadline = time.monotonic() + 60
        while len(out.getvalue().splitlines()) < 10:
            assert time.monotonic() < deadline
            time.sleep(0.01)
    monkeypatch.setattr(progress_module, "LATER_S", 0.0)
    later = io.StringIO()
    with Progress(later):
        time.sleep(0.1)  # time for twenty lines that must not come; the first and the last one do
    assert 1 <= len(later.getvalue().splitlines()) <= 2


def test_tokens_and_length_stops_are_those_of_engines() -> None:
    remote = ModelRef("vendor/model", ModelKind.API, api=ApiRef("vendor/model", "http://127.0.0.1:1/v1"))
    ledger = Ledger("run")
    for number, first in enumerate((POLICY, remote)):
        spec = game(number, Mode.EVAL, (first, RANDOM))
        ledger.submit([spec])
        ledger.finish(played(spec, Status.COMPLETED, (1.0, -1.0)))
    (tally,) = ledger.environments.values()
    assert (ledger.generated_tokens, tally.engine_steps, tally.length_stops) == (5, 1, 1)
