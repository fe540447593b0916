"""`GameScheduler`: keeps games in flight over the engines and streams their results until the buffer says stop.

One thread, one loop: submit what there is room for, wait for events, deal with each. Every submitted game ends as
exactly one episode, whatever happens to its worker, its engine or the driver's plans.
"""

from __future__ import annotations

import random
import threading
import time
import uuid
from collections import defaultdict, deque
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any

from distributed import Client, get_client

from pipeline.api_keys import require_keys
from pipeline.config import VLLMConfig
from pipeline.endings import Endings
from pipeline.engine_pool import EnginePool
from pipeline.env_samplers import BaseEnvSampler
from pipeline.environments import check_environments_of
from pipeline.episode_store import BaseEpisodeStore
from pipeline.game_futures import EngineReported, Event, GameEnded, GameLost
from pipeline.game_specs import SpecBuilder
from pipeline.groups import GroupGate
from pipeline.interrupts import Interrupts
from pipeline.ledger import Ledger, Snapshot, unplayed
from pipeline.model_samplers import BaseModelSampler
from pipeline.placement import LANES_BY_PRIORITY
from pipeline.replay import ReplayBuffer
from pipeline.scheduler_options import SchedulerOptions
from pipeline.staleness import Admission
from pipeline.tracking import BaseTracker
from tasks.contracts import Episode, GameSpec, Mode, Status
from tasks.errors import ConfigError, boundary

__all__ = ["GameScheduler", "SchedulerOptions"]

TICK_S = 0.25
CANCEL_GRACE_S = 10.0
GAUGES_EVERY_S = 1.0


