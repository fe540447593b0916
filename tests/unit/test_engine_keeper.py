"""An engine started, rebuilt once, stopped."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from tasks.contracts import EngineSpec, EngineState
from tasks.engine_keeper import IDLE, EngineKeeper, EngineLoad, import_engine
from tasks.errors import EngineDiedError, EngineStartError

STUB = "tests.stub_engine:StubEngine"
DEATH = EngineDiedError("core 7 is gone")


class Watched:
    """A keeper with all its states, reasons and start failures."""

    def __init__(self, factory: str | None = STUB, **engine_args: Any) -> None:
        self.seen: list[tuple[EngineState, str]] = []
        self.start_failures: list[str] = []
        spec = EngineSpec("stub", factory=factory, engine_args=engine_args)
        self.keeper = EngineKeeper(spec, self._note, self.start_failures.append)

    def _note(self) -> None:
        self.seen.append((self.keeper.state, self.keeper.reason))

    async def until(self, state: EngineState) -> None:
        async with asyncio.timeout(10):
            while self.keeper.state is not state:
                await asyncio.sleep(0.001)


def run(scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(scenario())


def test_without_an_engine_it_is_ready_at_once() -> None:
    async def scenario() -> None:
        watched = Watched(factory=None)
        watched.keeper.start()
        await watched.until(EngineState.READY)
        assert watched.keeper.engine is None and watched.keeper.load == IDLE
        await watched.keeper.stop()
        assert [state for state, _ in watched.seen] == [EngineState.READY, EngineState.STOPPED]

    run(scenario)


def test_start_and_stop(tmp_path: Path) -> None:
    async def scenario() -> None:
        watched = Watched(log=str(tmp_path / "log"))
        watched.keeper.start()
        assert watched.keeper.state is EngineState.STARTING and watched.keeper.load == IDLE
        await watched.until(EngineState.READY)
        await watched.keeper.stop()
        assert [line.split()[0] for line in (tmp_path / "log").read_text().splitlines()] == ["start", "stop"]

    run(scenario)


def test_stopping_gives_up_a_start(tmp_path: Path) -> None:
    async def scenario() -> None:
        watched = Watched(start_s=3600, log=str(tmp_path / "log"))
        watched.keeper.start()
        while watched.keeper.engine is None:
            await asyncio.sleep(0.001)
        await watched.keeper.stop()
        assert watched.seen == [(EngineState.STOPPED, "")]
        assert [line.split()[0] for line in (tmp_path / "log").read_text().splitlines()] == ["stop"]

    run(scenario)


@pytest.mark.parametrize(
    ("factory", "engine_args", "reason"),
    [
        (STUB, {"fail_start": "no such card"}, "RuntimeError: no such card"),
        (
            "tests.no_such_engine:Engine",
            {},
            "the engine 'tests.no_such_engine:Engine' cannot be imported on the worker",
        ),
        ("tests.stub_engine:NoSuchEngine", {}, "AttributeError"),
    ],
)
def test_a_failed_start_says_why(factory: str, engine_args: dict[str, Any], reason: str) -> None:
    async def scenario() -> None:
        watched = Watched(factory, **engine_args)
        watched.keeper.start()
        await watched.until(EngineState.FAILED)
        assert reason in watched.keeper.reason
        while not watched.start_failures:
            await asyncio.sleep(0.001)
        assert watched.start_failures == [watched.keeper.reason]
        await watched.keeper.stop()

    run(scenario)


def test_one_death_is_one_restart_however_many_games_saw_it() -> None:
    async def scenario() -> None:
        watched = Watched()
        watched.keeper.start()
        await watched.until(EngineState.READY)
        dead = watched.keeper.engine
        for _ in range(3):
            watched.keeper.lost(dead, DEATH)
        assert watched.seen[-1] == (EngineState.STARTING, "the engine died: core 7 is gone")
        await watched.until(EngineState.READY)
        watched.keeper.lost(dead, DEATH)  # a straggler of the first death
        assert watched.keeper.state is EngineState.READY and watched.keeper.restarts == 1
        assert watched.keeper.engine is not dead
        await watched.keeper.stop()

    run(scenario)


def test_the_second_death_is_the_last(tmp_path: Path) -> None:
    async def scenario() -> None:
        watched = Watched(log=str(tmp_path / "log"))
        watched.keeper.start()
        for _ in range(2):
            await watched.until(EngineState.READY)
            watched.keeper.lost(watched.keeper.engine, DEATH)
        assert watched.seen[-1] == (EngineState.FAILED, "the engine died a second time: core 7 is gone")
        await watched.keeper.stop()
        events = [line.split()[0] for line in (tmp_path / "log").read_text().splitlines()]
        assert events == ["start", "stop", "start", "stop"]
        assert watched.start_failures == []

    run(scenario)


class StubbornEngine:
    """Raises on the way down, and when asked for its load."""

    def __init__(self, spec: EngineSpec) -> None:
        self.stops = 0

    async def start(self) -> None:
        pass

    async def stop(self) -> None:
        self.stops += 1
        raise OSError("the core does not answer")

    def load(self) -> EngineLoad:
        raise KeyError("kv_use")


def test_an_engine_that_does_not_stop_cleanly_is_replaced_all_the_same(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        watched = Watched("tests.unit.test_engine_keeper:StubbornEngine")
        watched.keeper.start()
        await watched.until(EngineState.READY)
        dead = watched.keeper.engine
        watched.keeper.lost(dead, DEATH)
        await watched.until(EngineState.READY)
        assert isinstance(dead, StubbornEngine) and dead.stops == 1
        await watched.keeper.stop()
        assert "OSError: the core does not answer" in caplog.text

    run(scenario)


def test_an_engine_that_cannot_tell_its_load_is_only_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        watched = Watched("tests.unit.test_engine_keeper:StubbornEngine")
        watched.keeper.start()
        await watched.until(EngineState.READY)
        watched.keeper.measure()
        assert watched.keeper.load == IDLE and "KeyError('kv_use')" in caplog.text
        await watched.keeper.stop()

    run(scenario)


def test_an_import_error_says_what_was_tried() -> None:
    with pytest.raises(EngineStartError, match=r"Expected 'package\.module:Class', installed where the worker runs"):
        import_engine("tests.stub_engine")
