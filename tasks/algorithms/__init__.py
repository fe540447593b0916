"""Algorithms by name: each is one file here and one line in `ALGORITHMS`. Also imported by the driver: no torch.

An algorithm says what a micro-batch's tokens contribute to the loss. All else, such as log-probabilities, gradients
and the optimiser, is the learner's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from tasks.errors import ConfigError, boundary
from tasks.names import look_up

if TYPE_CHECKING:
    from torch import Tensor

ALGORITHMS: Mapping[str, str] = {
    "reinforce": "tasks.algorithms.reinforce:Reinforce",
}


@dataclass(frozen=True)
class TrainedTokens:
    """The N trained tokens of one micro-batch, one after the other, with what an algorithm may use.

    `logprobs_N` are the model's and have a gradient; `recorded_N` those of the distribution that was sampled from.
    `advantages_N` is the advantage of the step that each token belongs to, `entropy_N` of the model's distribution, in
    nats. `batch_steps` and `batch_tokens` count the trained steps and tokens of the whole batch, both at least 1.
    """

    logprobs_N: Tensor
    recorded_N: Tensor
    advantages_N: Tensor
    entropy_N: Tensor
    batch_steps: int
    batch_tokens: int

    @property
    def ratios_N(self) -> Tensor:
        """pi / mu of each token, without gradient: pi the model in training, mu what was sampled from."""
        return (self.logprobs_N.detach() - self.recorded_N).exp()


class Algorithm(Protocol):
    """What the learner asks of an algorithm. Its class takes `max_tokens` and the keywords of `algorithm_args`."""

    def loss(self, tokens: TrainedTokens) -> Tensor:
        """The micro-batch's share of the loss, a scalar: the shares of all micro-batches add up to the batch's loss."""


def make_algorithm(name: str, max_tokens: int, arguments: Mapping[str, Any]) -> Algorithm:
    """The algorithm of that name, or a user's own, named as `package.module:Class`.

    Args:
        name: a name in `ALGORITHMS`, or an import path.
        max_tokens: the most tokens of a completion.
        arguments: further keywords of its class.

    Raises:
        ConfigError: there is no such algorithm, or it does not take these arguments.
    """
    known: Mapping[str, Any] = ALGORITHMS
    factory: Callable[..., Algorithm] = look_up("algorithm", ALGORITHMS.get(name, name), known)
    with boundary() as caught:
        return factory(max_tokens=max_tokens, **arguments)
    raise ConfigError(
        f"the algorithm {name!r} does not take {dict(arguments)}: {caught.summary}. Expected keywords of its class, "
        "under algorithm_args"
    ) from caught.error
