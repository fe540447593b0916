"""The learning rate at each step: a pure function, so that there is no state to save."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from tasks.errors import ConfigError
from tasks.learner_contracts import LearnerSpec

# From the share of the steps after warm-up that are done, in [0, 1], to the share of the full rate.
_SHAPES: Mapping[str, Callable[[float], float]] = {
    "constant": lambda _done: 1.0,
    "cosine": lambda done: (1 + math.cos(math.pi * done)) / 2,
    "linear": lambda done: 1 - done,
}
SCHEDULES = tuple(_SHAPES)


def check_schedule(spec: LearnerSpec) -> None:
    """Refuse a schedule that says nothing about some step.

    Raises:
        ConfigError: there is no such schedule; or one that falls has no end, or ends before warm-up does.
    """
    if spec.schedule not in SCHEDULES:
        raise ConfigError(f"learner.schedule is {spec.schedule!r}; expected one of {', '.join(SCHEDULES)}")
    if spec.schedule != "constant" and (spec.total_steps is None or spec.total_steps <= spec.warmup_steps):
        raise ConfigError(
            f"learner.schedule {spec.schedule!r} falls to 0 at total_steps, which is {spec.total_steps}; expected "
            f"more than the {spec.warmup_steps} steps of warm-up"
        )


def learning_rate(spec: LearnerSpec, number: int) -> float:
    """The rate of learning step `number`, from 0.

    Warm-up is linear: step 0 already moves, at 1 / `warmup_steps` of the full rate. From `total_steps` on a schedule
    that falls gives 0.
    """
    if number < spec.warmup_steps:
        return spec.learning_rate * (number + 1) / spec.warmup_steps
    if spec.total_steps is None:
        return spec.learning_rate
    done = min(1.0, (number - spec.warmup_steps) / max(1, spec.total_steps - spec.warmup_steps))
    return spec.learning_rate * _SHAPES[spec.schedule](done)