class GameScheduler:
    """Schedules games until the buffer signals stop, then lets the games in flight finish.

    Engines start with `collect` and stop with it. As a context manager it keeps them up in between:
    `with scheduler: scheduler.collect(8); scheduler.collect(8)`.

    Args:
        vllm_config: a mapping or a `VLLMConfig`.
        tracker: hears of every episode and of every engine's figures.
        buffer: takes the learning players' trajectories; its `continue_collection()` ends the collection.
        model_sampler: the current checkpoint and the opponents.
        env_sampler: which environment next.
        action_sampler: how evaluation games choose among completions (`default`, `majority`, `majority:5`).
        client: the cluster; `distributed.get_client()` when None.
        store: keeps every episode; None keeps none.
        seed: the same seed and configuration give the same sequence of games.
        options: how to bear with trouble.
        admission: says how many training games may begin; None leaves that to the quota alone.
        run_id: the run's identity in shards and futures; a new one when None.

    What others want to look at or change in the middle of a collection they do while they hold `between_games`: the
    collecting thread holds it whenever it deals with games.

    Raises:
        ConfigError: a setting is wrong, or there is no such environment.
    """

    def __init__(
        self,
        vllm_config: VLLMConfig | Mapping[str, Any],
        tracker: BaseTracker,
        buffer: ReplayBuffer,
        model_sampler: BaseModelSampler,
        env_sampler: BaseEnvSampler,
        action_sampler: str = "default",
        *,
        client: Client | None = None,
        store: BaseEpisodeStore | None = None,
        seed: int = 0,
        options: SchedulerOptions | None = None,
        admission: Admission | None = None,
        run_id: str | None = None,
    ) -> None:
        check_environments_of([*env_sampler.train, *env_sampler.evaluation])
        self.run_id = run_id or uuid.uuid4().hex[:12]
        self.ledger = Ledger(self.run_id)
        self.snapshot: Snapshot | None = None
        self._vllm = VLLMConfig.of(vllm_config)
        self._tracker = tracker
        self._buffer = buffer
        self._model_sampler = model_sampler
        self._env_sampler = env_sampler
        self._store = store
        self._options = options or SchedulerOptions()
        self._client = client
        self._seed = seed
        group_size = self._options.group_size
        self.between_games = threading.RLock()
        self._admission = admission
        self._endings = Endings(
            self.ledger,
            tracker,
            store,
            GroupGate(buffer, group_size, self._options.incomplete_groups),
            model_sampler,
            env_sampler,
            admission,
            self._options.max_consecutive_failures,
        )
        self._specs = SpecBuilder(self.run_id, self._vllm, env_sampler, model_sampler, action_sampler, seed, group_size)
        self._kept_pool: EnginePool | None = None
        self._waiting: dict[Mode, deque[GameSpec]] = {mode: deque() for mode in Mode}
        self._events: deque[Event] = deque()
        self._gauges_at = 0.0

    def __enter__(self) -> GameScheduler:
        self._kept_pool = self._new_pool().__enter__()
        return self

    def __exit__(self, *exc_info: object) -> None:
        pool, self._kept_pool = self._kept_pool, None
        if pool is not None:
            pool.__exit__(*exc_info)

    def _new_pool(self) -> EnginePool:
        client = self._client or get_client()
        require_keys(client, self._specs.models())
        return EnginePool(client, self._vllm.engine_spec(self._seed), self.run_id, random.Random(self._seed))

    def collect(self, num_train_workers: int, num_eval_workers: int | None = None) -> Ledger:
        """Play games until `buffer.continue_collection()` is false, then drain.

        Args:
            num_train_workers: most training games in flight.
            num_eval_workers: most evaluation games in flight; 0 and None both mean no evaluation.

        Returns:
            The books, with every game accounted for.

        Raises:
            ConfigError: a quota out of range.
            TooManyFailuresError: the budget of consecutive failures is spent.
            EngineStartError, ClusterError: no engine is left to play on.
            KeyboardInterrupt: after Ctrl-C, once the games in flight and the rest of their groups are in (or cancelled,
                after a second one).
        """
        quotas = self._check_quotas(num_train_workers, num_eval_workers or 0)
        with ExitStack() as stack:
            # First, so that Ctrl-C while engines start or stop is heard as a request, too.
            interrupts = stack.enter_context(Interrupts())
            stack.push(self._note_error)
            pool = self._kept_pool or stack.enter_context(self._new_pool())
            stack.callback(self._close_books, pool)
            stack.push(partial(self._cancel_after_error, pool))
            pool.plan(quotas, self._options.prefetch)
            self._play(pool, interrupts)
        if interrupts.draining:
            raise KeyboardInterrupt
        return self.ledger

    def _cancel_after_error(self, pool: EnginePool, kind: object, error: BaseException | None, trace: object) -> None:
        if error is None:
            return
        with self.between_games:
            cancelled = self._cancel_all(pool)
            # The error that ended the collection is the one to raise, not what the buffer now says of the rest.
            with boundary():
                self._endings.offer(cancelled)

    def _close_books(self, pool: EnginePool) -> None:
        if self.snapshot is not None:
            self.snapshot = replace(self.snapshot, stage="stopping engines")
        self.ledger.finished_at = time.time()
        self.ledger.engines = dict(pool.figures)
        self.ledger.groups = self._endings.gate.counts()
        if self._store is not None:
            self._store.flush()

    def _note_error(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if error is not None:
            self.ledger.stopped_by = f"{type(error).__name__}: {error}"

    def state(self) -> dict[str, Any]:
        """Where the sequences of games stand, for a checkpoint; to be asked while `between_games` is held."""
        return {
            "run_id": self.run_id,
            "started_at": self.ledger.started_at,
            "retried_attempts": self.ledger.retried_attempts,
            "specs": self._specs.state(),
            "env_sampler": self._env_sampler.state(),
            "model_sampler": self._model_sampler.state(),
            "gate": self._endings.gate.state(),
        }

    def restore(self, state: Mapping[str, Any], episodes: Iterable[tuple[Episode, bool]]) -> None:
        """Go on from what `state` returned; to be called before `collect`.

        Games that were out then, or begun later, and have no row are none of this run's any more.

        Args:
            state: of a scheduler with the same `run_id` and settings.
            episodes: every game that has its row, and whether the state knows of it; from the others everybody learns.
        """
        self.ledger.started_at = state["started_at"]
        self.ledger.retried_attempts = state["retried_attempts"]
        self._env_sampler.restore(state["env_sampler"])
        self._model_sampler.restore(state["model_sampler"])
        self._endings.gate.restore(state["gate"])
        known = [self._endings.recall(episode, learned) for episode, learned in episodes]
        self._endings.gate.close_open()
        self._specs.restore(state["specs"], known)

    def _check_quotas(self, train: int, evaluation: int) -> dict[Mode, int]:
        if train < 1:
            raise ConfigError(f"num_train_workers is {train}, expected at least 1")
        if evaluation < 0:
            raise ConfigError(f"num_eval_workers is {evaluation}, expected 0 or more")
        if evaluation and not self._env_sampler.evaluation:
            raise ConfigError(
                f"num_eval_workers is {evaluation}, but the environment sampler has no evaluation environments: give "
                "it some (`environments.eval`) or set num_eval_workers to 0"
            )
        return {Mode.TRAIN: train, Mode.EVAL: evaluation}

    def _play(self, pool: EnginePool, interrupts: Interrupts) -> None:
        while not interrupts.cancelling:
            with self.between_games:
                stopping = interrupts.draining or (bool(pool.ready) and not self._buffer.continue_collection())
                self._submit(pool, new_games=not stopping)
                self._report(pool)
                if stopping and not len(pool.games) and not any(self._waiting.values()):
                    break
            self._events.extend(pool.games.events(TICK_S))
            with self.between_games:
                while self._events:
                    event = self._events.popleft()
                    pool.note(event)
                    self._deal_with(event)
                pool.check()
        else:
            with self.between_games:
                self._endings.offer(self._cancel_all(pool))
        self.ledger.stopped_by = {0: "buffer", 1: "interrupt"}.get(interrupts.count, "cancel")

    def _submit(self, pool: EnginePool, *, new_games: bool) -> None:
        batch: dict[str, list[GameSpec]] = defaultdict(list)
        try:
            for lane in LANES_BY_PRIORITY:
                for _ in range(pool.balancer.room(lane)):
                    waiting = self._waiting[lane]
                    if not waiting and new_games and self._admits(lane):
                        # A group is begun as a whole, and finished: what there is no room for yet waits its turn.
                        specs = self._specs.train_group() if lane is Mode.TRAIN else [self._specs.evaluation()]
                        self.ledger.submit(specs)
                        if self._admission is not None:
                            self._admission.started(specs)
                        waiting.extend(specs)
                    if not waiting:
                        break
                    batch[pool.balancer.place(lane)].append(waiting.popleft())
        finally:
            # An error of the user's sampler must not lose the games that were placed before it.
            pool.games.submit(batch)

    def _admits(self, lane: Mode) -> bool:
        return lane is Mode.EVAL or self._admission is None or self._admission.room() > 0

    def _deal_with(self, event: Event) -> None:
        match event:
            case EngineReported(figures):
                self._tracker.log_engine(figures)
            case GameEnded(episode):
                self._endings.finish(episode)
            case GameLost(spec, _, reason):
                if spec.attempt < self._options.retries:
                    self.ledger.retry()
                    self._waiting[spec.mode].append(replace(spec, attempt=spec.attempt + 1))
                else:
                    self._endings.finish(unplayed(spec, Status.FAILED, f"{reason} ({spec.attempt + 1} attempts)"))

    def _cancel_all(self, pool: EnginePool) -> list[Episode]:
        """End every game that is out and record it; what does not answer in time is recorded as never played.

        Returns:
            What was recorded: the buffer has not seen it yet.
        """
        waiting = [spec for queue in self._waiting.values() for spec in queue]
        for queue in self._waiting.values():
            queue.clear()
        ended: list[Episode] = []
        deadline = time.monotonic() + CANCEL_GRACE_S
        # A cluster that is gone must not keep the games of its driver from being recorded.
        with boundary() as cluster:
            pool.games.cancel(list(pool.figures))
        while True:
            # What an error left undealt with comes first.
            while self._events:
                event = self._events.popleft()
                if isinstance(event, GameEnded):
                    self._endings.record_at_the_end(event.episode)
                    ended.append(event.episode)
                elif isinstance(event, GameLost):
                    waiting.append(event.spec)
            if not len(pool.games) or cluster.error is not None or time.monotonic() > deadline:
                break
            with boundary() as cluster:
                self._events.extend(pool.games.events(TICK_S))
        for spec in waiting + pool.games.specs:
            ended.append(unplayed(spec, Status.CANCELLED, "cancelled before it was played to its end"))
            self._endings.record_at_the_end(ended[-1])
        with boundary():
            pool.games.abandon()
        return ended

    def _report(self, pool: EnginePool) -> None:
        """Refresh the snapshot, and about once a second the tracker's gauges."""
        ledger, balancer = self.ledger, pool.balancer
        outstanding = sum(balancer.outstanding(lane) for lane in Mode)
        in_flight = balancer.in_flight()
        evaluation = [tally for tally in ledger.environments.values() if tally.mode == Mode.EVAL]
        self.snapshot = Snapshot(
            stage=pool.stage,
            seconds=time.time() - ledger.started_at,
            done={mode: ledger.done(mode) for mode in Mode},
            in_flight=in_flight,
            queued=outstanding - in_flight,
            failed=ledger.failed,
            tokens_per_s=pool.tokens_per_s,
            eval_wins=sum(tally.policy_wins for tally in evaluation),
            eval_results=sum(tally.policy_results for tally in evaluation),
            engines=len(pool.ready),
        )
        now = time.monotonic()
        if now - self._gauges_at >= GAUGES_EVERY_S:
            self._gauges_at = now
            self._tracker.log_collection(
                {"in_flight": in_flight, "queued": outstanding - in_flight, "tokens_per_s": self.snapshot.tokens_per_s}
            )
