"""The game host on a stand-in for a Dask worker."""

from __future__ import annotations

import asyncio
import pickle
import signal
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from tasks.contracts import EngineFigures, EngineSpec, EngineState, Mode, SamplingSpec
from tasks.errors import ClusterError, ConfigError, EngineDiedError, EngineStartError, GameCancelledError
from tasks.host import ENGINE_TOPIC, Engine, GameHost, cancel_games, current_host, host_state, set_lane_limits

SCRIPTED = EngineSpec("scripted:random", factory=None)


class FakeWorker:
    """What the host needs of a Dask worker, with everything it was told."""

    def __init__(self, nanny: str | None = None, **resources: float) -> None:
        self.address = "tcp://192.0.2.1:4000"
        self.nanny = nanny
        self.state = SimpleNamespace(total_resources=resources)
        self.plugins: dict[str, object] = {}
        self.events: list[dict[str, Any]] = []
        self.closed_for: list[str] = []
        self.loop = SimpleNamespace(
            add_callback=lambda function, *args, **kwargs: function(*args, **kwargs),
            call_later=lambda delay, function, **kwargs: function(**kwargs),
        )

    def log_event(self, topic: str, message: dict[str, Any]) -> None:
        assert topic == ENGINE_TOPIC
        self.events.append(message)

    def close(self, reason: str) -> None:
        self.closed_for.append(reason)


def stub_spec(name: str = "stub", **engine_args: Any) -> EngineSpec:
    return EngineSpec(name, factory="tests.stub_engine:StubEngine", engine_args=engine_args)


@asynccontextmanager
async def hosting(spec: EngineSpec = SCRIPTED, worker: FakeWorker | None = None) -> AsyncIterator[GameHost]:
    worker = worker or FakeWorker(SEQ=8, GPU=1)
    host = GameHost(spec, "run-1")
    worker.plugins[host.name] = host
    await host.setup(worker)
    try:
        async with asyncio.timeout(20):
            yield host
    finally:
        del worker.plugins[host.name]
        await host.teardown(worker)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.001)


