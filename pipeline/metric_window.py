"""What the games and engines of a run come to, window by window: pure aggregation, no MLflow, no threads.

`RunMetrics` takes every finished game, engine report and scheduler figure, and `close` gives one number per name for
the window since the last `close`: a game costs the caller microseconds, and memory grows with names, not with games.

Names, per lane (`train`, `eval`) and environment, e.g. `train/KuhnPoker-v0-train/reward/player_0`:

- `games`, `status/<status>`: running totals; the statuses add up to the games. `failures/<kind>`: those of the failed
  games by the type of their error (`pipeline.failures`), at most 20 kinds by name.
- `reward/player_<i>`, `reward/<role>`: mean raw reward.
- `win_rate`, `draw_rate`, `loss_rate`, `forfeit_win_rate`, each by player, and by role (`actor`, `opponent`) where
  another model plays an opponent: shares of the games with an outcome, adding up to 1. `solved_rate` for one player.
- `turns`: mean decisions of the games that the environment or the turn cap ended; `turns/<role>`: those of one player.
- `format_success/<role>`, `illegal_rate/<role>`: shares of the decisions. `length_stop_rate/<role>`: share of those for
  which the model said why it stopped. `observation_tokens/<role>` (of the prompt) and `response_tokens/<role>`: means
  over those whose tokens were counted, which are none of a scripted player's and no prompts of an endpoint's.

Beside them `<lane>/games_per_s`, `collection/<figure>` (the scheduler's), `engine_<k>/<figure>` and `nonfinite/<name>`:
how many values of that name so far were no finite number (NaN, infinite, None) and were left out.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import SupportsFloat

from pipeline.failures import OTHER, failure_kind
from tasks.contracts import Choice, EngineFigures, EngineState, Episode, Mode, Role, Status
from tasks.outcomes import Outcome, forfeits, outcomes, solved

_ENDED_BY_ITSELF = frozenset({Status.COMPLETED, Status.ILLEGAL_MOVE, Status.TRUNCATED})
_MOST_FAILURE_KINDS = 20


class MetricWindow:
    """One number per name: the mean or the latest of a window's values, or a running total."""

    def __init__(self) -> None:
        self._sums: dict[str, float] = {}
        self._weights: dict[str, int] = {}
        self._latest: dict[str, float] = {}
        self._totals: dict[str, int] = {}
        self._changed: set[str] = set()

    def mean(self, name: str, value: SupportsFloat | None, n: int = 1) -> None:
        """Add a value, or the sum of `n` values, to the mean of this window."""
        number = self._number(name, value)
        if number is not None and n > 0:
            self._sums[name] = self._sums.get(name, 0.0) + number
            self._weights[name] = self._weights.get(name, 0) + n

    def latest(self, name: str, value: SupportsFloat | None) -> None:
        """Set what this window reports under `name`; the last finite value counts."""
        number = self._number(name, value)
        if number is not None:
            self._latest[name] = number

    def count(self, name: str, n: int = 1) -> None:
        """Add to a total of the whole run, reported in the windows in which it grew."""
        self._totals[name] = self._totals.get(name, 0) + n
        self._changed.add(name)

    def close(self) -> dict[str, float]:
        """What the window holds, all of it finite; then an empty window begins."""
        means = {name: total / self._weights[name] for name, total in self._sums.items()}
        totals = {name: float(self._totals[name]) for name in sorted(self._changed)}
        values = {**means, **self._latest, **totals}
        self._sums, self._weights, self._latest, self._changed = {}, {}, {}, set()
        return values

    def _number(self, name: str, value: SupportsFloat | None) -> float | None:
        """`value` as a finite number, or None after counting it under `nonfinite/`."""
        try:
            number = math.nan if value is None else float(value)
        except (TypeError, ValueError, OverflowError):
            number = math.nan
        # Beyond 1e300 a mean of finite values could overflow to infinity.
        if abs(number) <= 1e300:
            return number
        self.count(f"nonfinite/{name}")
        return None


@dataclass
class _EngineMeter:
    """What one engine generated since `since` (seconds, monotonic), as far as its reports up to `at` tell."""

    since: float
    at: float
    last: EngineFigures
    generated: int = 0
    prompt: int = 0

    def add(self, figures: EngineFigures, at: float) -> None:
        """Count what was generated since the report before; `at` in seconds, monotonic."""
        self.generated += _grown(self.last.generated_tokens, figures.generated_tokens)
        self.prompt += _grown(self.last.prompt_tokens, figures.prompt_tokens)
        self.last, self.at = figures, at

    def rates(self) -> dict[str, float]:
        """Tokens per second by name, empty before two reports; then the next window begins."""
        seconds = self.at - self.since
        if seconds <= 0:
            return {}
        rates = {"tokens_per_s": self.generated / seconds, "prompt_tokens_per_s": self.prompt / seconds}
        self.since, self.generated, self.prompt = self.at, 0, 0
        return rates


