"""Learning rates on numbers worked out by hand, and what is refused of a learner's settings."""

from __future__ import annotations

from typing import Any

import pytest

from tasks.contracts import SamplingSpec
from tasks.errors import ConfigError
from tasks.learner_checks import check_learner, sampling_caveat
from tasks.learner_contracts import LearnerSpec
from tasks.schedule import learning_rate


def spec(**changes: Any) -> LearnerSpec:
    return LearnerSpec("model", "folder", 4, 8, ("q_proj",), **({"learning_rate": 1.0} | changes))


@pytest.mark.parametrize(
    ("schedule", "rates"),
    [
        ("constant", [0.5, 1.0, 1.0, 1.0, 1.0, 1.0]),
        ("linear", [0.5, 1.0, 1.0, 0.75, 0.5, 0.0]),
        ("cosine", [0.5, 1.0, 1.0, 0.8535534, 0.5, 0.0]),
    ],
)
def test_rates(schedule: str, rates: list[float]) -> None:
    falling = spec(schedule=schedule, warmup_steps=2, total_steps=6)
    assert [learning_rate(falling, number) for number in (0, 1, 2, 3, 4, 99)] == pytest.approx(rates)


def test_a_constant_rate_needs_no_end() -> None:
    assert learning_rate(spec(), 10**6) == 1.0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"schedule": "step"}, "learner.schedule is 'step'; expected one of constant, cosine, linear"),
        ({"schedule": "cosine"}, "'cosine' falls to 0 at total_steps, which is None; expected more than the 0 steps"),
        ({"schedule": "linear", "warmup_steps": 5, "total_steps": 5}, "which is 5; expected more than the 5 steps"),
        ({"dtype": "float16"}, "learner.dtype is 'float16'; expected one of auto, float32, bfloat16"),
        ({"sampling": SamplingSpec(temperature=0.0)}, "temperature is 0.0: a greedy token has log-probability 0"),
        ({"algorithm": "ppo"}, "unknown algorithm 'ppo'"),
    ],
)
def test_refusals(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check_learner(spec(**changes))


def test_good_settings_pass() -> None:
    check_learner(spec(schedule="cosine", warmup_steps=1, total_steps=2))


def test_a_cut_distribution_is_warned_about() -> None:
    assert sampling_caveat(SamplingSpec(temperature=0.6)) is None
    caveat = sampling_caveat(SamplingSpec(top_p=0.9, top_k=20))
    assert caveat is not None
    assert caveat.startswith("top_p 0.9 and top_k 20 cut the distribution that is sampled from")