def run(scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(scenario())


async def name_of_thread(engine: Engine | None) -> str:
    return threading.current_thread().name


async def never_ending(engine: Engine | None) -> str:
    """A game that honours a cancellation by returning what it has, as `play_game` does."""
    try:
        await asyncio.sleep(3600)
    except asyncio.CancelledError:
        return "cancelled"
    return "ended"


async def one_request(engine: Engine | None) -> str:
    assert engine is not None
    reply = await engine.generate([{"role": "user", "content": "'[a]'"}], SamplingSpec(), n=1, seed=0, adapter=None)
    return reply.completions[0].text


def test_it_survives_pickling_before_it_lives() -> None:
    host = pickle.loads(pickle.dumps(GameHost(stub_spec(latency_s=1.0), "run-1")))
    assert host.spec == stub_spec(latency_s=1.0) and host.run_id == "run-1"


@pytest.mark.parametrize("factory", ["", "tasks.engine", "tasks.engine:", ":VLLMEngine"])
def test_a_factory_that_names_no_class_is_refused_on_the_driver(factory: str) -> None:
    with pytest.raises(ConfigError, match=r"the engine factory is .*, expected 'package\.module:Class'"):
        GameHost(EngineSpec("model", factory=factory), "run-1")


def test_games_run_on_the_hosts_own_thread_and_their_results_come_back() -> None:
    async def scenario() -> None:
        async with hosting() as host:
            assert await host.run(name_of_thread, "game", Mode.TRAIN) == host.name
        assert host.name not in {thread.name for thread in threading.enumerate()}

    run(scenario)


def test_games_wait_for_the_engine_and_then_for_a_place() -> None:
    async def scenario() -> None:
        async with hosting(stub_spec(start_s=0.05)) as host:
            host.set_lane_limits({"train": 2, "eval": 1})
            games = [asyncio.create_task(host.run(never_ending, str(i), Mode.TRAIN)) for i in range(3)]
            games.append(asyncio.create_task(host.run(never_ending, "eval", Mode.EVAL)))
            assert host.figures().state is EngineState.STARTING and host.figures().running_games == 0
            await until(lambda: host.figures().running_games == 3)
            host.set_lane_limits({"train": None})
            await until(lambda: host.figures().running_games == 4)
            host.cancel_games()
            assert await asyncio.gather(*games) == ["cancelled"] * 4
            await until(lambda: host.figures().running_games == 0)

    run(scenario)


def test_cancelling_by_id_leaves_the_others_alone() -> None:
    async def scenario() -> None:
        async with hosting() as host:
            games = {name: asyncio.create_task(host.run(never_ending, name, Mode.TRAIN)) for name in "abc"}
            await until(lambda: host.figures().running_games == 3)
            host.cancel_games(["a", "c", "not here"])
            assert await games["a"] == await games["c"] == "cancelled"
            assert not games["b"].done()
            host.cancel_games(["b"])
            assert await games["b"] == "cancelled"

    run(scenario)


def test_a_game_cancelled_before_it_began_says_so() -> None:
    async def scenario() -> None:
        async with hosting() as host:
            host.set_lane_limits({"train": 0})
            game = asyncio.create_task(host.run(never_ending, "early", Mode.TRAIN))
            await asyncio.sleep(0)  # handed over, and not yet a task over there
            host.cancel_games(["early"])
            with pytest.raises(GameCancelledError, match="game early was cancelled before it had a result"):
                await game

    run(scenario)


def test_a_host_that_ends_answers_for_every_game() -> None:
    async def scenario() -> None:
        async with hosting() as host:
            host.set_lane_limits({"train": 1})
            games = [asyncio.create_task(host.run(never_ending, str(i), Mode.TRAIN)) for i in range(2)]
            await until(lambda: host.figures().running_games == 1)
        playing, waiting = await asyncio.gather(*games, return_exceptions=True)
        assert playing == "cancelled" and isinstance(waiting, GameCancelledError)
        with pytest.raises(GameCancelledError, match="game late was not begun: its host has stopped"):
            await host.run(never_ending, "late", Mode.TRAIN)

    run(scenario)


def test_what_a_game_raises_comes_back() -> None:
    async def broken(engine: Engine | None) -> str:
        raise LookupError("no such card")

    async def scenario() -> None:
        async with hosting() as host:
            with pytest.raises(LookupError, match="no such card"):
                await host.run(broken, "game", Mode.TRAIN)
            assert await host.run(name_of_thread, "next", Mode.TRAIN) == host.name

    run(scenario)


def test_a_dead_engine_is_rebuilt_once_and_the_second_death_is_told_to_all() -> None:
    async def scenario() -> None:
        worker = FakeWorker(SEQ=8, GPU=1)
        async with hosting(stub_spec("dies-twice", die_after=4, deaths=2, latency_s=0.01), worker) as host:
            for restarts in (0, 1):
                await until(lambda: host.figures().state is EngineState.READY)
                assert host.figures().restarts == restarts
                games = [host.run(one_request, str(i), Mode.TRAIN) for i in range(4)]
                outcomes = await asyncio.gather(*games, return_exceptions=True)
                assert [type(outcome) for outcome in outcomes] == [EngineDiedError] * 4
            await until(lambda: host.figures().state is EngineState.FAILED)
            with pytest.raises(EngineStartError, match="died a second time: the stub engine was told to die"):
                await host.run(one_request, "late", Mode.TRAIN)
        assert worker.closed_for == []
        changes = [(event["state"], event["restarts"]) for event in worker.events]
        assert list(dict.fromkeys(changes)) == [
            ("starting", 0), ("ready", 0), ("starting", 1), ("ready", 1), ("failed", 1), ("stopped", 1),
        ]  # fmt: skip

    run(scenario)


def test_games_go_on_after_the_rebuild() -> None:
    async def scenario() -> None:
        async with hosting(stub_spec("dies-once", die_after=1)) as host:
            with pytest.raises(EngineDiedError):
                await host.run(one_request, "game", Mode.TRAIN)
            assert await host.run(one_request, "again", Mode.TRAIN) == "I choose \\boxed{[a]}"

    run(scenario)


def test_an_engine_that_cannot_start_reports_and_closes_its_worker() -> None:
    async def scenario() -> None:
        worker = FakeWorker(SEQ=8, GPU=1)
        async with hosting(stub_spec(fail_start="no such card"), worker) as host:
            with pytest.raises(EngineStartError, match="RuntimeError: no such card"):
                await host.run(one_request, "game", Mode.TRAIN)
            await until(lambda: bool(worker.closed_for))
        assert worker.closed_for == ["the engine cannot start: RuntimeError: no such card"]
        failed = next(event for event in worker.events if event["state"] == "failed")
        assert failed["reason"] == "RuntimeError: no such card"

    run(scenario)


@pytest.mark.parametrize(
    ("spec", "resources", "lacking"),
    [
        (stub_spec(), {"LEARNER": 1}, "the worker offers no GPU and no SEQ"),
        (stub_spec(), {"SEQ": 4}, "the worker offers no GPU"),
        (SCRIPTED, {"GPU": 1}, "the worker offers no SEQ"),
    ],
)
def test_workers_that_do_not_offer_what_games_need_are_left_alone(
    spec: EngineSpec, resources: dict[str, float], lacking: str
) -> None:
    async def scenario() -> None:
        worker = FakeWorker(**resources)
        async with hosting(spec, worker) as host:
            assert [(event["state"], event["reason"]) for event in worker.events] == [("stopped", lacking)]
            with pytest.raises(GameCancelledError, match=lacking):
                await host.run(never_ending, "game", Mode.TRAIN)

    run(scenario)


def test_a_scripted_run_needs_no_gpu() -> None:
    async def scenario() -> None:
        async with hosting(SCRIPTED, FakeWorker(SEQ=4)) as host:
            await host.run(name_of_thread, "game", Mode.TRAIN)

    run(scenario)


def test_events_are_plain_figures() -> None:
    async def scenario() -> None:
        worker = FakeWorker(SEQ=8, GPU=1)
        async with hosting(stub_spec(), worker) as host:
            await host.run(one_request, "game", Mode.TRAIN)
        assert all(type(event["state"]) is str for event in worker.events)  # msgpack takes no subclass of str
        figures = EngineFigures(**worker.events[-1])
        assert figures.worker == worker.address and figures.generated_tokens > 0 and figures.prompt_tokens > 0

    run(scenario)


def test_a_successor_waits_until_the_engine_before_it_is_down(tmp_path: Any) -> None:
    async def scenario() -> None:
        worker, log = FakeWorker(SEQ=8, GPU=1), tmp_path / "log"
        first, second = (GameHost(stub_spec(log=str(log)), run_id) for run_id in ("run-1", "run-2"))
        await first.setup(worker)
        await until(lambda: first.figures().state is EngineState.READY)
        await asyncio.gather(first.teardown(worker), second.setup(worker))
        await until(lambda: second.figures().state is EngineState.READY)
        await second.teardown(worker)
        assert [line.split()[0] for line in log.read_text().splitlines()] == ["start", "stop", "start", "stop"]

    run(scenario)


@pytest.mark.parametrize(("nanny", "ignored"), [("tcp://192.0.2.1:4001", True), (None, False)])
def test_only_a_worker_in_a_process_of_its_own_ignores_ctrl_c(
    nanny: str | None, ignored: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    handlers: list[tuple[object, object]] = []
    monkeypatch.setattr(signal, "signal", lambda *handler: handlers.append(handler))

    async def scenario() -> None:
        await GameHost(SCRIPTED, "run-1").setup(FakeWorker(nanny=nanny))

    run(scenario)
    assert ((signal.SIGINT, signal.SIG_IGN) in handlers) is ignored


def test_the_driver_talks_to_hosts_through_functions() -> None:
    async def scenario() -> None:
        worker = FakeWorker(SEQ=8, GPU=1)
        async with hosting(worker=worker) as host:
            set_lane_limits({"train": 1}, dask_worker=worker)
            games = [asyncio.create_task(host.run(never_ending, name, Mode.TRAIN)) for name in "ab"]
            await until(lambda: host.figures().running_games == 1)
            assert host_state(dask_worker=worker) == host.figures()
            with pytest.raises(ConfigError, match="lane 'test' is unknown"):
                set_lane_limits({"test": 1}, dask_worker=worker)
            cancel_games(None, dask_worker=worker)
            assert len(await asyncio.gather(*games, return_exceptions=True)) == 2
        assert host_state(dask_worker=worker) is None
        set_lane_limits({"train": 1}, dask_worker=worker)
        cancel_games(None, dask_worker=worker)

    run(scenario)


def test_a_task_on_a_worker_without_a_host_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    worker = FakeWorker(SEQ=8)
    worker.plugins["shuffle"] = object()
    monkeypatch.setattr("tasks.host.get_worker", lambda: worker)
    with pytest.raises(ClusterError, match=r"has no 'selfplay-host' plugin, which games need; it has \['shuffle'\]"):
        current_host()
