"""The user's own tracker and buffer, named in a configuration as `package.module:Name`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pipeline.config import BufferConfig, RunConfig, TrackingConfig
from pipeline.replay import EpisodeBuffer, StepBuffer
from pipeline.run_parts import make_buffer, make_tracker
from pipeline.tracking import NullTracker
from tasks.contracts import Trajectory
from tasks.errors import ConfigError


class OwnTracker(NullTracker):
    def __init__(self, settings: TrackingConfig) -> None:
        self.experiment = settings.experiment


class OwnBuffer:
    def __init__(self, settings: BufferConfig) -> None:
        self.capacity = settings.capacity

    def add_player_trajectory(self, trajectory: Trajectory, env_id: str) -> None:
        """Keeps nothing."""

    def continue_collection(self) -> bool:
        return False


class Neither:
    def __init__(self, settings: object) -> None:
        """Takes what it is given."""


def config(**sections: Any) -> RunConfig:
    return RunConfig(
        vllm={"model_name": "scripted:random"},
        environments={"train": [{"env_id": "KuhnPoker-v0-train"}]},
        **sections,
    )


def test_the_users_own_tracker_gets_its_settings(tmp_path: Path) -> None:
    tracker = make_tracker(config(tracking={"kind": f"{__name__}:OwnTracker", "experiment": "mine"}), tmp_path)
    assert isinstance(tracker, OwnTracker)
    assert (tracker.experiment, tracker.uri) == ("mine", "")


def test_the_users_own_buffer_gets_its_settings() -> None:
    buffer = make_buffer(config(buffer={"kind": f"{__name__}:OwnBuffer", "capacity": 7}))
    assert isinstance(buffer, OwnBuffer)
    assert buffer.capacity == 7


@pytest.mark.parametrize(("kind", "made"), [("step", StepBuffer), ("episode", EpisodeBuffer)])
def test_buffers_of_ours_go_by_name(kind: str, made: type) -> None:
    assert type(make_buffer(config(buffer={"kind": kind}))) is made


def test_an_object_that_is_neither_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"Neither', whose object is a Neither, expected a subclass of .*BaseTracker"):
        make_tracker(config(tracking={"kind": f"{__name__}:Neither"}), tmp_path)
    with pytest.raises(ConfigError, match="Neither', whose object has no add_player_trajectory and"):
        make_buffer(config(buffer={"kind": f"{__name__}:Neither"}))


def test_a_tracker_that_does_not_exist_is_refused_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"tracking.kind: got 'mlfow'.*Did you mean 'mlflow'"):
        config(tracking={"kind": "mlfow"})
