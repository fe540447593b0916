"""Games that end in ways the buffer has no use for are warned about, once for each time that it goes on and on."""

from __future__ import annotations

import logging

import pytest

from pipeline.config import TrainEnvSpec
from pipeline.endings import UNUSABLE_WARNING, Endings
from pipeline.env_samplers import UniformEnvSampler
from pipeline.groups import GroupGate
from pipeline.ledger import Ledger
from pipeline.model_registry import ModelRegistry
from pipeline.model_samplers import MirrorSampler
from pipeline.replay import StepBuffer
from pipeline.tracking import NullTracker
from tasks.contracts import Episode, Mode, Status
from tests.unit.metric_games import POLICY, game


def endings(buffer: StepBuffer) -> Endings:
    return Endings(
        ledger=Ledger("run"),
        tracker=NullTracker(),
        store=None,
        gate=GroupGate(buffer, 1, "deliver"),
        model_sampler=MirrorSampler(ModelRegistry(POLICY)),
        env_sampler=UniformEnvSampler([TrainEnvSpec(env_id="Kuhn", num_players=2)]),
        admission=None,
        max_consecutive_failures=1000,
    )


def truncated(mode: Mode = Mode.TRAIN) -> Episode:
    return game(mode=mode, status=Status.TRUNCATED, rewards=None, reason="max_turns=2 reached before the game's end")


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]


def test_games_without_use_in_a_row_are_warned_about_once(caplog: pytest.LogCaptureFixture) -> None:
    books = endings(StepBuffer(10))
    for _ in range(UNUSABLE_WARNING - 1):
        books.finish(truncated())
    books.finish(truncated(Mode.EVAL))
    assert warnings(caplog) == []
    for _ in range(UNUSABLE_WARNING):
        books.finish(truncated())
    (warning,) = warnings(caplog)
    assert warning.startswith(
        "100 training games in a row brought the buffer nothing; the last one, game of Kuhn, ended"
    )
    assert "as 'truncated': max_turns=2 reached before the game's end. Give games more turns (max_turns)" in warning
    books.finish(game())
    for _ in range(UNUSABLE_WARNING):
        books.finish(truncated())
    assert len(warnings(caplog)) == 2


def test_games_that_were_cancelled_say_nothing(caplog: pytest.LogCaptureFixture) -> None:
    books = endings(StepBuffer(10))
    for _ in range(UNUSABLE_WARNING):
        books.finish(game(status=Status.CANCELLED, rewards=None))
    assert warnings(caplog) == []


def test_games_that_the_buffer_takes_are_no_reason_to_warn(caplog: pytest.LogCaptureFixture) -> None:
    books = endings(StepBuffer(10, truncated="keep"))
    for _ in range(UNUSABLE_WARNING):
        books.finish(truncated())
    assert warnings(caplog) == []
