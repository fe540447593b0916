"""A micro-batch as tensors: padded token ids, and for each trained token where it is and what was recorded of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tasks.batch import trained_spans
from tasks.learner_contracts import LearnerSample


@dataclass(frozen=True)
class MicroBatch:
    """`ids_BT` is padded on the right; the other tensors have one entry for each of the N trained tokens.

    The token `targets_N` is predicted at (`rows_N`, `positions_N`), the position before its own. `lags_N` counts the
    policy versions between the one that generated it and the batch's.
    """

    ids_BT: Tensor
    rows_N: Tensor
    positions_N: Tensor
    targets_N: Tensor
    recorded_N: Tensor
    advantages_N: Tensor
    lags_N: Tensor


def collate(samples: Sequence[LearnerSample], policy_version: int, device: torch.device) -> MicroBatch:
    """Sequences as one micro-batch on `device`. Flagged steps are left untrained."""
    longest = max(len(sample.token_ids) for sample in samples)
    # Any id will do for padding, and no attention mask is needed: tokens do not attend to what comes after them.
    ids = [[*sample.token_ids, *[0] * (longest - len(sample.token_ids))] for sample in samples]
    rows: list[int] = []
    positions: list[int] = []
    recorded: list[float] = []
    advantages: list[float] = []
    lags: list[int] = []
    for row, sample in enumerate(samples):
        for span in trained_spans(sample):
            length = span.stop - span.start
            rows += [row] * length
            positions += range(span.start - 1, span.stop - 1)
            recorded += span.logprobs
            advantages += [span.reward] * length
            lags += [policy_version - sample.policy_version] * length
    ids_BT = torch.tensor(ids, device=device)
    rows_N = torch.tensor(rows, dtype=torch.long, device=device)
    positions_N = torch.tensor(positions, dtype=torch.long, device=device)
    return MicroBatch(
        ids_BT=ids_BT,
        rows_N=rows_N,
        positions_N=positions_N,
        targets_N=ids_BT[rows_N, positions_N + 1],
        recorded_N=torch.tensor(recorded, dtype=torch.float32, device=device),
        advantages_N=torch.tensor(advantages, dtype=torch.float32, device=device),
        lags_N=torch.tensor(lags, dtype=torch.long, device=device),
    )
