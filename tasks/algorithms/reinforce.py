"""REINFORCE with truncated importance weights (Williams 1992; truncation: Espeholt et al. 2018, arXiv 1802.01561)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

from tasks.errors import ConfigError

if TYPE_CHECKING:
    from torch import Tensor

    from tasks.algorithms import TrainedTokens

Length = Literal["max_tokens", "token_mean"]


@dataclass(frozen=True)
class Reinforce:
    """loss = - sum over tokens of min(pi/mu, `max_ratio`) * advantage * log pi, divided as `length` says.

    The weight has no gradient. It corrects for tokens sampled from an older policy mu, and for the difference between
    engine and learner; truncated, it trades a little bias for bounded variance.

    `length` "max_tokens" divides each step's sum by `max_tokens` and averages over the batch's steps: a token counts
    the same in a long completion and in a short one (Dr. GRPO: Liu et al. 2025, arXiv 2503.20783). "token_mean"
    averages over all tokens of the batch.

    Raises:
        ConfigError: `length` is no such word, or `max_ratio` is not above 0.
    """

    max_tokens: int
    length: Length = "max_tokens"
    max_ratio: float = 2.0

    def __post_init__(self) -> None:
        if self.length not in get_args(Length):
            raise ConfigError(f"reinforce: length is {self.length!r}; expected one of {', '.join(get_args(Length))}")
        if not self.max_ratio > 0:
            raise ConfigError(f"reinforce: max_ratio is {self.max_ratio}; expected a number above 0, such as 2.0")

    def loss(self, tokens: TrainedTokens) -> Tensor:
        """The micro-batch's share of the loss."""
        weights_N = tokens.ratios_N.clamp(max=self.max_ratio) * tokens.advantages_N
        divisor = tokens.batch_tokens if self.length == "token_mean" else tokens.batch_steps * self.max_tokens
        return -(weights_N * tokens.logprobs_N).sum() / divisor
