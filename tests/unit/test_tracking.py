"""The tracker against real MLflow stores, read back with MLflow's own client."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlflow
import pytest
from mlflow import MlflowClient
from mlflow.entities import Run
from mlflow.exceptions import MlflowException

from pipeline import tracking
from pipeline.mlflow_run import NAMES_ARTIFACT, MLflowRun, mlflow_settings
from pipeline.tracking import BaseTracker, MLflowTracker, NullTracker, RunStatus
from tasks.contracts import EngineFigures, Episode, Mode
from tasks.errors import ConfigError
from tests.unit.metric_games import engine, game, step

EXPERIMENT = "selfplay"


@pytest.fixture(autouse=True)
def _no_uri_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The address of an SQLite store with an experiment, made once: it takes MLflow most of a second."""
    folder = tmp_path_factory.mktemp("store")
    uri = f"sqlite:///{folder / 'mlflow.db'}"
    MlflowClient(uri).create_experiment(EXPERIMENT, artifact_location=(folder / "artifacts").as_uri())
    return uri


@pytest.fixture
def dead_server() -> str:
    """An address on this machine where nobody listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"http://me:hunter2@127.0.0.1:{probe.getsockname()[1]}"


@pytest.fixture
def mute_server() -> Iterator[socket.socket]:
    """A server that takes connections and never answers, until it is closed."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield listener


def read_run(uri: str, tracker: MLflowTracker) -> Run:
    assert tracker.run_id is not None
    return MlflowClient(uri).get_run(tracker.run_id)


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "selfplay.tracking"]


