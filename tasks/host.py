"""The plugin that makes a Dask worker a host of games: one event loop in a thread, the engine and every game on it.

Dask's own loop stays free, no token crosses Dask's comms and no game costs a thread. `play_episode` is an async Dask
task that hands its game over with `GameHost.run`; the driver talks to hosts through the module-level functions, sent
with `Client.run`, and hears from them as worker events on `ENGINE_TOPIC`.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import signal
import threading
from collections.abc import Callable, Collection, Coroutine, Mapping
from contextlib import suppress
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from distributed import Worker, WorkerPlugin, get_worker

from tasks.api_agent import close_endpoints
from tasks.contracts import EngineFigures, EngineSpec, EngineState, Mode
from tasks.engine_keeper import Engine, EngineKeeper, EngineLoad
from tasks.errands import Errands
from tasks.errors import ClusterError, ConfigError, EngineDiedError, GameCancelledError
from tasks.heap import LoadedHeap
from tasks.lanes import Lanes, checked_limits

__all__ = [
    "ENGINE_TOPIC",
    "HOST_NAME",
    "Engine",
    "EngineLoad",
    "GameHost",
    "cancel_games",
    "current_host",
    "host_state",
    "set_lane_limits",
]

ENGINE_TOPIC = "selfplay-engine"
HOST_NAME = "selfplay-host"
REPORT_EVERY_S = 1.0
CLOSE_AFTER_S = 2.0
GAMES_TIMEOUT_S = 5.0
THREAD_TIMEOUT_S = 30.0

logger = logging.getLogger(__name__)
T = TypeVar("T")

# The last host thread of each worker: a new host waits for it, since two engines do not fit one accelerator.
_threads: WeakKeyDictionary[Worker, threading.Thread] = WeakKeyDictionary()


class GameHost(WorkerPlugin):  # type: ignore[misc]  # distributed is untyped
    """Hosts the games of one run on a worker that offers `SEQ`, and `GPU` too when there is an engine.

    Registered with `tasks.guard.register`. Workers that offer neither (learners, strangers) are left alone: their host
    is `stopped` and plays nothing. The instance is pickled on the driver and comes to life on each worker in `setup`.

    Args:
        spec: the engine to start; without a factory all players are scripted and the host is ready at once.
        run_id: the run the games belong to.

    Raises:
        ConfigError: `spec.factory` is not of the form `package.module:Class`.
    """

    name = HOST_NAME

    def __init__(self, spec: EngineSpec, run_id: str) -> None:
        if spec.factory is not None and not all(spec.factory.partition(":")):
            raise ConfigError(f"the engine factory is {spec.factory!r}, expected 'package.module:Class'")
        self.spec = spec
        self.run_id = run_id
        self._lanes = Lanes()
        self._keeper = EngineKeeper(spec, self._engine_changed, self._close_worker)
        self._games: dict[asyncio.Task[Any], str] = {}
        self._ending = asyncio.Event()
        self._heap = LoadedHeap()
        self._worker: Worker | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._errands: Errands | None = None
        self._thread: threading.Thread | None = None

    async def setup(self, worker: Worker) -> None:
        """Start the host's thread, and the engine on it; return at once, because Dask's loop waits here."""
        _ignore_ctrl_c(worker)
        self._worker = worker
        needed = {"SEQ"} if self.spec.factory is None else {"SEQ", "GPU"}
        lacking = needed - worker.state.total_resources.keys()
        if lacking:
            self._keeper.decline(f"the worker offers no {' and no '.join(sorted(lacking))}")
            return
        self._loop = asyncio.new_event_loop()
        self._errands = Errands(self._loop)
        arguments = (self._loop, self._errands, _threads.get(worker))
        self._thread = threading.Thread(target=self._thread_main, args=arguments, name=HOST_NAME, daemon=True)
        _threads[worker] = self._thread
        self._thread.start()

    async def teardown(self, worker: Worker) -> None:
        """Cancel the games, stop the engine and join the thread. Returns when nothing of the run is left here."""
        loop, thread = self._loop, self._thread
        self._loop = self._errands = None
        if loop is None or thread is None:
            return
        with suppress(RuntimeError):  # the loop is closed: its thread ended early, with its traceback in the log
            loop.call_soon_threadsafe(self._ending.set)
        await asyncio.to_thread(thread.join, THREAD_TIMEOUT_S)
        if thread.is_alive():
            logger.error("The game host's thread still runs after %.0f s; a game holds it", THREAD_TIMEOUT_S)

    async def run(self, make_game: Callable[[Engine | None], Coroutine[Any, Any, T]], game_id: str, lane: Mode) -> T:
        """Play one game on the host's loop, when the engine is ready and the lane has a place; return its result.

        Called on the worker's own loop, by the Dask task that stands for the game.

        Args:
            make_game: given the engine (None when players are scripted), makes the coroutine that plays the game.
            game_id: the name `cancel_games` knows the game by.
            lane: whose limit the game counts against.

        Raises:
            GameCancelledError: cancelled before the game began, or while it ran and it did not turn that into a result.
            EngineDiedError: the engine died under the game; the host rebuilds it once.
            EngineStartError: the engine could not start, or died for the second time.
        """
        if self._errands is None:
            raise GameCancelledError(f"game {game_id} was not begun: its host has stopped. {self._keeper.reason}")
        return await self._errands.run(lambda: self._play(make_game, game_id, lane))

    async def beside_games(self, make: Callable[[Engine], Coroutine[Any, Any, T]]) -> T:
        """Run something on the engine that is no game, and takes the place of none.

        Args:
            make: given the engine, makes the coroutine.

        Raises:
            ClusterError: there is no engine, or it is not ready.
        """
        engine = self._keeper.engine
        if self._errands is None or engine is None or self._keeper.state is not EngineState.READY:
            raise ClusterError(f"the worker's engine is {self._keeper.state.value}, expected a ready one")
        return await self._errands.run(lambda: make(engine))

    def set_lane_limits(self, limits: Mapping[str, int | None]) -> None:
        """Set the most games executing here at once, by lane; None is no limit. Lanes not named keep theirs.

        Raises:
            ConfigError: a lane is unknown or a limit is negative.
        """
        checked = checked_limits(limits)
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._lanes.set_limits, checked)

    def cancel_games(self, game_ids: Collection[str] | None = None) -> None:
        """Cancel games by id, or all that were handed over so far (None); ids that are not here are passed over."""
        if self._loop is not None:
            # One turn later than asked, so that games handed over just before have become tasks.
            self._loop.call_soon_threadsafe(self._loop.call_soon, self._cancel, game_ids)

    def figures(self) -> EngineFigures:
        """Where the engine stands and how busy it is, as of the last second."""
        return EngineFigures(
            worker="" if self._worker is None else self._worker.address,
            state=self._keeper.state,
            reason=self._keeper.reason,
            running_games=self._lanes.running,
            restarts=self._keeper.restarts,
            **self._keeper.load,
        )

    def _thread_main(
        self, loop: asyncio.AbstractEventLoop, errands: Errands, predecessor: threading.Thread | None
    ) -> None:
        if predecessor is not None:
            predecessor.join(THREAD_TIMEOUT_S)
        try:
            with asyncio.Runner(loop_factory=lambda: loop) as runner:
                runner.run(self._serve())
        finally:
            errands.deliver()

    async def _serve(self) -> None:
        self._keeper.start()
        while not self._ending.is_set():
            self._report()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._ending.wait(), REPORT_EVERY_S)
        self._cancel(None)
        if self._games:
            await asyncio.wait(list(self._games), timeout=GAMES_TIMEOUT_S)
        self._report()
        self._heap.take_back()
        await self._keeper.stop()
        await close_endpoints()

    async def _play(self, make_game: Callable[[Engine | None], Coroutine[Any, Any, T]], game_id: str, lane: Mode) -> T:
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("a game is played as a task of its own")
        self._games[task] = game_id
        try:
            async with self._lanes.slot(lane):
                engine = self._keeper.engine
                try:
                    return await make_game(engine)
                except EngineDiedError as error:
                    self._keeper.lost(engine, error)
                    raise
        except asyncio.CancelledError:
            # Dask would take a CancelledError for a cancellation of its own.
            raise GameCancelledError(f"game {game_id} was cancelled before it had a result") from None
        finally:
            del self._games[task]
            self._heap.set_aside()

    def _cancel(self, game_ids: Collection[str] | None) -> None:
        for task, game_id in self._games.items():
            if game_ids is None or game_id in game_ids:
                task.cancel()

    def _engine_changed(self) -> None:
        match self._keeper.state:
            case EngineState.READY:
                self._lanes.open()
            case EngineState.FAILED:
                self._lanes.refuse(self._keeper.reason)
            case EngineState.STARTING | EngineState.STOPPED:
                self._lanes.shut()
        self._report()

    def _report(self) -> None:
        """Send the figures to whoever listens on `ENGINE_TOPIC`, as a dictionary of plain values."""
        if self._worker is None:
            return
        self._keeper.measure()
        figures = self.figures()
        self._worker.log_event(ENGINE_TOPIC, {**dataclasses.asdict(figures), "state": figures.state.value})

    def _close_worker(self, reason: str) -> None:
        """An engine that cannot start makes its worker useless: close it for good, its nanny too.

        Not at once: a driver that has only just begun to listen must hear the reason in one of the next reports.
        """
        if self._worker is not None:
            loop, close = self._worker.loop, self._worker.close
            loop.add_callback(loop.call_later, CLOSE_AFTER_S, close, reason=f"the engine cannot start: {reason}")


def current_host() -> GameHost:
    """The host of the worker that runs the calling task.

    Raises:
        ClusterError: there is none; it was never registered or the run has ended.
    """
    worker = get_worker()
    host = worker.plugins.get(HOST_NAME)
    if not isinstance(host, GameHost):
        raise ClusterError(
            f"the worker {worker.address} has no {HOST_NAME!r} plugin, which games need; it has "
            f"{sorted(worker.plugins)}. The run has ended, or `tasks.guard.register` was not called"
        )
    return host


def host_state(dask_worker: Worker) -> EngineFigures | None:
    """For `Client.run`: the figures of each worker's host; None where there is none."""
    host = dask_worker.plugins.get(HOST_NAME)
    return host.figures() if isinstance(host, GameHost) else None


def set_lane_limits(limits: Mapping[str, int | None], dask_worker: Worker) -> None:
    """For `Client.run`: `GameHost.set_lane_limits` where there is a host."""
    host = dask_worker.plugins.get(HOST_NAME)
    if isinstance(host, GameHost):
        host.set_lane_limits(limits)


def cancel_games(game_ids: Collection[str] | None, dask_worker: Worker) -> None:
    """For `Client.run`: `GameHost.cancel_games` where there is a host."""
    host = dask_worker.plugins.get(HOST_NAME)
    if isinstance(host, GameHost):
        host.cancel_games(game_ids)


def _ignore_ctrl_c(worker: Worker) -> None:
    """Leave Ctrl-C to the driver: a terminal sends it to the workers it started as well, in mid-game.

    Only in a process of the worker's own, which is one under a nanny; the nanny stops it by other means. Never undone,
    since the cluster closes after the run and another Ctrl-C may come meanwhile.
    """
    if worker.nanny is not None and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.SIG_IGN)
