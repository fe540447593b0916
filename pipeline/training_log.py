"""What is written down of each learning step: metrics for the tracker, and one line of JSON in the run's folder."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean

from pipeline.intervals import wilson_interval
from pipeline.model_registry import ModelRegistry
from pipeline.replay import TrainingStep, TrajectoryBuffer
from pipeline.staleness import Staleness
from pipeline.tracking import BaseTracker
from tasks.contracts import Mode
from tasks.learner_contracts import TrainReport

LOG_NAME = "learning.jsonl"


class TrainingLog:
    """Keeps `RUN/learning.jsonl`, one object of metrics by name per learning step, and tells the tracker.

    Args:
        tracker: hears of every step.
        run_dir: the run's folder; None writes no file.
        steps: how many steps the run has taken so far; lines of later ones, which a killed run left, are removed.
    """

    def __init__(self, tracker: BaseTracker, run_dir: Path | None = None, steps: int = 0) -> None:
        self._tracker = tracker
        self._path = None if run_dir is None else run_dir / LOG_NAME
        if self._path is not None and self._path.exists():
            kept = [line for line in read_log(self._path) if line["number"] < steps]
            temporary = self._path.with_name(f".{LOG_NAME}.tmp")
            temporary.write_text("".join(json.dumps(line) + "\n" for line in kept), encoding="utf-8")
            os.replace(temporary, self._path)

    def step(self, number: int, metrics: Mapping[str, float]) -> None:
        """Take the figures of learning step `number`, counted from 0; its line is on the disk when this returns."""
        self._tracker.log_learning(metrics, number)
        if self._path is not None:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"number": number, **metrics}) + "\n")
                file.flush()
                os.fsync(file.fileno())


def read_log(path: Path) -> Iterator[dict[str, float]]:
    """The learning steps of a run; a last line that was cut off when the run was killed is left out."""
    for line in path.read_text(encoding="utf-8").splitlines(keepends=True):
        if line.endswith("\n"):
            yield json.loads(line)


def step_metrics(
    report: TrainReport,
    items: Sequence[TrainingStep],
    buffer: TrajectoryBuffer,
    staleness: Staleness,
    registry: ModelRegistry,
    shares: Mapping[str, float],
) -> dict[str, float]:
    """One learning step in numbers: what the learner reported, and what the driver knows beside it.

    `reward` is the mean raw reward in the batch, each learning player of each game counted once. `lag/share_K` is the
    share of the run's steps so far that were learned from at lag K; `baseline/ENV/player_I` the running mean that is
    subtracted from rewards; `time/PART` a share of the run's wall time before the step was published. `evaluation/*`
    are of the version before this step's, whose games have mostly ended.
    """
    rewards = {(item.game_id, item.agent.player_id): item.reward for item in items}
    metrics = {
        **report.metrics,
        "policy_version": float(report.policy_version),
        "skipped": float(report.skipped),
        "step_seconds": report.seconds,
        "reward": fmean(rewards.values()),
        "dropped_steps": float(staleness.dropped),
        "flagged_steps": float(buffer.stats().flagged),
        **{f"time/{name}": share for name, share in shares.items()},
        **_lag_shares(staleness.lags),
        **{f"baseline/{env_id}/player_{seat}": mean for (env_id, seat), mean in buffer.transforms.baselines().items()},
    }
    versions = registry.policy_versions()
    if len(versions) > 1:
        metrics |= {f"evaluation/{name}": value for name, value in evaluation(registry, versions[-2].uid).items()}
    return metrics


def _lag_shares(lags: Counter[int]) -> dict[str, float]:
    total = max(1, lags.total())
    return {f"lag/share_{lag}": count / total for lag, count in sorted(lags.items())}


def evaluation(registry: ModelRegistry, uid: str) -> dict[str, float]:
    """How one version fared in the evaluation lane: its share of wins with Wilson's 95 % interval; empty without games.

    Wins by another's illegal move count. Of single players the share that solved the game is given instead.
    """
    results = registry.results(uid, Mode.EVAL)
    versus, alone = results.versus, results.single_player
    games, wins = versus.games, versus.wins + versus.forfeit_wins
    name = "win_rate"
    if not games:
        games, wins, name = alone.games, alone.solved, "solved_rate"
    if not games:
        return {}
    low, high = wilson_interval(wins, games)
    return {name: wins / games, f"{name}_low": low, f"{name}_high": high, "games": float(games)}