def test_a_run_in_its_own_folder_holds_configuration_and_metrics(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    run_dir = tmp_path / "run 1"
    with MLflowTracker(None, EXPERIMENT, "demo", run_dir=run_dir) as tracker:
        tracker.log_params({"vllm": {"temperature": 1.0, "hf_token": "hunter2"}, "win[0]": "x" * 7000})
        tracker.log_episode(game())
        tracker.log_episode(game(rewards=(3.0, None)))
        tracker.log_engine(engine("tcp://10.0.0.1:4000", kv_use=0.5))
        tracker.log_collection({"in_flight": 8, "win[0]": 1.0, "win(0)": 2.0, "load": float("nan")})
    assert tracker.uri == f"sqlite:///{run_dir}/mlflow.db"
    run = read_run(tracker.uri, tracker)
    assert (run.info.status, run.info.run_name) == ("FINISHED", "demo")
    params = run.data.params
    assert params["vllm.temperature"] == "1.0"
    assert params["vllm.hf_token"] == "***"
    assert [value for name, value in params.items() if name.startswith("win_0_-")] == [
        "(7000 characters, in the artifact config.yaml)"
    ]
    metrics = run.data.metrics
    assert metrics["train/Kuhn/reward/player_0"] == 2.0
    assert metrics["nonfinite/train/Kuhn/reward/player_1"] == 1.0
    assert metrics["engine_0/kv_use"] == 0.5
    assert metrics["collection/in_flight"] == 8.0
    assert metrics["nonfinite/collection/load"] == 1.0
    assert sorted(value for name, value in metrics.items() if name.startswith("collection/win_0_-")) == [1.0, 2.0]
    assert run.data.tags["engine_0"] == "tcp://10.0.0.1:4000"
    (artifact,) = (run_dir / "mlflow-artifacts").rglob("config.yaml")
    assert "x" * 7000 in artifact.read_text()
    assert "hunter2" not in artifact.read_text()
    assert "Creating initial MLflow database tables" not in capfd.readouterr().err
    assert warnings_of(caplog) == []


def test_names_that_people_give_their_metrics_survive(store: str) -> None:
    names = ("timing(s)/gen", "mean@8", "win[0]", "win(0)", "win{0}", "größe:1", "a//b", "../up", "plain")
    with MLflowTracker(store, EXPERIMENT, "names") as tracker:
        tracker.log_collection({name: value for value, name in enumerate(names)})
        tracker.log_collection({"nonsense[1]": None})
    assert tracker.run_id is not None
    client, metrics = MlflowClient(store), read_run(store, tracker).data.metrics
    assert metrics["collection/plain"] == names.index("plain")
    local = client.download_artifacts(tracker.run_id, NAMES_ARTIFACT)
    raw_names = json.loads(Path(local).read_text())
    found = {raw_names.get(name, name): value for name, value in metrics.items()}
    expected = {f"collection/{name}": float(value) for value, name in enumerate(names)}
    assert found == {**expected, "nonfinite/collection/nonsense[1]": 1.0}
    for name in metrics:
        assert [point.value for point in client.get_metric_history(tracker.run_id, name)] == [metrics[name]]


def test_a_few_games_are_there_as_transcripts_without_secrets(store: str) -> None:
    def said(number: int) -> Episode:
        spec = replace(game().spec, game_id=f"game-{number}")
        asked = replace(step(0), observation=f"fetch https://me:hunter2@host/{number}")
        return replace(game(steps=(asked, step(1))), spec=spec)

    with MLflowTracker(store, EXPERIMENT, "transcripts") as tracker:
        for number in range(50):
            tracker.log_episode(said(number))
        tracker.log_episode(game(mode=Mode.EVAL))
        tracker.log_episode(game(mode=Mode.EVAL, player_info=(3, 4)))
    assert tracker.run_id is not None
    client = MlflowClient(store)
    paths = [artifact.path for artifact in client.list_artifacts(tracker.run_id, "transcripts")]
    assert paths == [f"transcripts/{name}.txt" for name in ("eval-0", "eval-1", *(f"train-{i}" for i in range(5)))]
    texts = [Path(client.download_artifacts(tracker.run_id, path)).read_text() for path in paths]
    assert texts[0].startswith("Game game of run run\nKuhn, eval, seed 1, attempt 0\nplayer 0: policy@0 (actor")
    assert "saw:\n    ?\nsaid (stop, 0 tokens, 0.00 s):\n    a\n" in texts[0]
    assert texts[1].startswith("Game game cannot be shown: column 'player_info' takes list")
    assert all("fetch https://***@host/" in text for text in texts[2:])
    assert len(set(texts)) == 7, "each place holds another game"


def test_the_x_axis_is_games_finished_one_point_a_window(store: str) -> None:
    with MLflowTracker(store, EXPERIMENT, "windows", window_s=0.05) as tracker:
        tracker.log_episode(game())
        _wait_for(lambda: tracker.run_id is not None and "train/Kuhn/games" in read_run(store, tracker).data.metrics)
        for _ in range(100):
            tracker.log_episode(game())
    assert tracker.run_id is not None
    points = MlflowClient(store).get_metric_history(tracker.run_id, "train/Kuhn/games")
    assert all(point.step == point.value for point in points)
    assert (points[0].step, points[-1].step) == (1, 101)
    assert len(points) < 100, "windows, not games"


def _wait_for(condition: Callable[[], bool]) -> None:
    pause = threading.Event()
    while not condition():
        pause.wait(0.01)


def test_more_names_and_parameters_than_one_request_takes(store: str) -> None:
    with MLflowTracker(store, EXPERIMENT, "many") as tracker:
        tracker.log_params({f"p{i}": i for i in range(101)})
        tracker.log_collection({f"m{i}": i for i in range(1001)})
    data = read_run(store, tracker).data
    assert len(data.params) == 101
    assert len(data.metrics) == 1001


@pytest.mark.parametrize(
    ("error", "status"), [(None, "FINISHED"), (KeyboardInterrupt(), "KILLED"), (ValueError("no"), "FAILED")]
)
def test_a_run_ends_as_its_block_did(store: str, error: BaseException | None, status: str) -> None:
    tracker = MLflowTracker(store, EXPERIMENT, "ending")
    if error is None:
        with tracker:
            pass
    else:
        with pytest.raises(type(error)), tracker:
            raise error
    assert read_run(store, tracker).info.status == status


def test_the_first_end_counts_and_nothing_follows_it(store: str) -> None:
    with MLflowTracker(store, EXPERIMENT, "twice") as tracker:
        tracker.finish("FAILED")
        tracker.log_episode(game())
        tracker.log_collection({"in_flight": 1})
        tracker.log_engine(engine())
        tracker.log_params({"late": 1})
    run = read_run(store, tracker)
    assert run.info.status == "FAILED"
    assert (run.data.metrics, run.data.params) == ({}, {})


def test_an_end_that_mlflow_does_not_know_is_refused(store: str) -> None:
    with (
        MLflowTracker(store, EXPERIMENT, "misspelt") as tracker,
        pytest.raises(ValueError, match="cannot end as 'DONE'; expected one of FINISHED, FAILED, KILLED"),
    ):
        tracker.finish("DONE")  # type: ignore[arg-type]


def test_a_run_the_user_has_open_is_left_alone(store: str, tmp_path: Path) -> None:
    mlflow.set_tracking_uri(store)
    try:
        mlflow.set_experiment(EXPERIMENT)
        with mlflow.start_run(run_name="mine") as mine:
            with MLflowTracker(store, EXPERIMENT, "ours") as tracker:
                tracker.log_episode(game())
            active = mlflow.active_run()
            assert active is not None
            assert active.info.run_id == mine.info.run_id != tracker.run_id
            assert mlflow.get_tracking_uri() == store
            theirs = MlflowClient(store).get_run(mine.info.run_id)
            assert (theirs.info.status, theirs.data.metrics) == ("RUNNING", {})
    finally:
        mlflow.set_tracking_uri(None)


def test_the_environments_address_serves_where_none_is_given(store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", store)
    with MLflowTracker(None, EXPERIMENT, "from outside") as tracker:
        pass
    assert read_run(store, tracker).info.status == "FINISHED"


def test_nowhere_to_report_to_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"nowhere to report to: tracking\.uri is not set.* Set tracking\.uri"):
        MLflowTracker(None, EXPERIMENT, "lost")


def test_a_window_of_no_length_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"tracking\.window_s is 0; expected seconds > 0"):
        MLflowTracker(None, EXPERIMENT, "hasty", window_s=0, run_dir=tmp_path)


