"""`GameScheduler` on real Dask processes: lanes, quotas, faults, and books that add up after each."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

import dask
import pytest
from distributed import Client

from pipeline.replay import StepBuffer, StopConditions
from pipeline.tracking import NullTracker
from tasks.contracts import Episode, Trajectory
from tasks.errors import ClusterError, ConfigError, EngineStartError, TooManyFailuresError
from tasks.shards import read_episodes, read_steps
from tests.cluster.collections import check_books, kuhn, kuhn_eval, scheduler, stub
from tests.cluster.conftest import StartCluster
from tests.processes import DaskProcesses

pytestmark = pytest.mark.cluster


def test_scripted_games_reach_shards_and_buffer(client: Client, tmp_path: Path) -> None:
    buffer = StepBuffer(stop=StopConditions(episodes=60))
    games = scheduler(client, tmp_path, buffer=buffer)
    ledger = games.collect(num_train_workers=8)
    statuses = check_books(ledger, tmp_path)
    assert statuses["completed"] >= 60
    assert buffer.size() == read_steps(tmp_path).num_rows
    assert ledger.stopped_by == "buffer"
    deadline = time.monotonic() + 10
    while client.futures and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not client.futures, "nothing is left on the cluster"


def test_evaluation_has_its_own_lane_and_is_never_trained_on(client: Client, tmp_path: Path) -> None:
    buffer = StepBuffer(stop=StopConditions(episodes=40))
    games = scheduler(client, tmp_path, stub("lanes", latency_s=0.005), buffer=buffer, evaluation=kuhn_eval())
    ledger = games.collect(num_train_workers=4, num_eval_workers=2)
    check_books(ledger, tmp_path)
    rows = read_episodes(tmp_path).to_pylist()
    evaluation = [row for row in rows if row["mode"] == "eval"]
    assert len(evaluation) >= 4
    assert buffer.size() == sum(row["turns"] for row in rows if row["mode"] == "train")
    by_seed: dict[int, list[list[str]]] = {}
    for row in sorted(evaluation, key=lambda row: row["game_id"]):
        by_seed.setdefault(row["seed"], []).append(row["role"])
    complete = [roles for roles in by_seed.values() if len(roles) == 2]
    assert complete
    assert all(roles == [["actor", "opponent"], ["opponent", "actor"]] for roles in complete)


class Watcher(StepBuffer):
    """A buffer that also notes how many games each look at the collection found in flight."""

    seen: list[int]
    both_ready_at: float | None = None
    enough: int = 0
    games: object = None

    def continue_collection(self) -> bool:
        snapshot = getattr(self.games, "snapshot", None)
        if snapshot is None:
            return True
        self.seen.append(snapshot.in_flight)
        if snapshot.engines == 2 and self.both_ready_at is None:
            self.both_ready_at, self.enough = time.time(), self.stats().episodes + 60
        return self.both_ready_at is None or self.stats().episodes < self.enough


def test_quotas_hold_and_both_engines_are_used(client: Client, tmp_path: Path) -> None:
    buffer = Watcher()
    buffer.seen = []
    games = scheduler(client, tmp_path, stub("quota", latency_s=0.005), buffer=buffer, evaluation=kuhn_eval())
    buffer.games = games
    games.collect(num_train_workers=6, num_eval_workers=2)
    assert max(buffer.seen) <= 8
    rows = read_episodes(tmp_path).to_pylist()
    # Wall-clock intervals of the rows themselves say how many games really ran at once.
    for mode, quota in (("train", 6), ("eval", 2)):
        edges = sorted(
            edge for row in rows if row["mode"] == mode for edge in ((row["started_at"], 1), (row["finished_at"], -1))
        )
        running, most = 0, 0
        for _, change in edges:
            running += change
            most = max(most, running)
        assert 1 <= most <= quota
    assert buffer.both_ready_at is not None
    workers = [row["worker"] for row in rows if row["started_at"].timestamp() >= buffer.both_ready_at]
    assert len(set(workers)) == 2
    assert min(workers.count(worker) for worker in set(workers)) >= len(workers) / 4


def test_a_second_collect_in_the_same_process(client: Client, tmp_path: Path) -> None:
    buffer = StepBuffer(stop=StopConditions(episodes=10))
    games = scheduler(client, tmp_path, stub("twice"), buffer=buffer)
    games.collect(num_train_workers=4)
    first = games.ledger.summary()["submitted"]
    assert games.collect(num_train_workers=4).summary()["submitted"] == first, "the buffer has had enough"
    other = scheduler(client, tmp_path / "other", stub("twice"), episodes=10)
    with other:
        other.collect(num_train_workers=4)
    check_books(other.ledger, tmp_path / "other")
    check_books(games.ledger, tmp_path)


def test_the_users_own_buffer_needs_two_methods(client: Client, tmp_path: Path) -> None:
    class Mine:
        def __init__(self) -> None:
            self.got: list[tuple[Trajectory, str]] = []

        def add_player_trajectory(self, trajectory: Trajectory, env_id: str) -> None:
            self.got.append((trajectory, env_id))

        def continue_collection(self) -> bool:
            return len(self.got) < 10

    mine = Mine()
    scheduler(client, tmp_path, buffer=mine).collect(num_train_workers=4)
    assert len(mine.got) >= 10
    assert {env_id for _, env_id in mine.got} == {"KuhnPoker-v0-train"}


def test_quotas_out_of_range_are_refused(client: Client, tmp_path: Path) -> None:
    games = scheduler(client, tmp_path)
    with pytest.raises(ConfigError, match="num_train_workers is 0, expected at least 1"):
        games.collect(num_train_workers=0)
    with pytest.raises(ConfigError, match="num_eval_workers is 2, but the environment sampler has no evaluation"):
        games.collect(num_train_workers=1, num_eval_workers=2)


def test_a_run_of_failures_stops_the_run_and_says_what_to_look_at(client: Client, tmp_path: Path) -> None:
    games = scheduler(client, tmp_path, train=kuhn(env_kwargs={"nonsense": 1}), max_consecutive_failures=5)
    with pytest.raises(
        TooManyFailuresError, match=r"5 games in a row failed.*nonsense.*[a-z]\. Look at .*selfplay show"
    ):
        games.collect(num_train_workers=4)
    statuses = check_books(games.ledger, tmp_path)
    assert statuses["failed"] >= 5
    assert games.ledger.stopped_by.startswith("TooManyFailuresError")


def test_an_error_of_the_users_own_object_ends_the_run_with_books_in_order(client: Client, tmp_path: Path) -> None:
    class Broken(StepBuffer):
        def add_player_trajectory(self, trajectory: Trajectory, env_id: str) -> None:
            raise ZeroDivisionError("the user's own mistake")

    games = scheduler(client, tmp_path, stub("broken", latency_s=0.05), buffer=Broken())
    with pytest.raises(ZeroDivisionError, match="the user's own mistake"):
        games.collect(num_train_workers=4)
    statuses = check_books(games.ledger, tmp_path)
    assert statuses["cancelled"] >= 1


def test_a_tracker_that_keeps_failing_costs_no_row(client: Client, tmp_path: Path) -> None:
    class Broken(NullTracker):
        def log_episode(self, episode: Episode) -> None:
            raise ZeroDivisionError("the tracker's own mistake")

    games = scheduler(client, tmp_path, stub("bad-tracker", latency_s=0.05), tracker=Broken())
    with pytest.raises(ZeroDivisionError, match="the tracker's own mistake"):
        games.collect(num_train_workers=4)
    assert check_books(games.ledger, tmp_path).total() >= 4


def test_an_engine_that_dies_once_costs_no_game(client: Client, tmp_path: Path) -> None:
    games = scheduler(client, tmp_path, stub("dies-once", latency_s=0.002, die_after=50, deaths=1), episodes=40)
    ledger = games.collect(num_train_workers=6)
    statuses = check_books(ledger, tmp_path)
    assert set(statuses) <= {"completed", "illegal_move"}
    assert ledger.retried_attempts >= 1
    assert any(row["attempt"] >= 1 for row in read_episodes(tmp_path).to_pylist())
    assert max(figures.restarts for figures in ledger.engines.values()) == 1


def test_an_engine_that_dies_twice_stops_the_run_with_that_reason(client: Client, tmp_path: Path) -> None:
    games = scheduler(client, tmp_path, stub("dies-twice", latency_s=0.002, die_after=30, deaths=9), episodes=10_000)
    with pytest.raises(EngineStartError, match="died again after it was rebuilt"):
        games.collect(num_train_workers=6)
    check_books(games.ledger, tmp_path)


def test_an_engine_that_cannot_start_is_the_reason_the_run_gives(start_cluster: StartCluster, tmp_path: Path) -> None:
    with start_cluster(workers=1) as client:
        games = scheduler(client, tmp_path, stub("no-start", fail_start="the accelerator has no memory left"))
        with pytest.raises(EngineStartError, match="the accelerator has no memory left"):
            games.collect(num_train_workers=2)
        check_books(games.ledger, tmp_path)


def test_a_killed_worker_costs_no_game(start_cluster: StartCluster, tmp_path: Path) -> None:
    with start_cluster(workers=2) as client:
        pids = list(client.run(os.getpid).values())
        games = scheduler(client, tmp_path, stub("killed", latency_s=0.01), episodes=120)

        def kill_one() -> None:
            while len(games.ledger.environments) == 0 or games.snapshot is None or games.snapshot.engines < 2:
                time.sleep(0.01)
            os.kill(pids[0], signal.SIGKILL)

        killer = threading.Thread(target=kill_one)
        killer.start()
        ledger = games.collect(num_train_workers=8)
        killer.join()
        statuses = check_books(ledger, tmp_path)
        assert set(statuses) <= {"completed", "illegal_move"}
        assert ledger.retried_attempts >= 1


def test_ctrl_c_while_engines_are_being_set_up_is_heard_and_named(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        signal.raise_signal(signal.SIGINT)

    games = scheduler(client, tmp_path, stub("early", start_s=0.2))
    monkeypatch.setattr("pipeline.game_scheduler.require_keys", interrupted)
    with pytest.raises(KeyboardInterrupt):
        games.collect(num_train_workers=2)
    assert (games.ledger.stopped_by, games.ledger.summary()["submitted"]) == ("interrupt", 0)


def test_what_stops_a_run_before_its_first_game_is_named(client: Client, tmp_path: Path) -> None:
    games = scheduler(client, tmp_path / "second", stub("second"))
    with scheduler(client, tmp_path / "first", stub("first")), pytest.raises(ClusterError, match="is held by run"):
        games.collect(num_train_workers=2)
    assert games.ledger.stopped_by.startswith("ClusterError: the cluster at")


def test_a_scheduler_that_dies_is_the_reason_the_run_gives(
    processes: DaskProcesses, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipeline.engine_pool.NO_ENGINE_PATIENCE_S", 2.0)
    address = processes.scheduler()
    processes.worker(address)
    with dask.config.set({"distributed.comm.timeouts.connect": "3s"}), Client(address) as client:
        client.wait_for_workers(1)
        pid = client.run_on_scheduler(os.getpid)
        games = scheduler(client, tmp_path, stub("orphan", latency_s=0.01), episodes=10_000)

        def kill_it() -> None:
            while not games.ledger.environments:
                time.sleep(0.01)
            os.kill(pid, signal.SIGKILL)

        killer = threading.Thread(target=kill_it)
        killer.start()
        with pytest.raises(
            ClusterError, match=r"no worker with an engine for 2 s.*the connection to|the scheduler is gone"
        ):
            games.collect(num_train_workers=4)
        killer.join()
        assert check_books(games.ledger, tmp_path)["cancelled"] >= 1
