"""One MLflow run: the only MLflow import. Called from the tracker's thread alone, with `MlflowClient` alone.

The fluent interface (`mlflow.start_run` and the rest) keeps an active run per process, which is the user's.
"""

from __future__ import annotations

import fcntl
import importlib
import json
import logging
import os
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, Literal

from pipeline.metric_names import clean_name
from pipeline.run_params import CONFIG_ARTIFACT, config_text, flat_params
from tasks.lean_imports import without

RunStatus = Literal["FINISHED", "FAILED", "KILLED"]
"""How a run ends, in MLflow's words: as asked, by an error, by the user."""

NAMES_ARTIFACT = "metric_names.json"
"""The artifact that says which metric a name stands for, of the names that MLflow does not take as they are."""

KEY_TAG = "selfplay.run"
"""The tag by which a run is found again when it is resumed."""

CHANGED_TAG = "changed."
"""Before the name of a parameter that a resumed run has another value of."""

_LONGEST_TAG = 5000
_REQUEST_TIMEOUT_S = 10
_SQLITE = "sqlite:///"


class MLflowRun:
    """One run in an MLflow store. `open`, `close` and the calls in `outbox` may raise whatever MLflow raises.

    Where `key` is given, a run of the experiment that was opened with the same one is gone on with.
    """

    def __init__(
        self, uri: str, artifacts: Path | None, experiment: str, run_name: str, key: str | None = None
    ) -> None:
        self.uri = uri
        self.run_id: str | None = None
        self.outbox: deque[Callable[[], None]] = deque()
        self._artifacts = artifacts
        self._experiment = experiment
        self._run_name = run_name
        self._key = key
        self._resumed = False
        self._started_ms = _now_ms()
        self._client: Any = None
        self._tagged: set[str] = set()
        self._renamed: dict[str, str] = {}

    def open(self) -> None:
        """Create store, experiment and run, as far as they are not there yet."""
        if self.run_id is not None:
            return
        # Imported here, in the tracker's thread: the import alone takes a second or more. Where Polars is installed it
        # would come along and take 30 MB.
        with without("mlflow.data.polars_dataset"):
            from mlflow import MlflowClient

        if self._artifacts is not None:
            self._artifacts.mkdir(parents=True, exist_ok=True)
        file = _sqlite_file(self.uri)
        # A store in the run's own folder is nobody else's.
        with nullcontext() if self._artifacts is not None else _one_at_a_time(file):
            if file is not None and not file.exists():
                _create_store(file)
            self._client = MlflowClient(self.uri)
        experiment = self._experiment_id()
        earlier = self._earlier_run(experiment)
        if earlier is not None:
            self._client.update_run(earlier, status="RUNNING")
            self.run_id, self._resumed = earlier, True
            return
        tags = None if self._key is None else {KEY_TAG: self._key}
        run = self._client.create_run(experiment, start_time=self._started_ms, run_name=self._run_name, tags=tags)
        self.run_id = run.info.run_id

    def close(self, status: RunStatus) -> None:
        """Give the run its end."""
        self._client.set_terminated(self.run_id, status)

    def add_config(self, config: Mapping[str, Any]) -> None:
        """Queue the configuration as parameters and as one artifact."""
        self.outbox.append(partial(self._log_params, flat_params(config)))
        self.add_text(config_text(config), CONFIG_ARTIFACT)

    def add_engines(self, engines: Mapping[str, str]) -> None:
        """Queue a tag for each engine not tagged yet; `engines` maps addresses to names."""
        for address, name in engines.items():
            if name not in self._tagged:
                self._tagged.add(name)
                self.outbox.append(partial(self._set_tag, name, address))

    def add_metrics(self, values: Mapping[str, float], step: int) -> None:
        """Queue one point per raw name, all at `step` and now."""
        if values:
            self.outbox.append(partial(self._log_metrics, dict(values), _now_ms(), step))
        renamed = {clean_name(name): name for name in values if clean_name(name) != name}
        if not renamed.keys() <= self._renamed.keys():
            self._renamed |= renamed
            self.add_text(json.dumps(self._renamed, indent=2, sort_keys=True), NAMES_ARTIFACT)

    def add_text(self, text: str, artifact: str) -> None:
        """Queue one text file, which replaces the artifact of that name."""
        self.outbox.append(partial(self._log_text, text, artifact))

    def may_pass(self, error: Exception) -> bool:
        """Whether the same call can succeed later: the server is away, overloaded or does not know us (yet)."""
        from mlflow.exceptions import MlflowException

        if not isinstance(error, MlflowException):
            return False
        status = error.get_http_status_code()
        return status >= 500 or status in (401, 403, 408, 429)

    def _earlier_run(self, experiment: str) -> str | None:
        """The run that was opened with this key before, if there is one."""
        if self._key is None:
            return None
        found = self._client.search_runs([experiment], f"tags.`{KEY_TAG}` = '{self._key}'", max_results=1)
        return str(found[0].info.run_id) if found else None

    def _experiment_id(self) -> str:
        from mlflow.exceptions import MlflowException

        experiment = self._client.get_experiment_by_name(self._experiment)
        if experiment is None:
            location = None if self._artifacts is None else self._artifacts.as_uri()
            try:
                return str(self._client.create_experiment(self._experiment, artifact_location=location))
            except MlflowException:
                # Another run may have created it in between.
                experiment = self._client.get_experiment_by_name(self._experiment)
                if experiment is None:
                    raise
        return str(experiment.experiment_id)

    # Synchronous whatever MLFLOW_ENABLE_ASYNC_LOGGING says: the tracker's thread has to see the errors. `log_batch`
    # splits what is more than a request may hold.

    def _log_params(self, params: Mapping[str, str]) -> None:
        """Log parameters. MLflow keeps the first value of each; what a resumed run changes becomes a tag of its own."""
        from mlflow.entities import Param

        named = {clean_name(name): value for name, value in params.items()}
        known = self._client.get_run(self.run_id).data.params if self._resumed else {}
        entities = [Param(name, value) for name, value in named.items() if name not in known]
        self._client.log_batch(self.run_id, params=entities, synchronous=True)
        for name, value in named.items():
            if known.get(name, value) != value:
                self._set_tag(f"{CHANGED_TAG}{name}", f"{known[name]} -> {value}"[:_LONGEST_TAG])

    def _log_metrics(self, values: Mapping[str, float], now_ms: int, step: int) -> None:
        from mlflow.entities import Metric

        entities = [Metric(clean_name(name), value, now_ms, step) for name, value in values.items()]
        self._client.log_batch(self.run_id, metrics=entities, synchronous=True)

    def _set_tag(self, name: str, value: str) -> None:
        self._client.set_tag(self.run_id, name, value, synchronous=True)

    def _log_text(self, text: str, artifact: str) -> None:
        self._client.log_text(self.run_id, text, artifact)