def test_a_server_that_is_not_there_costs_two_warnings_and_no_secret(
    dead_server: str, caplog: pytest.LogCaptureFixture
) -> None:
    with MLflowTracker(dead_server, EXPERIMENT, "away", window_s=0.01) as tracker:
        tracker.log_params({"a": 1})
        tracker.log_episode(game())
        _wait_for(lambda: len(warnings_of(caplog)) > 0)
    tracker.finish("FAILED")
    first, last = warnings_of(caplog)
    assert first.startswith("Cannot create the run in MLflow: MlflowException: API request to http://***@127.0.0.1")
    assert first.endswith("Games and shards go on without it.")
    assert "the run's last metrics are missing, and the run is not closed there" in last
    assert "hunter2" not in first + last + tracker.uri
    assert tracker.run_id is None
    assert not [record for record in caplog.records if record.name.startswith("urllib3")], "it tries once per request"
    assert "MLFLOW_HTTP_REQUEST_MAX_RETRIES" not in os.environ, "the user's own requests keep their retries"


def test_a_server_that_never_answers_is_given_up(
    mute_server: socket.socket, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(tracking, "CLOSE_TIMEOUT_S", 0.1)
    address = f"http://127.0.0.1:{mute_server.getsockname()[1]}"
    tracker = MLflowTracker(address, EXPERIMENT, "mute")
    tracker.log_episode(game())
    tracker.finish("FINISHED")
    assert warnings_of(caplog) == [f"MLflow at {address} gave no answer in 0.1 s; its run stays open."]
    mute_server.close()
    tracker._thread.join()


def test_nothing_is_lost_while_the_store_is_away(
    store: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tries = iter([ConnectionError("not yet"), ConnectionError("not yet"), None])
    real_open = MLflowRun.open

    def slow_to_come(run: MLflowRun) -> None:
        if error := next(tries, None):
            raise error
        real_open(run)

    monkeypatch.setattr(MLflowRun, "open", slow_to_come)
    with MLflowTracker(store, EXPERIMENT, "patient", window_s=0.01) as tracker:
        tracker.log_episode(game(rewards=(1.0, 0.0)))
        _wait_for(lambda: len(warnings_of(caplog)) > 0)
        tracker.log_episode(game(rewards=(0.0, 1.0)))
        _wait_for(lambda: tracker.run_id is not None)
    run = read_run(store, tracker)
    assert run.info.status == "FINISHED"
    assert run.data.metrics["train/Kuhn/games"] == 2.0
    assert warnings_of(caplog) == [
        "Cannot create the run in MLflow: ConnectionError: not yet. Games and shards go on without it.",
        "MLflow: 2 calls failed, 0 were given up. Last error: ConnectionError: not yet",
    ]


def test_while_the_store_takes_nothing_one_window_waits_and_the_next_grows(
    store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries = iter(range(4))
    real_log, refused = MLflowRun._log_metrics, threading.Semaphore(0)

    def slow_to_log(run: MLflowRun, values: Mapping[str, float], now_ms: int, step: int) -> None:
        if next(tries, None) is not None:
            refused.release()
            raise MlflowException("the store is away")
        real_log(run, values, now_ms, step)

    monkeypatch.setattr(MLflowRun, "_log_metrics", slow_to_log)
    with MLflowTracker(store, EXPERIMENT, "patient", window_s=0.01) as tracker:
        for _ in range(4):
            tracker.log_episode(game())
            refused.acquire()
    assert tracker.run_id is not None
    points = MlflowClient(store).get_metric_history(tracker.run_id, "train/Kuhn/games")
    assert [point.step for point in points] == [1, 4]


def test_what_mlflow_refuses_for_good_is_dropped_and_told(store: str, caplog: pytest.LogCaptureFixture) -> None:
    with MLflowTracker(store, EXPERIMENT, "conflict") as tracker:
        tracker.log_params({"seed": 1})
        tracker.log_params({"seed": 2})
        tracker.log_episode(game())
    run = read_run(store, tracker)
    assert run.info.status == "FINISHED"
    assert run.data.params["seed"] == "1"
    assert run.data.metrics["train/Kuhn/games"] == 1.0
    first, last = warnings_of(caplog)
    assert first.startswith("Cannot log to the run in MLflow: MlflowException")
    assert last.startswith("MLflow: 1 calls failed, 1 were given up.")


def test_settings_for_a_server_are_lent_and_the_users_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_DISABLE_TELEMETRY", raising=False)
    names = ("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "MLFLOW_HTTP_REQUEST_TIMEOUT", "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT")
    for name in names:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "60")
    with mlflow_settings("http://host"):
        assert [os.environ.get(name) for name in names] == ["0", "60", "true"]
        assert os.environ["MLFLOW_DISABLE_TELEMETRY"] == "true"
    assert [os.environ.get(name) for name in names] == [None, "60", None]
    with mlflow_settings("sqlite:///mlflow.db"):
        assert [os.environ.get(name) for name in names] == [None, "60", None]


def test_a_tracker_that_keeps_nothing_takes_everything() -> None:
    with NullTracker() as tracker:
        tracker.log_params({"a": 1})
        tracker.log_episode(game())
        tracker.log_engine(engine())
        tracker.log_collection({"in_flight": 1.0})


def test_a_users_tracker_gets_its_end_from_the_base_class() -> None:
    class Mine(BaseTracker):
        def __init__(self) -> None:
            self.ends: list[RunStatus] = []

        def log_params(self, config: Mapping[str, Any]) -> None: ...

        def log_episode(self, episode: Episode) -> None: ...

        def log_engine(self, figures: EngineFigures) -> None: ...

        def log_collection(self, metrics: Mapping[str, Any]) -> None: ...

        def finish(self, status: RunStatus) -> None:
            self.ends.append(status)

    mine = Mine()
    with mine:
        pass
    with pytest.raises(KeyboardInterrupt), mine:
        raise KeyboardInterrupt
    with pytest.raises(OSError, match="full"), mine:
        raise OSError("full")
    assert mine.ends == ["FINISHED", "KILLED", "FAILED"]


def test_an_incomplete_tracker_is_refused() -> None:
    with pytest.raises(TypeError, match="abstract method"):
        type("Half", (BaseTracker,), {"finish": lambda self, status: None})()


def test_importing_the_tracker_does_not_import_mlflow() -> None:
    code = "import sys, pipeline.tracking; print('mlflow' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "False"
