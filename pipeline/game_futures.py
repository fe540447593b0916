"""Games as Dask futures: submitted pinned to an engine, heard of when they end or when their worker leaves.

Mechanism only: what to play where is `placement`, what to make of an end is `game_scheduler`. Everything that happens
reaches the driver's thread as an event from one queue, whichever thread it happened in.
"""

from __future__ import annotations

import queue
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from distributed import Client, Future
from distributed.client import ClosedClientError

from tasks.contracts import EngineFigures, EngineState, Episode, GameSpec, Mode
from tasks.errors import ClusterError
from tasks.host import ENGINE_TOPIC, cancel_games
from tasks.play import play_episode

# To fetch ten games costs little more than to fetch one, and the slots of those that ended play what was queued.
FETCH_AFTER_S = 0.02
PRIORITY = {Mode.EVAL: 10, Mode.TRAIN: 0}


@dataclass(frozen=True)
class GameEnded:
    """A game came back; one event per attempt."""

    episode: Episode
    engine: str

    @property
    def spec(self) -> GameSpec:
        """The game that was played."""
        return self.episode.spec


@dataclass(frozen=True)
class GameLost:
    """An attempt came to nothing: its worker left or its engine died. `reason` says which."""

    spec: GameSpec
    engine: str
    reason: str


@dataclass(frozen=True)
class WorkerLeft:
    """A worker is gone, and its engine with it."""

    engine: str


@dataclass(frozen=True)
class EngineReported:
    """An engine's figures, about once a second and at each change of state."""

    figures: EngineFigures


Event = GameEnded | GameLost | WorkerLeft | EngineReported


@dataclass
class _Submitted:
    spec: GameSpec
    engine: str
    future: Future | None = field(default=None, repr=False)


class GameFutures:
    """The games that are out, by key. A context manager: subscribes to worker events on entry, lets go on exit."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._out: dict[str, _Submitted] = {}
        self._inbox: queue.SimpleQueue[Future | WorkerLeft | EngineReported] = queue.SimpleQueue()

    def __enter__(self) -> GameFutures:
        self._client.subscribe_topic("all", self._on_cluster_event)
        self._client.subscribe_topic(ENGINE_TOPIC, self._on_engine_event)
        return self

    def __exit__(self, *_: object) -> None:
        self._client.unsubscribe_topic("all")
        self._client.unsubscribe_topic(ENGINE_TOPIC)
        self.abandon()

    def __len__(self) -> int:
        return len(self._out)

    @property
    def specs(self) -> list[GameSpec]:
        """The games that are out, in the order they were submitted."""
        return [game.spec for game in self._out.values()]

    def submit(self, games: Mapping[str, Sequence[GameSpec]]) -> None:
        """Submit games, by engine; one `map` per engine and lane, since a pin holds for the whole call.

        Raises:
            ClusterError: the scheduler is gone. The games count as out all the same.
        """
        for engine, specs in games.items():
            for lane in Mode:
                self._submit_lane(engine, [spec for spec in specs if spec.mode is lane], lane)

    def _submit_lane(self, engine: str, specs: list[GameSpec], lane: Mode) -> None:
        if not specs:
            return
        keys = [f"play-{spec.game_id}-{spec.attempt}-{spec.run_id}" for spec in specs]
        # Known before they are sent, so that none is lost where that fails.
        self._out |= {key: _Submitted(spec, engine) for key, spec in zip(keys, specs, strict=True)}
        try:
            futures = self._client.map(
                play_episode,
                specs,
                key=keys,
                workers=[engine],
                allow_other_workers=False,
                resources={"SEQ": 1},
                priority=PRIORITY[lane],
                pure=False,
                retries=0,
            )
        except ClosedClientError as error:
            raise ClusterError(f"the scheduler is gone: no game can be sent ({error}). Its log says why") from error
        for key, future in zip(keys, futures, strict=True):
            self._out[key].future = future
        # On the client's own loop at once, since each call from another thread would wake it and wait for it.
        self._client.loop.add_callback(self._listen, futures)

    def _listen(self, futures: Sequence[Future]) -> None:
        for future in futures:
            future.add_done_callback(self._inbox.put)

    def events(self, timeout_s: float) -> list[Event]:
        """Wait up to `timeout_s` for something to happen, then return all that has."""
        arrived: list[Future | WorkerLeft | EngineReported] = []
        try:
            arrived.append(self._inbox.get(timeout=timeout_s))
            time.sleep(FETCH_AFTER_S)
            while True:
                arrived.append(self._inbox.get_nowait())
        except queue.Empty:
            pass
        done = [item for item in arrived if isinstance(item, Future) and item.key in self._out]
        notices = [item for item in arrived if not isinstance(item, Future)]
        left = [item.engine for item in notices if isinstance(item, WorkerLeft)]
        return [*self._collect(done), *notices, *self._lost_with(left)]

    def _collect(self, done: list[Future]) -> list[Event]:
        """Turn finished futures into events. One whose worker or scheduler died before it came is a lost attempt."""
        events: list[Event] = []
        finished = {future.key: future for future in done if future.status == "finished"}
        # `skip` leaves out what is cancelled while we wait, as `_on_cluster_event` does for a worker that left.
        episodes: list[Episode] = []
        with suppress(OSError, ClosedClientError):
            episodes = self._client.gather(list(finished.values()), errors="skip") if finished else []
        fetched = {(episode.spec.game_id, episode.spec.attempt): episode for episode in episodes}
        for future in done:
            game = self._out.pop(future.key)
            episode = fetched.get((game.spec.game_id, game.spec.attempt))
            if episode is not None:
                events.append(GameEnded(episode, game.engine))
            else:
                events.append(GameLost(game.spec, game.engine, _why(future, game.engine)))
        return events

    def _lost_with(self, engines: list[str]) -> list[Event]:
        """The games of workers that left: nobody will answer for them, pinned as they are."""
        lost = [(key, game) for key, game in self._out.items() if game.engine in engines]
        for key, _ in lost:
            del self._out[key]
        return [GameLost(game.spec, game.engine, f"worker {game.engine} left") for _, game in lost]

    def cancel(self, engines: Sequence[str]) -> None:
        """Ask these engines to end all their games now; the games come back as cancelled episodes."""
        if engines:
            self._client.run(cancel_games, None, workers=list(engines), on_error="ignore")

    def abandon(self) -> None:
        """Let go of every game that is still out, without an event."""
        futures = [game.future for game in self._out.values() if game.future is not None]
        self._out.clear()
        if futures:
            self._client.cancel(futures, force=True)

    async def _on_cluster_event(self, event: tuple[float, Any]) -> None:
        """On the client's own loop: note a worker that left, and free a `gather` that waits for its results."""
        message = event[1]
        if not isinstance(message, dict) or message.get("action") != "remove-worker":
            return
        futures = [game.future for game in list(self._out.values()) if game.engine == message["worker"] and game.future]
        self._inbox.put(WorkerLeft(message["worker"]))
        if futures:
            await self._client.cancel(futures, asynchronous=True, force=True)

    def _on_engine_event(self, event: tuple[float, Any]) -> None:
        figures = dict(event[1])
        self._inbox.put(EngineReported(EngineFigures(**{**figures, "state": EngineState(figures["state"])})))


def _why(future: Future, engine: str) -> str:
    if future.status == "error":
        error = future.exception()
        return f"{type(error).__name__}: {error}"
    return f"worker {engine} left"
