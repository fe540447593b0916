"""What is measured of one learning step, from the tokens it trained on. Means over steps or tokens, as each says."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tasks.batch import spans_of
from tasks.learner_contracts import LearnerBatch
from tasks.losses import approximate_kl


@dataclass(frozen=True)
class MeasuredTokens:
    """Trained tokens after their micro-batch went through the model; no gradient, on the CPU."""

    logprobs_N: Tensor
    recorded_N: Tensor
    entropy_N: Tensor
    lags_N: Tensor


def token_metrics(pieces: Sequence[MeasuredTokens]) -> dict[str, float]:
    """Means over all trained tokens, and how well sampler and learner agree where no version lies between them.

    `entropy` in nats; `approx_kl` of the sampler's distribution from the learner's, in nats; `ratio_*` of the
    learner's to the recorded probability; `logprob_diff_*` the absolute difference of log-probabilities at lag 0.
    """
    if not pieces:
        return {}
    logprobs_N = torch.cat([piece.logprobs_N for piece in pieces])
    recorded_N = torch.cat([piece.recorded_N for piece in pieces])
    difference_N = logprobs_N - recorded_N
    ratios_N = difference_N.exp()
    metrics = {
        "entropy": torch.cat([piece.entropy_N for piece in pieces]).mean(),
        "approx_kl": approximate_kl(logprobs_N, recorded_N).mean(),
        "ratio_mean": ratios_N.mean(),
        "ratio_max": ratios_N.max(),
    }
    current_N = difference_N[torch.cat([piece.lags_N for piece in pieces]) == 0].abs()
    if len(current_N):
        metrics |= {"logprob_diff_mean": current_N.mean(), "logprob_diff_max": current_N.max()}
    return {name: value.item() for name, value in metrics.items()}


def batch_metrics(batch: LearnerBatch, seconds: float) -> dict[str, float]:
    """What the batch itself says: sizes, advantages and lags by step, rates.

    `masked_share` is the share of steps that teach nothing: without a token, flagged, or with an advantage of 0.
    `flagged_share` is of those whose recorded log-probabilities are not finite. Tokens count prompts, too.
    """
    steps = [(sample, span) for sample in batch.samples for span in spans_of(sample)]
    tokens = sum(len(sample.token_ids) for sample in batch.samples)
    sizes = {
        "samples": len(batch.samples),
        "steps": len(steps),
        "dropped": batch.dropped,
        "samples_per_s": len(batch.samples) / seconds,
        "tokens_per_s": tokens / seconds,
    }
    if not steps:
        return sizes
    advantages = torch.tensor([span.reward for _, span in steps], dtype=torch.float64)
    lags = [batch.policy_version - sample.policy_version for sample, _ in steps]
    flagged = [span.flagged for _, span in steps]
    masked = [span.flagged or not span.logprobs or not span.reward for _, span in steps]
    return sizes | {
        "advantage_mean": advantages.mean().item(),
        "advantage_std": advantages.std(correction=0).item(),
        "lag_mean": sum(lags) / len(lags),
        "lag_max": max(lags),
        "masked_share": sum(masked) / len(steps),
        "flagged_share": sum(flagged) / len(steps),
    }


def finite(metrics: Mapping[str, float]) -> dict[str, float]:
    """The metrics that are numbers one can plot."""
    return {name: value for name, value in metrics.items() if math.isfinite(value)}
