"""What a step is worth to the learner: transformations of the environment's raw rewards, in three stages.

A final reward is transformed once when its trajectory reaches the buffer, the reward of each step right after, and the
rewards of a batch together when it is drawn. Transformed rewards exist in the buffer only; shards hold raw ones.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

from tasks.contracts import Step
from tasks.errors import ConfigError

BatchTransform = Callable[[Sequence[float], Sequence[str]], Sequence[float]]
"""The rewards of a batch's steps and their environments' ids in; as many rewards out."""


class FinalTransform(ABC):
    """Transforms one player's final reward. May learn from those before; then `state` and `restore` carry that."""

    @abstractmethod
    def __call__(self, reward: float, env_id: str, player_id: int) -> float:
        """The reward that takes the place of `reward`; called once per trajectory."""

    def state(self) -> Any:
        """What it has learned, as values that pickle; None where there is nothing."""
        return None

    def restore(self, state: Any) -> None:  # noqa: B027 - may be left out
        """Go on from what `state` returned."""


class StepTransform(ABC):
    """Adds what a single decision earned by itself."""

    @abstractmethod
    def __call__(self, reward: float, step: Step) -> float:
        """The reward that takes the place of `reward`, for this step alone."""


class RoleAdvantage(FinalTransform):
    """How much better than usual: the reward less its running mean for that environment and seat.

    Seats of a game can differ in what they pay whoever sits there, so each has its own mean:
    `advantage = reward - mean; mean = decay * mean + (1 - decay) * reward`, from a mean of 0. Source: Liu et al.,
    "SPIRAL: Self-Play on Zero-Sum Games Incentivizes Reasoning via Multi-Agent Multi-Turn Reinforcement Learning"
    (2025), arXiv 2506.24119, role-conditioned advantage estimation. The mean is subtracted before the reward enters it,
    so that no reward is its own baseline.

    Raises:
        ConfigError: `decay` is not in [0, 1).
    """

    def __init__(self, decay: float = 0.95) -> None:
        if not 0 <= decay < 1:
            raise ConfigError(f"learner.rewards.decay is {decay}: expected a number of at least 0 and below 1")
        self.decay = decay
        self.means: dict[tuple[str, int], float] = {}

    def __call__(self, reward: float, env_id: str, player_id: int) -> float:
        """The reward less the mean up to now."""
        mean = self.means.get((env_id, player_id), 0.0)
        self.means[env_id, player_id] = self.decay * mean + (1 - self.decay) * reward
        return reward - mean

    def state(self) -> dict[tuple[str, int], float]:
        """The means by environment and seat."""
        return dict(self.means)

    def restore(self, state: dict[tuple[str, int], float]) -> None:
        """Go on from these means."""
        self.means = dict(state)


class FormatReward(StepTransform):
    """Adds `bonus` to a step whose completion had the form asked for."""

    def __init__(self, bonus: float) -> None:
        self.bonus = bonus

    def __call__(self, reward: float, step: Step) -> float:
        """The reward, with the bonus where it is due."""
        return reward + self.bonus if step.choice.format_ok else reward


class IllegalMovePenalty(StepTransform):
    """Takes `penalty` from a step whose action the environment refused."""

    def __init__(self, penalty: float) -> None:
        self.penalty = penalty

    def __call__(self, reward: float, step: Step) -> float:
        """The reward, less the penalty where it is due."""
        return reward - self.penalty if step.illegal else reward


class RewardTransforms:
    """The three stages, each in the order given; without any a reward stays what it is.

    Args:
        final: of a player's final reward.
        step: of the reward of each of its steps, which begins as the final one.
        batch: of the rewards of the steps drawn together.
    """

    def __init__(
        self,
        final: Sequence[FinalTransform] = (),
        step: Sequence[StepTransform] = (),
        batch: BatchTransform | None = None,
    ) -> None:
        self.final = tuple(final)
        self.step = tuple(step)
        self.batch = batch

    def of_trajectory(self, reward: float, env_id: str, player_id: int) -> float:
        """The final reward of one trajectory after the first stage."""
        for transform in self.final:
            reward = transform(reward, env_id, player_id)
        return reward

    def of_step(self, reward: float, step: Step) -> float:
        """The reward of one step after the second stage; `reward` is its trajectory's after the first."""
        for transform in self.step:
            reward = transform(reward, step)
        return reward

    def of_batch(self, rewards: Sequence[float], env_ids: Sequence[str]) -> Sequence[float]:
        """The rewards of a batch after the third stage."""
        return rewards if self.batch is None else self.batch(rewards, env_ids)

    def baselines(self) -> dict[tuple[str, int], float]:
        """The running means of all `RoleAdvantage`, by environment and seat, for the metrics."""
        return {
            key: mean
            for transform in self.final
            if isinstance(transform, RoleAdvantage)
            for key, mean in transform.means.items()
        }

    def state(self) -> list[Any]:
        """What the first stage has learned, for a checkpoint."""
        return [transform.state() for transform in self.final]

    def restore(self, state: list[Any]) -> None:
        """Go on from what `state` returned.

        Raises:
            ConfigError: it is of other transformations than these.
        """
        if len(state) != len(self.final):
            raise ConfigError(
                f"the checkpoint has {len(state)} transformations of final rewards, this run {len(self.final)}: resume "
                "with the learner.rewards that the run began with"
            )
        for transform, part in zip(self.final, state, strict=True):
            transform.restore(part)
