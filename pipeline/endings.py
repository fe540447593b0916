"""What becomes of a game that ended: its one row, then what samplers, ratings and the buffer learn from it."""

from __future__ import annotations

import logging
import math
from collections import defaultdict
from collections.abc import Iterable
from statistics import fmean

from pipeline.env_samplers import BaseEnvSampler
from pipeline.episode_store import BaseEpisodeStore
from pipeline.groups import GroupGate
from pipeline.ledger import Ledger
from pipeline.model_samplers import BaseModelSampler
from pipeline.staleness import Admission
from pipeline.tracking import BaseTracker
from tasks.contracts import Episode, Mode, Role, Status
from tasks.errors import SelfplayError, TooManyFailuresError, boundary

UNUSABLE_WARNING = 100
logger = logging.getLogger(__name__)


class Endings:
    """Deals with ended games, each once. For one thread at a time.

    Args:
        ledger: counts it.
        tracker: reports it.
        store: keeps it; None keeps none.
        gate: hands it to the buffer, with its group.
        model_sampler: hears of it, and its registry rates it.
        env_sampler: hears what it paid.
        admission: hears that it is no longer in flight.
        max_consecutive_failures: failed games in a row that are an error.
    """

    def __init__(
        self,
        ledger: Ledger,
        tracker: BaseTracker,
        store: BaseEpisodeStore | None,
        gate: GroupGate,
        model_sampler: BaseModelSampler,
        env_sampler: BaseEnvSampler,
        admission: Admission | None,
        max_consecutive_failures: int,
    ) -> None:
        self.ledger = ledger
        self.gate = gate
        self._tracker = tracker
        self._store = store
        self._model_sampler = model_sampler
        self._env_sampler = env_sampler
        self._admission = admission
        self._max_consecutive_failures = max_consecutive_failures
        self._failures_in_a_row = 0
        self._unusable_in_a_row = 0

    def finish(self, episode: Episode) -> None:
        """Record a game and let everybody learn from it.

        Raises:
            TooManyFailuresError: the budget of consecutive failures is spent.
        """
        self.record(episode)
        self.learn(episode)
        self._watch_failures(episode)
        if episode.spec.mode is Mode.TRAIN:
            self._watch_use(episode)

    def recall(self, episode: Episode, learned: bool) -> str:
        """Count a game that had its row before this run went on, and return its id.

        Args:
            episode: the game.
            learned: whether everybody has learned from it already.
        """
        self.ledger.submit([episode.spec])
        self.ledger.finish(episode)
        self._tracker.log_past_episode(episode)
        if not learned:
            self.learn(episode)
        return episode.spec.game_id

    def learn(self, episode: Episode) -> None:
        """Let everybody learn from a game that has its row."""
        self._model_sampler.registry.record(episode)
        self._model_sampler.update(episode)
        self.offer([episode])
        if episode.spec.mode is Mode.TRAIN and episode.rewards is not None:
            self._tell_env_sampler(episode)

    def offer(self, episodes: Iterable[Episode]) -> None:
        """Let the buffer have what there is to learn from games that ended, as soon as their groups are whole."""
        for episode in episodes:
            if episode.spec.mode is Mode.TRAIN:
                self.gate.add(episode)

    def record(self, episode: Episode) -> None:
        """Give a game its one row."""
        self.ledger.finish(episode)
        if self._admission is not None:
            self._admission.ended(episode)
        if self._store is not None:
            self._store.add(episode)
        self._tracker.log_episode(episode)

    def record_at_the_end(self, episode: Episode) -> None:
        """Record a game of a run that ends: a store or tracker that fails must not cost the games after it."""
        try:
            with boundary() as caught:
                self.record(episode)
        except SelfplayError as error:
            caught.error = error
        if caught.error is not None:
            logger.warning("game %s of a run that ends: %s", episode.spec.game_id, caught.summary)

    def _tell_env_sampler(self, episode: Episode) -> None:
        earned: dict[Role, list[float]] = defaultdict(list)
        for agent, reward in zip(episode.spec.agents, episode.rewards or (), strict=True):
            if reward is not None and math.isfinite(reward):
                earned[agent.role].append(reward)
        if earned[Role.ACTOR]:
            opponents = earned[Role.OPPONENT]
            self._env_sampler.update(fmean(earned[Role.ACTOR]), fmean(opponents) if opponents else None)

    def _watch_failures(self, episode: Episode) -> None:
        if episode.status is Status.CANCELLED:
            return
        self._failures_in_a_row = self._failures_in_a_row + 1 if episode.status is Status.FAILED else 0
        if self._failures_in_a_row >= self._max_consecutive_failures:
            spec = episode.spec
            raise TooManyFailuresError(
                f"{self._failures_in_a_row} games in a row failed, which is the most allowed "
                f"(max_consecutive_failures). The last one, {spec.game_id} of {spec.env_id}, said: "
                f"{episode.reason.rstrip('.')}. Look at `reason` in the episodes' shards; `selfplay show RUN` lists "
                "them"
            )

    def _watch_use(self, episode: Episode) -> None:
        """Say so where training games end, one after the other, in ways that the buffer has no use for."""
        if episode.status is Status.CANCELLED:
            return
        self._unusable_in_a_row = 0 if episode.status in self.gate.accepted else self._unusable_in_a_row + 1
        if self._unusable_in_a_row == UNUSABLE_WARNING:
            logger.warning(
                "%d training games in a row brought the buffer nothing; the last one, %s of %s, ended as '%s': %s. "
                "Give games more turns (max_turns), prompts more room (vllm.max_model_len), or keep games that the "
                "turn cap cut off (buffer.truncated: keep)",
                *(self._unusable_in_a_row, episode.spec.game_id, episode.spec.env_id, episode.status.value),
                episode.reason.rstrip("."),
            )
