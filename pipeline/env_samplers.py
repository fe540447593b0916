"""Which environment the next game is played in: the base class, and the samplers that a config names.

Training environments are drawn with the sampler's own seeded generator; evaluation environments come in turn and have a
state of their own, so neither sequence depends on when the other is asked.
"""

from __future__ import annotations

import math
import random
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from pipeline.config import EvalEnvSpec, TrainEnvSpec
from pipeline.named_classes import find_class
from tasks.errors import ConfigError


class BaseEnvSampler(ABC):
    """Draws environments. Subclass it with `sample`, and with `update` where the draw looks at results.

    A subclass draws from `self.rng` in `sample`, and from nothing that `sample_eval` uses.

    Args:
        train: the environments to train in; at least one.
        evaluation: the environments to evaluate in; may be empty.
        seed: the same seed gives the same sequence of draws.

    Raises:
        ConfigError: there is no training environment.
    """

    def __init__(self, train: Sequence[TrainEnvSpec], evaluation: Sequence[EvalEnvSpec] = (), seed: int = 0) -> None:
        if not train:
            raise ConfigError(
                "environments.train is empty: expected at least one environment, e.g. {env_id: TicTacToe-v0}"
            )
        self.train = tuple(train)
        self.evaluation = tuple(evaluation)
        self.rng = random.Random(f"training environments {seed}")
        self._evaluation_turn = 0

    @abstractmethod
    def sample(self) -> TrainEnvSpec:
        """The environment of the next training game."""

    def sample_eval(self) -> EvalEnvSpec:
        """The next evaluation environment, each in its turn.

        Raises:
            ConfigError: there is no evaluation environment.
        """
        if not self.evaluation:
            raise ConfigError(
                "environments.eval is empty but an evaluation game was asked for: "
                "name an evaluation environment, or set collect.num_eval_workers to null"
            )
        self._evaluation_turn += 1
        return self.evaluation[(self._evaluation_turn - 1) % len(self.evaluation)]

    def update(self, avg_actor_reward: float, avg_opponent_reward: float | None) -> None:  # noqa: B027 - may be left out
        """Hear the result of one training game; called after each. Does nothing unless overridden.

        Args:
            avg_actor_reward: mean raw reward of the learning players.
            avg_opponent_reward: mean raw reward of the others; None where all players learn.
        """

    def state(self) -> dict[str, Any]:
        """Where its sequences stand, for a checkpoint; a subclass that knows more adds it. Values that pickle."""
        return {"rng": self.rng.getstate(), "evaluation_turn": self._evaluation_turn}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state` returned."""
        self.rng.setstate(state["rng"])
        self._evaluation_turn = state["evaluation_turn"]


class UniformEnvSampler(BaseEnvSampler):
    """Every training environment is equally likely."""

    def sample(self) -> TrainEnvSpec:
        """One training environment, independent of the draws before."""
        return self.rng.choice(self.train)


class WeightedEnvSampler(BaseEnvSampler):
    """Each training environment is as likely as its share of the weights.

    Args:
        weights: one for each training environment, in their order; finite, not negative, not all zero.

    Raises:
        ConfigError: the weights are missing or not as above.
    """

    def __init__(
        self,
        train: Sequence[TrainEnvSpec],
        evaluation: Sequence[EvalEnvSpec] = (),
        seed: int = 0,
        *,
        weights: Sequence[float] | None,
    ) -> None:
        super().__init__(train, evaluation, seed)
        self.weights = _checked_weights(weights, len(self.train))

    def sample(self) -> TrainEnvSpec:
        """One training environment, independent of the draws before."""
        return self.rng.choices(self.train, self.weights)[0]


class RoundRobinEnvSampler(BaseEnvSampler):
    """The training environments in turn, in the order of the config."""

    def __init__(self, train: Sequence[TrainEnvSpec], evaluation: Sequence[EvalEnvSpec] = (), seed: int = 0) -> None:
        super().__init__(train, evaluation, seed)
        self._turn = 0

    def sample(self) -> TrainEnvSpec:
        """The training environment whose turn it is."""
        self._turn += 1
        return self.train[(self._turn - 1) % len(self.train)]

    def state(self) -> dict[str, Any]:
        """As the base's, with whose turn it is."""
        return {**super().state(), "turn": self._turn}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state` returned."""
        super().restore(state)
        self._turn = state["turn"]


_BY_NAME: dict[str, type[BaseEnvSampler]] = {
    "uniform": UniformEnvSampler,
    "weighted": WeightedEnvSampler,
    "round_robin": RoundRobinEnvSampler,
}


def make_env_sampler(
    name: str,
    train: Sequence[TrainEnvSpec],
    evaluation: Sequence[EvalEnvSpec],
    weights: Sequence[float] | None,
    seed: int,
) -> BaseEnvSampler:
    """The sampler that a config names: `uniform`, `weighted`, `round_robin` or a user's `package.module:Name`.

    A user's class is called as `Name(train, evaluation, seed)`, with `weights=...` added where the config has weights.

    Raises:
        ConfigError: the name is unknown, the class is no `BaseEnvSampler`, or weights are given to a sampler without.
    """
    kind = find_class("environments.sampler", name, _BY_NAME, BaseEnvSampler)
    if name == "weighted":
        return WeightedEnvSampler(train, evaluation, seed, weights=weights)
    if weights is None:
        return kind(train, evaluation, seed)
    if name in _BY_NAME:
        raise ConfigError(
            f"environments.weights is set but environments.sampler is {name!r}, which has no weights: "
            "set the sampler to 'weighted', or remove the weights"
        )
    return kind(train, evaluation, seed, weights=weights)  # type: ignore[call-arg]  # the user's own signature


def _checked_weights(weights: Sequence[float] | None, count: int) -> tuple[float, ...]:
    if weights is None:
        raise ConfigError(
            f"environments.weights is missing: the weighted sampler needs {count}, one for each training environment"
        )
    if len(weights) != count:
        raise ConfigError(
            f"environments.weights has {len(weights)} entries: expected {count}, one for each training environment"
        )
    if any(not math.isfinite(weight) or weight < 0 for weight in weights) or sum(weights) <= 0:
        raise ConfigError(
            f"environments.weights is {list(weights)}: expected finite numbers of at least 0, one of them above 0"
        )
    return tuple(weights)
