"""The engines of a run: started on every worker that offers `SEQ`, watched, given their shares, stopped at the end."""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Mapping

from distributed import Client

from pipeline.adapter_desk import AdapterDesk
from pipeline.game_futures import EngineReported, Event, GameEnded, GameFutures, GameLost, WorkerLeft
from pipeline.placement import Balancer
from tasks.contracts import EngineFigures, EngineSpec, EngineState, Mode
from tasks.errors import ClusterError, EngineStartError
from tasks.guard import register, unregister
from tasks.heap import LoadedHeap
from tasks.host import GameHost, set_lane_limits

NO_ENGINE_PATIENCE_S = 30.0
RATE_WINDOW_S = 5.0


class EnginePool:
    """Engines and the games that are out on them. A context manager: engines start on entry and have stopped on exit.

    Args:
        client: the cluster.
        spec: the engine every worker starts.
        run_id: whose engines they are.
        rng: settles ties in placement.
    """

    def __init__(self, client: Client, spec: EngineSpec, run_id: str, rng: random.Random) -> None:
        self._client = client
        self._host = GameHost(spec, run_id)
        self._rng = rng
        self._desk = AdapterDesk(client)
        self.games = GameFutures(client)
        self.balancer = Balancer({}, 0.0, rng)
        self.figures: dict[str, EngineFigures] = {}
        self._tokens: dict[str, deque[tuple[float, int]]] = {}
        self._last_engine_at = time.monotonic()
        self._last_reason = ""
        self._heap = LoadedHeap()

    def __enter__(self) -> EnginePool:
        self.games.__enter__()
        self._desk.__enter__()
        register(self._client, self._host)
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._heap.take_back()
        # A scheduler that is gone cannot be told, and what it would raise here would hide that it is gone.
        if self._client.status == "running":
            self.games.__exit__(*exc_info)
            unregister(self._client)
            self._desk.__exit__(*exc_info)

    def plan(self, quotas: Mapping[Mode, int], prefetch: float) -> None:
        """Split these quotas over the engines from now on."""
        ready = {engine: slots.capacity for engine, slots in self.balancer.engines.items() if slots.ready}
        self.balancer = Balancer(quotas, prefetch, self._rng)
        for engine, capacity in ready.items():
            self.balancer.add_engine(engine, capacity)
        self._send_shares()

    @property
    def ready(self) -> list[str]:
        """Addresses of the engines that take games."""
        return [engine for engine, slots in self.balancer.engines.items() if slots.ready]

    @property
    def stage(self) -> str:
        """What the engines are doing, for a person."""
        ready, known = len(self.ready), max(len(self.ready), len(self._alive()))
        return "playing" if ready and ready == known else f"starting engines ({ready} of {known} ready)"

    @property
    def tokens_per_s(self) -> float:
        """Generated tokens per second of all engines over the last few seconds."""
        rates = []
        for samples in self._tokens.values():
            (start, before), (end, after) = samples[0], samples[-1]
            if end > start:
                rates.append((after - before) / (end - start))
        return sum(rates)

    def _alive(self) -> list[str]:
        return [
            engine
            for engine, figures in self.figures.items()
            if figures.state in (EngineState.STARTING, EngineState.READY)
        ]

    def note(self, event: Event) -> None:
        """Take in what an event says about engines; games are the caller's.

        Raises:
            EngineStartError: an engine died for the second time.
        """
        match event:
            case EngineReported(figures):
                self._note_figures(figures)
            case WorkerLeft(engine):
                self.figures.pop(engine, None)
                self._tokens.pop(engine, None)
                if self.balancer.remove_engine(engine):
                    self._send_shares()
            case GameEnded() | GameLost():
                self._heap.set_aside()
                if self.balancer.finished(event.engine, event.spec.mode):
                    self._send_shares()

    def _note_figures(self, figures: EngineFigures) -> None:
        engine = figures.worker
        known = self.figures.get(engine)
        self.figures[engine] = figures
        self._note_tokens(figures)
        if figures.state is EngineState.READY:
            if engine not in self.ready:
                self._admit(engine)
            return
        if figures.state is EngineState.FAILED:
            self._last_reason = figures.reason
            if figures.restarts and (known is None or known.state is not EngineState.FAILED):
                raise EngineStartError(
                    f"the engine on {engine} died again after it was rebuilt: {figures.reason}. Look at the worker's "
                    "log; a prompt, an adapter or too little memory that kills it once will do so again"
                )
        if self.balancer.pause_engine(engine):
            self._send_shares()

    def _note_tokens(self, figures: EngineFigures) -> None:
        now = time.monotonic()
        samples = self._tokens.setdefault(figures.worker, deque())
        if samples and figures.generated_tokens < samples[-1][1]:
            samples.clear()
        samples.append((now, figures.generated_tokens))
        while len(samples) > 2 and now - samples[0][0] > RATE_WINDOW_S:
            samples.popleft()

    def _admit(self, engine: str) -> None:
        workers = self._client.scheduler_info(n_workers=-1)["workers"]
        if engine in workers:
            self.balancer.add_engine(engine, int(workers[engine]["resources"]["SEQ"]))
            self._send_shares()

    def _send_shares(self) -> None:
        for engine, slots in self.balancer.engines.items():
            if slots.ready:
                limits = {lane.value: share for lane, share in slots.share.items()}
                self._client.run(set_lane_limits, limits, workers=[engine], on_error="ignore")

    def check(self) -> None:
        """See whether there is any engine left to wait for.

        Raises:
            EngineStartError: every engine failed to start.
            ClusterError: the scheduler is gone, or every worker left and none came back in time.
        """
        if self._alive() and self._client.status == "running":
            self._last_engine_at = time.monotonic()
        elif self._last_reason and not self._alive():
            raise EngineStartError(f"no engine is left to play on; the last one said: {self._last_reason}")
        elif time.monotonic() - self._last_engine_at > NO_ENGINE_PATIENCE_S:
            raise ClusterError(
                f"no worker with an engine for {NO_ENGINE_PATIENCE_S:.0f} s, expected at least one (the connection to "
                f"the scheduler is {self._client.status}). Workers that left or were killed say why in their logs; too "
                "little memory is the usual cause"
            )
