"""What is written down of learning steps: a line each, metrics of the driver beside the learner's."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from pipeline.model_registry import ModelRegistry
from pipeline.replay import StepBuffer
from pipeline.rewards import RewardTransforms, RoleAdvantage
from pipeline.staleness import Staleness
from pipeline.tracking import NullTracker
from pipeline.training_log import LOG_NAME, TrainingLog, evaluation, read_log, step_metrics
from tasks.contracts import (
    AgentSpec,
    Choice,
    Episode,
    GameSpec,
    Mode,
    ModelKind,
    ModelRef,
    Role,
    Status,
    Step,
)
from tasks.learner_contracts import TrainReport

POLICY = ModelRef("policy@0", ModelKind.ENGINE, 0)
NEXT = ModelRef("policy@1", ModelKind.ENGINE, 1)
RANDOM = ModelRef("scripted:random", ModelKind.SCRIPTED)


class Told(NullTracker):
    """Remembers what it is told of learning."""

    def __init__(self) -> None:
        self.steps: list[tuple[int, dict[str, float]]] = []

    def log_learning(self, metrics: Mapping[str, float], step: int) -> None:
        self.steps.append((step, dict(metrics)))


def evaluated(rewards: tuple[float, float], policy: ModelRef = POLICY) -> Episode:
    agents = (AgentSpec(0, Role.ACTOR, policy), AgentSpec(1, Role.OPPONENT, RANDOM))
    return Episode(GameSpec("run", "eval-0", Mode.EVAL, "A", 2, 0, agents), Status.COMPLETED, rewards=rewards)


def test_each_step_is_a_line_and_goes_to_the_tracker(tmp_path: Path) -> None:
    tracker = Told()
    log = TrainingLog(tracker, tmp_path)
    log.step(0, {"loss": 1.5})
    log.step(1, {"loss": 0.5})
    assert list(read_log(tmp_path / LOG_NAME)) == [{"number": 0, "loss": 1.5}, {"number": 1, "loss": 0.5}]
    assert tracker.steps == [(0, {"loss": 1.5}), (1, {"loss": 0.5})]


def test_a_resumed_run_forgets_the_lines_of_steps_that_it_takes_again(tmp_path: Path) -> None:
    log = TrainingLog(NullTracker(), tmp_path)
    for number in range(4):
        log.step(number, {})
    with (tmp_path / LOG_NAME).open("a") as file:
        file.write('{"number": 4, "lo')  # cut off by a kill
    TrainingLog(NullTracker(), tmp_path, steps=3).step(3, {"again": 1.0})
    assert [line["number"] for line in read_log(tmp_path / LOG_NAME)] == [0, 1, 2, 3]


def test_the_drivers_figures_stand_beside_the_learners() -> None:
    buffer = StepBuffer(transforms=RewardTransforms(final=[RoleAdvantage(decay=0.5)]))
    game = GameSpec("run", "train-0", Mode.TRAIN, "A", 1, 0, (AgentSpec(0, Role.ACTOR, POLICY),))
    said = Step(0, 0, "seen", Choice("[0]", "said", True), False)
    episode = Episode(game, Status.COMPLETED, (said, said), rewards=(0.5,))
    buffer.add_player_trajectory(episode.trajectory(0), "A")
    staleness = Staleness(1, 2, buffer.size)
    staleness.lags = Counter({0: 3, 1: 1})
    staleness.drop(4)
    report = TrainReport(number=7, policy_version=8, metrics={"loss": 0.25}, seconds=1.5)
    metrics = step_metrics(report, buffer.get_batch(2), buffer, staleness, ModelRegistry(POLICY), {"waiting": 0.125})
    assert metrics == {
        "loss": 0.25,
        "policy_version": 8.0,
        "skipped": 0.0,
        "step_seconds": 1.5,
        "reward": 0.5,
        "dropped_steps": 4.0,
        "flagged_steps": 0.0,
        "time/waiting": 0.125,
        "lag/share_0": 0.75,
        "lag/share_1": 0.25,
        "baseline/A/player_0": 0.25,
    }


def test_the_version_before_the_current_one_is_evaluated() -> None:
    registry = ModelRegistry(POLICY)
    for rewards in ((1.0, -1.0), (-1.0, 1.0)):
        registry.record(evaluated(rewards))
    registry.add(NEXT)
    report = TrainReport(number=0, policy_version=1, metrics={})
    buffer = StepBuffer()
    said = Step(0, 0, "seen", Choice("[0]", "said", True), False)
    game = GameSpec("run", "train-0", Mode.TRAIN, "A", 1, 0, (AgentSpec(0, Role.ACTOR, POLICY),))
    buffer.add_player_trajectory(Episode(game, Status.COMPLETED, (said,), rewards=(1.0,)).trajectory(0), "A")
    metrics = step_metrics(report, buffer.get_batch(1), buffer, Staleness(0, 1, buffer.size), registry, {})
    assert metrics["evaluation/win_rate"] == 0.5
    assert metrics["evaluation/games"] == 2.0


@pytest.mark.parametrize(
    ("games", "expected"),
    [
        ([], {}),
        ([(1.0, -1.0), (1.0, -1.0), (0.0, 0.0), (-1.0, 1.0)], {"win_rate": 0.5, "games": 4.0}),
    ],
)
def test_wins_come_with_their_interval(games: list[Any], expected: dict[str, float]) -> None:
    registry = ModelRegistry(POLICY)
    for rewards in games:
        registry.record(evaluated(rewards))
    found = evaluation(registry, POLICY.uid)
    assert {name: found[name] for name in expected} == expected
    if games:
        assert 0 < found["win_rate_low"] < 0.5 < found["win_rate_high"] < 1
