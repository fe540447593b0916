"""What a training run came to, in a few numbers: from the metrics of its learning steps and the driver's books."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from pipeline.model_registry import ModelRegistry
from pipeline.staleness import Staleness
from pipeline.trainer import Trainer
from pipeline.training_log import LOG_NAME, evaluation, read_log

_LAST = 3


def training_summary(
    trainer: Trainer, staleness: Staleness, registry: ModelRegistry, run_dir: Path, seconds: float
) -> dict[str, Any]:
    """The content of `learning` in `summary.json`.

    `start_reward` is the mean raw reward of the first batch, `final_reward` that of the last three; `minutes` are of
    this life of the run; `steps` adds up the decisions trained on and those dropped for their age; `evaluation` has the
    newest ten versions that were evaluated.
    """
    progress = trainer.progress
    path = run_dir / LOG_NAME
    lines = list(read_log(path)) if path.exists() else []
    versions = [(model.uid, evaluation(registry, model.uid)) for model in registry.policy_versions()]
    return {
        "updates": progress.number,
        "policy_version": progress.version,
        "policy": registry.current().uid,
        "skipped_updates": progress.skipped,
        "start_reward": _mean(lines[:1], "reward"),
        "final_reward": _mean(lines[-_LAST:], "reward"),
        "mean_abs_logprob_diff": _mean(lines, "logprob_diff_mean"),
        "minutes": seconds / 60,
        "steps": {"trained": progress.trained, "dropped": staleness.dropped},
        "lags": {str(lag): count for lag, count in sorted(staleness.lags.items())},
        "time_shares": trainer.times.shares(),
        "evaluation": [{"version": uid, **found} for uid, found in versions if found][-10:],
    }


def _mean(lines: Sequence[Mapping[str, float]], name: str) -> float | None:
    """The mean over the learning steps that have this metric; None where none has."""
    values = [line[name] for line in lines if name in line]
    return fmean(values) if values else None
