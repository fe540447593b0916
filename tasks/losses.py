"""Log-probabilities of chosen tokens, and what is measured with them: pure functions of tensors.

A suffix names a tensor's shape: N trained tokens of a micro-batch, H hidden size, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.utils.checkpoint import checkpoint

CHUNK_LOGITS = 2**24  # logits held at once, as float32: 64 MB, and a few copies of it on the way

Head = Callable[[Tensor], Tensor]


def token_logprobs(hidden_NH: Tensor, targets_N: Tensor, head: Head, temperature: float) -> tuple[Tensor, Tensor]:
    """The log-probability of each target and the entropy (nats, no gradient) of the distribution it is drawn from.

    The vocabulary is seen in chunks of tokens, forward and backward: a chunk's logits are computed again for its
    gradient instead of being kept.

    Args:
        hidden_NH: last hidden state at the position before each target.
        targets_N: token ids, at least one.
        head: hidden states -> logits.
        temperature: logits are divided by it, as those that were sampled from.

    Returns:
        logprobs_N and entropy_N, float32.
    """
    vocabulary = head(hidden_NH[:1].detach()).shape[-1]
    chunk = max(1, CHUNK_LOGITS // vocabulary)
    pieces = [
        checkpoint(
            _chunk_logprobs,
            hidden_NH[begin : begin + chunk],
            targets_N[begin : begin + chunk],
            head,
            temperature,
            use_reentrant=False,
            preserve_rng_state=False,
        )
        for begin in range(0, len(targets_N), chunk)
    ]
    return torch.cat([logprobs for logprobs, _ in pieces]), torch.cat([entropy for _, entropy in pieces])


def _chunk_logprobs(hidden_NH: Tensor, targets_N: Tensor, head: Head, temperature: float) -> tuple[Tensor, Tensor]:
    logits_NV = head(hidden_NH).float() / temperature
    logprobs_N = -cross_entropy(logits_NV, targets_N, reduction="none")
    # Last, so that the computation for the gradient, which stops when it has what it needs, leaves it out.
    with torch.no_grad():
        logprobs_NV = logits_NV.log_softmax(dim=-1)
        entropy_N = -(logprobs_NV.exp() * logprobs_NV).sum(dim=-1)
    return logprobs_N, entropy_N


def approximate_kl(logprobs_N: Tensor, recorded_N: Tensor) -> Tensor:
    """KL(mu || pi) of each token, estimated as r - 1 - log r with r = pi/mu: never negative (Schulman 2020, "k3")."""
    difference_N = logprobs_N.detach() - recorded_N
    return difference_N.exp() - 1 - difference_N