class RunMetrics:
    """The metrics of one run. Not thread-safe: the tracker holds a lock around each call.

    `episodes` counts the games finished so far, the x-axis of every metric. `engines` maps each engine's worker address
    to its name: `engine_0`, `engine_1` and so on, in order of appearance. Times are seconds of one monotonic clock.
    """

    def __init__(self, at: float) -> None:
        self.episodes = 0
        self.engines: dict[str, str] = {}
        self._opened_at = at
        self._games: dict[Mode, int] = {}
        self._failure_kinds: set[str] = set()
        self._window = MetricWindow()
        self._meters: dict[str, _EngineMeter] = {}

    def add_episode(self, episode: Episode) -> None:
        """Add one finished game, whatever its status."""
        self.add_past_episode(episode)
        self._games[episode.spec.mode] = self._games.get(episode.spec.mode, 0) + 1
        prefix = f"{episode.spec.mode}/{episode.spec.env_id}"
        if episode.status in _ENDED_BY_ITSELF:
            self._window.mean(f"{prefix}/turns", len(episode.steps))
        for role in Role:
            self._add_steps(prefix, episode, role)
        if episode.rewards is not None:
            self._add_rewards(prefix, episode, episode.rewards)

    def add_past_episode(self, episode: Episode) -> None:
        """Add to the totals alone, as for a game that is not of this window."""
        self.episodes += 1
        prefix = f"{episode.spec.mode}/{episode.spec.env_id}"
        self._window.count(f"{prefix}/games")
        self._window.count(f"{prefix}/status/{episode.status}")
        if episode.status is Status.FAILED:
            self._window.count(f"{prefix}/failures/{self._failure_kind(episode.reason)}")

    def add_engine(self, figures: EngineFigures, at: float) -> None:
        """Add one report of a ready engine, received `at`; an engine in another state has no figures.

        Token rates come from the growth of its totals; totals that shrank began again at 0 with a rebuilt engine.
        """
        if figures.state is not EngineState.READY:
            return
        name = self.engines.setdefault(figures.worker, f"engine_{len(self.engines)}")
        meter = self._meters.setdefault(name, _EngineMeter(since=at, at=at, last=figures))
        meter.add(figures, at)
        for figure in ("running_games", "running_requests", "waiting_requests", "restarts"):
            self._window.latest(f"{name}/{figure}", getattr(figures, figure))
        # None is an engine's word for "not measured yet": nothing to report, and nothing wrong.
        if figures.kv_use is not None:
            self._window.latest(f"{name}/kv_use", figures.kv_use)
        if figures.prefix_hit_rate is not None:
            self._window.latest(f"{name}/prefix_hit_rate", figures.prefix_hit_rate)

    def add_collection(self, figures: Mapping[str, SupportsFloat | None]) -> None:
        """Set figures of the scheduler, as they are now."""
        for name, value in figures.items():
            self._window.latest(f"collection/{name}", value)

    def close(self, at: float) -> dict[str, float]:
        """The metrics of the window that ends `at`, raw names to finite values; the next window begins."""
        if at > self._opened_at:
            for mode, games in self._games.items():
                self._window.latest(f"{mode}/games_per_s", games / (at - self._opened_at))
        self._opened_at, self._games = at, dict.fromkeys(self._games, 0)
        for name, meter in self._meters.items():
            for figure, rate in meter.rates().items():
                self._window.latest(f"{name}/{figure}", rate)
        return self._window.close()

    def _failure_kind(self, reason: str) -> str:
        """Its kind; `other` once there are many, so that no run can make names without end."""
        kind = failure_kind(reason)
        if len(self._failure_kinds) < _MOST_FAILURE_KINDS:
            self._failure_kinds.add(kind)
        return kind if kind in self._failure_kinds else OTHER

    def _add_steps(self, prefix: str, episode: Episode, role: Role) -> None:
        players = {agent.player_id for agent in episode.spec.agents if agent.role is role}
        steps = [step for step in episode.steps if step.player_id in players]
        choices = [step.choice for step in steps]
        stops = [choice.finish_reason for choice in choices if choice.finish_reason is not None]
        observed = [len(choice.prompt_ids) for choice in choices if choice.prompt_ids]
        answered = [tokens for tokens in map(response_tokens, choices) if tokens]
        window, n = self._window, len(steps)
        window.mean(f"{prefix}/format_success/{role}", sum(choice.format_ok for choice in choices), n)
        window.mean(f"{prefix}/illegal_rate/{role}", sum(step.illegal for step in steps), n)
        window.mean(f"{prefix}/length_stop_rate/{role}", stops.count("length"), len(stops))
        window.mean(f"{prefix}/observation_tokens/{role}", sum(observed), len(observed))
        window.mean(f"{prefix}/response_tokens/{role}", sum(answered), len(answered))
        if episode.status in _ENDED_BY_ITSELF:
            window.mean(f"{prefix}/turns/{role}", n, len(players))

    def _add_rewards(self, prefix: str, episode: Episode, rewards: Sequence[float | None]) -> None:
        agents = episode.spec.agents
        for agent, reward in zip(agents, rewards, strict=True):
            self._window.mean(f"{prefix}/reward/player_{agent.player_id}", reward)
            self._window.mean(f"{prefix}/reward/{agent.role}", reward)
        if len(agents) == 1:
            if rewards[0] is not None:
                self._window.mean(f"{prefix}/solved_rate", solved(rewards[0]))
            return
        actors = {agent.model.uid for agent in agents if agent.role is Role.ACTOR}
        # Where the same model plays both sides, the rates by role say nothing.
        rivals = any(agent.role is Role.OPPONENT and agent.model.uid not in actors for agent in agents)
        results = zip(agents, outcomes(rewards, episode.offender), forfeits(rewards, episode.offender), strict=True)
        for agent, outcome, forfeit in results:
            if outcome is None:
                continue
            result = "forfeit_win" if forfeit else outcome
            for side in (f"player_{agent.player_id}", agent.role)[: 2 if rivals else 1]:
                for rate in (*Outcome, "forfeit_win"):
                    self._window.mean(f"{prefix}/{rate}_rate/{side}", rate == result)


def response_tokens(choice: Choice) -> int:
    """Tokens of the completion: the engine's own, or as many as an endpoint says; 0 where nobody counted them."""
    return len(choice.completion_ids) or choice.generated_tokens


def _grown(before: int, after: int) -> int:
    return after - before if after >= before else after
