"""Where a run's parameters and metrics go: the tracker interface, one that keeps nothing, and MLflow's.

MLflow (`pipeline.mlflow_run`) runs in the tracker's own thread: it takes seconds to import and to create a store, and a
server may not answer at all. None of it reaches the games.
"""

from __future__ import annotations

import logging
import math
import os
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self, SupportsFloat, get_args

from pipeline.metric_window import RunMetrics
from pipeline.mlflow_run import MLflowRun, RunStatus, mlflow_settings
from pipeline.run_params import redact
from pipeline.transcript import render_episode
from pipeline.transcript_sample import TranscriptSample
from tasks.contracts import EngineFigures, Episode
from tasks.errors import ConfigError, DatasetError, boundary

logger = logging.getLogger("selfplay.tracking")

CLOSE_TIMEOUT_S = 30.0
"""Longest that `MLflowTracker.finish` waits for what is still to be written."""

_WARN_EVERY_S = 60.0
_LONGEST_PAUSE_S = 30.0
_LONGEST_ERROR = 500  # characters: a database's error repeats the whole statement


class BaseTracker(ABC):
    """Where a run reports to. Subclass it, and give an instance to `GameScheduler`.

    The driver calls `log_params` once before the first game, `log_episode` and `log_collection` from its own loop and
    `log_engine` from whatever thread an engine's report arrives on. All of them should return within microseconds, for
    games wait for the driver. `finish` is called once or more and may take its time.

    As a context manager a tracker finishes itself: FINISHED when the block ends, KILLED on KeyboardInterrupt, FAILED on
    any other exception, which passes through.
    """

    @property
    def uri(self) -> str:
        """Where people look at what was reported, for the report at the end; empty where there is no such place."""
        return ""

    @abstractmethod
    def log_params(self, config: Mapping[str, Any]) -> None:
        """Take the resolved configuration: nested mappings, lists, strings, numbers, booleans and None."""

    @abstractmethod
    def log_episode(self, episode: Episode) -> None:
        """Take one finished game of either lane, whatever its status."""

    @abstractmethod
    def log_engine(self, figures: EngineFigures) -> None:
        """Take an engine's report about itself, about one a second from each worker."""

    @abstractmethod
    def log_collection(self, metrics: Mapping[str, SupportsFloat | None]) -> None:
        """Take the scheduler's figures as they are now, by name: `in_flight`, `queued`, `games_per_s` and the like."""

    def log_past_episode(self, episode: Episode) -> None:  # noqa: B027 - may be left out
        """Take a game that was logged before the run was resumed, so that totals go on. Does nothing by default."""

    def log_learning(self, metrics: Mapping[str, float], step: int) -> None:  # noqa: B027 - may be left out
        """Take the figures of learning step `step`, from 0. Called from the learning thread; nothing by default."""

    @abstractmethod
    def finish(self, status: RunStatus) -> None:
        """Write what is left and close the run as `status`. Only the first call counts; later reports are ignored."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.finish("FINISHED")
        else:
            self.finish("KILLED" if issubclass(kind, KeyboardInterrupt) else "FAILED")


class NullTracker(BaseTracker):
    """Keeps nothing."""

    def log_params(self, config: Mapping[str, Any]) -> None:
        """Ignored."""

    def log_episode(self, episode: Episode) -> None:
        """Ignored."""

    def log_engine(self, figures: EngineFigures) -> None:
        """Ignored."""

    def log_collection(self, metrics: Mapping[str, SupportsFloat | None]) -> None:
        """Ignored."""

    def finish(self, status: RunStatus) -> None:
        """Ignored."""


class MLflowTracker(BaseTracker):
    """Reports to an MLflow run of its own; a run that the user has open is left alone.

    Metrics are those of `pipeline.metric_window`, one point per name and window, at the number of games finished; where
    MLflow does not take a name, the artifact `metric_names.json` has it. The configuration is there as parameters and
    as the artifact `config.yaml`, a few games of each lane as `transcripts/` (`pipeline.transcript_sample`).

    A thread makes every MLflow call. One that fails is a warning (logger `selfplay.tracking`, at most one a minute) and
    is tried again; meanwhile the window grows longer, so that nothing is lost while the server is away and memory stays
    bounded. What MLflow refuses for good is dropped and counted. `finish` says once what came of it.
    """

    def __init__(
        self,
        uri: str | None,
        experiment: str,
        run_name: str,
        window_s: float = 5.0,
        run_dir: Path | None = None,
        key: str | None = None,
    ) -> None:
        """Start the thread; the store is created there.

        Args:
            uri: MLflow tracking URI. None is the environment's `MLFLOW_TRACKING_URI`, and without that
                `run_dir/mlflow.db`, with artifacts in `run_dir/mlflow-artifacts`.
            experiment: name of the MLflow experiment, created when it is missing.
            run_name: the run's name in it.
            window_s: seconds that one point of a metric stands for.
            run_dir: the run's folder, needed only where nothing else says where to report to.
            key: names the run across its lives: one of this key in the experiment is gone on with.

        Raises:
            ConfigError: neither `uri`, `MLFLOW_TRACKING_URI` nor `run_dir` is given, or `window_s` is not positive.
        """
        if not window_s > 0:
            raise ConfigError(f"tracking.window_s is {window_s}; expected seconds > 0, for example 5.0.")
        self._run = MLflowRun(*_place(uri, run_dir), experiment, run_name, key)
        self._window_s = window_s
        self._metrics = RunMetrics(time.monotonic())
        self._transcripts = TranscriptSample()
        self._learned: list[tuple[dict[str, float], int]] = []
        self._lock = threading.Lock()
        self._status: RunStatus | None = None
        self._stop = threading.Event()
        self._trouble = _Trouble()
        self._thread = threading.Thread(target=self._write_until_stopped, name="selfplay-mlflow", daemon=True)
        self._thread.start()

    @property
    def uri(self) -> str:
        """The tracking URI in use, without a password."""
        return redact(self._run.uri)

    @property
    def run_id(self) -> str | None:
        """MLflow's id of the run; None until the store has answered."""
        return self._run.run_id

    def log_params(self, config: Mapping[str, Any]) -> None:
        """Log the configuration as parameters and as an artifact, secrets masked."""
        with self._lock:
            if self._status is None:
                self._run.add_config(config)

    def log_episode(self, episode: Episode) -> None:
        """Add one finished game to the window, and perhaps to the transcripts."""
        with self._lock:
            if self._status is None:
                self._metrics.add_episode(episode)
                self._transcripts.add(episode)

    def log_past_episode(self, episode: Episode) -> None:
        """Count one game that an earlier life of the run has logged."""
        with self._lock:
            self._metrics.add_past_episode(episode)

    def log_engine(self, figures: EngineFigures) -> None:
        """Add an engine's report to the window; the run's tag `engine_0` holds the first one's worker address."""
        with self._lock:
            if self._status is None:
                self._metrics.add_engine(figures, time.monotonic())

    def log_collection(self, metrics: Mapping[str, SupportsFloat | None]) -> None:
        """Add the scheduler's figures to the window, under `collection/`."""
        with self._lock:
            if self._status is None:
                self._metrics.add_collection(metrics)

    def log_learning(self, metrics: Mapping[str, float], step: int) -> None:
        """Report the figures of one learning step, under `learning/`, at that step."""
        with self._lock:
            if self._status is None:
                self._learned.append(({f"learning/{name}": value for name, value in metrics.items()}, step))

    def finish(self, status: RunStatus) -> None:
        """Write what is left and close the run; gives up after `CLOSE_TIMEOUT_S` seconds with a warning.

        Raises:
            ValueError: `status` is none of MLflow's three ends.
        """
        if status not in get_args(RunStatus):
            raise ValueError(f"A run cannot end as {status!r}; expected one of {', '.join(get_args(RunStatus))}.")
        with self._lock:
            if self._status is not None:
                return
            self._status = status
        self._stop.set()
        self._thread.join(CLOSE_TIMEOUT_S)
        if self._thread.is_alive():
            logger.warning("MLflow at %s gave no answer in %g s; its run stays open.", self.uri, CLOSE_TIMEOUT_S)
        elif self._trouble.failures:
            logger.warning("%s", self._trouble.summary())

    def _write_until_stopped(self) -> None:
        """The thread: at once create the run, then write per window, more rarely while MLflow fails; at last close."""
        pause = 0.0
        with mlflow_settings(self._run.uri):
            while not self._stop.wait(pause):
                written = self._write()
                pause = self._window_s if written else min(2 * max(pause, self._window_s), _LONGEST_PAUSE_S)
            self._trouble.all_written = self._write()
            if self._run.run_id is not None and self._status is not None:
                error = self._trouble.attempt("close the run", partial(self._run.close, self._status))
                self._trouble.closed = error is None

    def _write(self) -> bool:
        """Write all there is; False when MLflow did not take it. The window stays open until what is older is out."""
        if self._trouble.attempt("create the run", self._run.open) is not None:
            return False
        if not self._send():
            return False
        with self._lock:
            values = self._metrics.close(time.monotonic())
            step, engines = self._metrics.episodes, dict(self._metrics.engines)
            sampled = self._transcripts.take_new()
            learned, self._learned = self._learned, []
        self._run.add_engines(engines)
        self._run.add_metrics(values, step)
        for figures, learning_step in learned:
            self._run.add_metrics(figures, learning_step)
        for artifact, episode in sampled.items():
            self._run.add_text(_transcript(episode), artifact)
        return self._send()

    def _send(self) -> bool:
        while self._run.outbox:
            error = self._trouble.attempt("log to the run", self._run.outbox[0])
            if error is not None and self._run.may_pass(error):
                return False
            self._trouble.given_up += error is not None
            self._run.outbox.popleft()
        return True


