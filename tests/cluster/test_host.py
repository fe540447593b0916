"""The game host and its guard on real Dask processes, with the stub engine."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from distributed import Client, Future

from tasks.contracts import EngineSpec, EngineState, Mode, SamplingSpec
from tasks.errors import ClusterError, EngineDiedError
from tasks.guard import register, unregister
from tasks.host import ENGINE_TOPIC, Engine, GameHost, cancel_games, current_host, host_state, set_lane_limits
from tests.cluster.conftest import StartCluster
from tests.processes import DaskProcesses

pytestmark = pytest.mark.cluster

DRIVER = """
import sys, time
from distributed import Client
from tasks.contracts import EngineSpec
from tasks.guard import register
from tasks.host import GameHost

client = Client(sys.argv[1])
client.wait_for_workers(1)
spec = EngineSpec("stub", factory="tests.stub_engine:StubEngine", engine_args={"log": sys.argv[2]})
register(client, GameHost(spec, "lost"))
time.sleep(3600)
"""


def stub_host(name: str = "stub", run_id: str = "run-1", **engine_args: Any) -> GameHost:
    return GameHost(EngineSpec(name, factory="tests.stub_engine:StubEngine", engine_args=engine_args), run_id)


async def ask_the_engine(seed: int) -> str:
    """A game as a Dask task: one request to the engine of the worker it runs on."""

    async def game(engine: Engine | None) -> str:
        assert engine is not None
        reply = await engine.generate(
            [{"role": "user", "content": "'[a]', '[b]'"}], SamplingSpec(), n=1, seed=seed, adapter=None
        )
        return reply.completions[0].text

    return await current_host().run(game, f"game-{seed}", Mode.TRAIN)


async def hold_a_place(name: str) -> str:
    """A game that lasts until it is cancelled."""

    async def game(engine: Engine | None) -> str:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            return f"{name} cancelled"
        return f"{name} ended"

    return await current_host().run(game, name, Mode.TRAIN)


def play(client: Client, game: Callable[[Any], Any], arguments: list[Any], **options: Any) -> list[Future]:
    futures: list[Future] = client.map(game, arguments, resources={"SEQ": 1}, pure=False, **options)
    return futures


@contextmanager
def registered(client: Client, host: GameHost) -> Iterator[None]:
    register(client, host)
    try:
        yield
    finally:
        unregister(client)


def until(condition: Callable[[], bool], what: str, timeout_s: float = 20.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"waited {timeout_s:.0f} s for: {what}"
        time.sleep(0.05)


def states(client: Client) -> list[EngineState | None]:
    figures = client.run(host_state, on_error="ignore")
    return [None if figure is None else figure.state for figure in figures.values()]


def events_in(log: Path) -> list[str]:
    return [line.split()[0] for line in log.read_text().splitlines()] if log.exists() else []


def test_games_are_played_beside_the_engine_of_their_worker(client: Client) -> None:
    with registered(client, stub_host(latency_s=0.01)):
        texts = client.gather(play(client, ask_the_engine, list(range(40))))
        again = client.gather(play(client, ask_the_engine, list(range(40))))
    assert texts == again and set(texts) == {"I choose \\boxed{[a]}", "I choose \\boxed{[b]}"}


def test_lane_limits_and_cancelling_reach_the_workers(client: Client) -> None:
    with registered(client, GameHost(EngineSpec("scripted:random", factory=None), "run-1")):
        client.run(set_lane_limits, {"train": 2})
        games = play(client, hold_a_place, [f"game-{i}" for i in range(8)])
        until(lambda: [f.running_games for f in client.run(host_state).values()] == [2, 2], "two games on each worker")
        client.run(set_lane_limits, {"train": None})
        until(lambda: sum(f.running_games for f in client.run(host_state).values()) == 8, "all games inside")
        client.run(cancel_games, ["game-3"])
        assert games[3].result(timeout=20) == "game-3 cancelled"
        client.run(cancel_games, None)
        assert client.gather(games) == [f"game-{i} cancelled" for i in range(8)]


def test_engine_figures_arrive_as_events(client: Client) -> None:
    heard: list[dict[str, Any]] = []
    workers = set(client.scheduler_info(n_workers=-1)["workers"])

    def heard_from_all(state: str) -> bool:
        return {event["worker"] for event in heard if event["state"] == state} == workers

    client.subscribe_topic(ENGINE_TOPIC, lambda event: heard.append(event[1]))
    with registered(client, stub_host()):
        # Subscribing takes a moment, so the first reports may be missed; there is one every second.
        until(lambda: heard_from_all("ready"), "both engines to say they are ready")
    until(lambda: heard_from_all("stopped"), "both engines to say they stopped")
    client.unsubscribe_topic(ENGINE_TOPIC)


def test_unregistering_waits_until_the_engines_are_down(client: Client, tmp_path: Path) -> None:
    with registered(client, stub_host(log=str(tmp_path / "log"))):
        until(lambda: states(client) == [EngineState.READY] * 2, "two engines")
    assert sorted(events_in(tmp_path / "log")) == ["start", "start", "stop", "stop"]
    assert states(client) == [None, None]
    unregister(client)  # once more is no error


def test_a_dead_engine_is_rebuilt_on_its_worker(client: Client) -> None:
    worker = min(client.scheduler_info(n_workers=-1)["workers"])
    with registered(client, stub_host("dies-on-the-cluster", die_after=5, latency_s=0.05)):
        games = play(client, ask_the_engine, list(range(5)), workers=[worker])
        assert {type(game.exception(timeout=20)) for game in games} == {EngineDiedError}
        assert len(client.gather(play(client, ask_the_engine, list(range(5)), workers=[worker]))) == 5
        assert client.run(host_state, workers=[worker])[worker].restarts == 1


def test_a_second_run_on_a_cluster_is_refused_and_does_no_harm(client: Client) -> None:
    with registered(client, stub_host(run_id="first")), Client(client.scheduler.address) as other:
        with pytest.raises(ClusterError, match="is held by run 'first', expected none"):
            register(other, stub_host(run_id="second"))
        unregister(other)
        until(lambda: states(client) == [EngineState.READY] * 2, "both engines of the first run")


def test_ctrl_c_leaves_workers_alone(client: Client) -> None:
    with registered(client, stub_host()):
        before = client.run(os.getpid)
        client.run(lambda: os.kill(os.getpid(), signal.SIGINT))
        assert client.run(os.getpid) == before
        assert len(client.gather(play(client, ask_the_engine, list(range(4))))) == 4


def test_an_engine_that_cannot_start_takes_its_worker_and_nanny_with_it(start_cluster: StartCluster) -> None:
    heard: list[dict[str, Any]] = []
    with start_cluster(2) as client:
        client.subscribe_topic(ENGINE_TOPIC, lambda event: heard.append(event[1]))
        register(client, stub_host(fail_start="no such card"))
        until(lambda: not client.scheduler_info()["workers"], "both workers to leave")
        told = {(event["worker"], event["reason"]) for event in heard if event["state"] == "failed"}
        assert len(told) == 2 and {reason for _, reason in told} == {"RuntimeError: no such card"}
        unregister(client)
        nannies = list(client.cluster.workers.values())
        until(lambda: all(nanny.status.name == "closed" for nanny in nannies), "no nanny to start another worker")


def test_a_worker_that_is_started_anew_gets_a_host_of_its_own(start_cluster: StartCluster) -> None:
    with start_cluster(1) as client, registered(client, stub_host()):
        until(lambda: states(client) == [EngineState.READY], "the engine")
        (before,) = client.run(os.getpid).items()
        os.kill(before[1], signal.SIGKILL)
        until(lambda: before[0] not in client.scheduler_info()["workers"], "the worker to be missed")
        client.wait_for_workers(1, timeout=30)
        until(lambda: states(client) == [EngineState.READY], "an engine on the new worker")
        assert len(client.gather(play(client, ask_the_engine, list(range(4))))) == 4


def test_hosts_do_not_outlive_a_driver_that_is_killed(processes: DaskProcesses, tmp_path: Path) -> None:
    scheduler, log = processes.scheduler(), tmp_path / "log"
    processes.worker(scheduler)
    driver = processes.python(DRIVER, scheduler, str(log))
    until(lambda: events_in(log) == ["start"], "the engine", timeout_s=30)
    os.kill(driver, signal.SIGKILL)
    until(lambda: events_in(log) == ["start", "stop"], "the engine to be stopped", timeout_s=10)
    with Client(scheduler) as client, registered(client, stub_host(run_id="next")):
        assert len(client.gather(play(client, ask_the_engine, list(range(4))))) == 4


def test_a_late_worker_whose_engine_cannot_start_leaves_for_good(processes: DaskProcesses) -> None:
    scheduler = processes.scheduler()
    with Client(scheduler) as client, registered(client, stub_host(fail_start="no such card")):
        worker = processes.worker(scheduler)
        until(lambda: processes.has_ended(worker), "the worker and its nanny to leave")


def test_a_worker_without_this_package_is_refused_and_stays_usable(processes: DaskProcesses) -> None:
    scheduler = processes.scheduler()
    processes.worker(scheduler, without=["tasks"])
    with Client(scheduler) as client:
        client.wait_for_workers(1, timeout=30)
        with pytest.raises(
            ClusterError, match=r"the game hosts could not be set up: .*No module named 'tasks.*PYTHONPATH"
        ):
            register(client, stub_host())
        assert client.submit(sum, [1, 2]).result(timeout=20) == 3


def test_a_scheduler_without_this_package_is_refused(processes: DaskProcesses) -> None:
    with (
        Client(processes.scheduler(without=["tasks"])) as client,
        pytest.raises(ClusterError, match=r"the game hosts could not be set up: .*No module named 'tasks.*PYTHONPATH"),
    ):
        register(client, stub_host())