def _sqlite_file(uri: str) -> Path | None:
    """The file of a store in SQLite; None for other stores."""
    path = uri.removeprefix(_SQLITE).partition("?")[0] if uri.startswith(_SQLITE) else ""
    return Path(path) if path else None


@contextmanager
def _one_at_a_time(file: Path | None) -> Iterator[None]:
    """Keep other processes of this project out while a store in an SQLite file is opened, which creates it if need be.

    MLflow creates and migrates its tables without a lock, and two that do so at once leave a store that never opens
    again. The lock is on a file beside the database, for SQLite has locks of its own on that one. Servers, and
    databases behind one, are theirs to guard.
    """
    if file is None:
        yield
        return
    # What takes seconds to import should not keep the others waiting.
    importlib.import_module("mlflow.store.tracking.sqlalchemy_store")
    lock = file.with_name(f"{file.name}.lock")
    lock.parent.mkdir(parents=True, exist_ok=True)
    with lock.open("ab") as held:
        fcntl.flock(held, fcntl.LOCK_EX)  # until the file is closed
        yield


def _create_store(file: Path) -> None:
    """Create a store under another name first: a process that is killed meanwhile leaves none, not half of one."""
    from mlflow.store.tracking import DEFAULT_LOCAL_FILE_AND_ARTIFACT_PATH
    from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

    file.parent.mkdir(parents=True, exist_ok=True)
    temporary = file.with_name(f".{file.name}.tmp")
    for left in (temporary, temporary.with_name(f"{temporary.name}-journal")):
        left.unlink(missing_ok=True)
    store = SqlAlchemyStore(f"{_SQLITE}{temporary}", DEFAULT_LOCAL_FILE_AND_ARTIFACT_PATH)
    store.engine.dispose()
    os.replace(temporary, file)


@contextmanager
def mlflow_settings(uri: str) -> Iterator[None]:
    """MLflow without telemetry, chatter and minutes of retries; a setting that the user made stays as it is.

    MLflow takes these from the process's environment only. Its retries of a failed request (7, over four minutes) would
    hold up warnings and the end of the run, and the tracker's thread tries again by itself: so one try per request. It
    prints where a server shows a closed run, across whatever is on screen. Both hold for as long as the tracker lives.
    """
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    for name in ("mlflow.store.db", "alembic"):
        chatty = logging.getLogger(name)
        if chatty.level == logging.NOTSET:
            chatty.setLevel(logging.WARNING)
    wanted = {
        "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
        "MLFLOW_HTTP_REQUEST_TIMEOUT": str(_REQUEST_TIMEOUT_S),
        "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    }
    ours = {name: value for name, value in wanted.items() if uri.startswith("http") and name not in os.environ}
    os.environ.update(ours)
    try:
        yield
    finally:
        for name in ours:
            os.environ.pop(name, None)


def _now_ms() -> int:
    return int(time.time() * 1000)