class _Trouble:
    """The books on MLflow calls that failed: warns at once, then at most once a minute, and sums up at the end."""

    def __init__(self) -> None:
        self.failures = 0
        self.given_up = 0
        self.all_written = False
        self.closed = False
        self._last = ""
        self._quiet_until = -math.inf

    def attempt(self, what: str, call: Callable[[], None]) -> Exception | None:
        """Call; whatever is raised is counted, perhaps warned of, and returned."""
        with boundary() as caught:
            call()
        if caught.error is not None:
            self.failures += 1
            self._last = redact(caught.summary)[:_LONGEST_ERROR]
            if time.monotonic() >= self._quiet_until:
                self._quiet_until = time.monotonic() + _WARN_EVERY_S
                logger.warning("Cannot %s in MLflow: %s. Games and shards go on without it.", what, self._last)
        return caught.error

    def summary(self) -> str:
        """What came of it, on one line."""
        written = f"{self.given_up} were given up" if self.all_written else "the run's last metrics are missing"
        closed = "" if self.closed else ", and the run is not closed there"
        return f"MLflow: {self.failures} calls failed, {written}{closed}. Last error: {self._last}"


def _transcript(episode: Episode) -> str:
    try:
        return redact(render_episode(episode)) + "\n"
    except DatasetError as error:
        return f"Game {episode.spec.game_id} cannot be shown: {error}\n"


def _place(uri: str | None, run_dir: Path | None) -> tuple[str, Path | None]:
    """The tracking URI, and the folder for artifacts where it is ours to say."""
    given = uri or os.environ.get("MLFLOW_TRACKING_URI")
    if given:
        return given, None
    if run_dir is None:
        raise ConfigError(
            "MLflow has nowhere to report to: tracking.uri is not set, nor is MLFLOW_TRACKING_URI, and there is no run "
            "folder. Set tracking.uri, for example to sqlite:////path/to/mlflow.db, or give run_dir."
        )
    folder = run_dir.resolve()
    return f"sqlite:///{folder / 'mlflow.db'}", folder / "mlflow-artifacts"
