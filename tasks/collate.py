"""A micro-batch as tensors: padded rows of tokens, and of each trained token its place and what was recorded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tasks.batch import trained_spans
from tasks.prefixes import Row


@dataclass(frozen=True)
class MicroBatch:
    """Rows of T tokens, padded on the right, and N trained tokens.

    `positions_BT` is a token's place in its own sequence; `mask_B1TT` says which tokens (last dimension) each token
    attends to. Both are None where each row is one sequence: plain causal attention has faster kernels. The token
    `targets_N` is predicted at (`rows_N`, `places_N`), the place of the token before it. `lags_N` counts the policy
    versions between the one that generated it and the batch's.
    """

    ids_BT: Tensor
    positions_BT: Tensor | None
    mask_B1TT: Tensor | None
    rows_N: Tensor
    places_N: Tensor
    targets_N: Tensor
    recorded_N: Tensor
    advantages_N: Tensor
    lags_N: Tensor


def collate(rows: Sequence[Row], policy_version: int, device: torch.device) -> MicroBatch:
    """Rows as one micro-batch on `device`. Flagged steps are left untrained."""
    length = max(len(row.token_ids) for row in rows)
    places: list[tuple[int, int]] = []
    targets: list[int] = []
    lags: list[int] = []
    recorded: list[float] = []
    advantages: list[float] = []
    for number, row in enumerate(rows):
        for sample, path in zip(row.samples, row.paths, strict=True):
            for span in trained_spans(sample):
                places += [(number, place) for place in path[span.start - 1 : span.stop - 1]]
                targets += sample.token_ids[span.start : span.stop]
                lags += [policy_version - sample.policy_version] * (span.stop - span.start)
                recorded += span.logprobs
                advantages += [span.reward] * (span.stop - span.start)
    shared = any(len(row.samples) > 1 for row in rows)
    rows_N, places_N = torch.tensor(places, dtype=torch.long, device=device).reshape(-1, 2).unbind(dim=1)
    return MicroBatch(
        # Any id and any position will do for padding: no other token attends to it.
        ids_BT=_padded([row.token_ids for row in rows], length, device),
        positions_BT=_padded([row.positions for row in rows], length, device) if shared else None,
        mask_B1TT=_mask(rows, length, device) if shared else None,
        rows_N=rows_N,
        places_N=places_N,
        targets_N=torch.tensor(targets, dtype=torch.long, device=device),
        recorded_N=torch.tensor(recorded, dtype=torch.float32, device=device),
        advantages_N=torch.tensor(advantages, dtype=torch.float32, device=device),
        lags_N=torch.tensor(lags, dtype=torch.long, device=device),
    )


def _padded(values: Sequence[Sequence[int]], length: int, device: torch.device) -> Tensor:
    return torch.tensor([[*own, *[0] * (length - len(own))] for own in values], device=device)


def _mask(rows: Sequence[Row], length: int, device: torch.device) -> Tensor:
    """True where the token of the third dimension attends to the token of the last. Padding attends to itself."""
    ends_BT = torch.tensor([[*row.ends, *range(len(row.ends) + 1, length + 1)] for row in rows], device=device)
    places_T = torch.arange(length, device=device)
    is_before_TT = places_T[None, :] <= places_T[:, None]
    return (is_before_TT & (places_T[:, None] < ends_BT[:, None, :]))[:, None]
