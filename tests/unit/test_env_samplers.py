"""Which environment is drawn, and which settings are refused."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from pipeline.config import EvalEnvSpec, TrainEnvSpec
from pipeline.env_samplers import (
    BaseEnvSampler,
    RoundRobinEnvSampler,
    UniformEnvSampler,
    WeightedEnvSampler,
    make_env_sampler,
)
from tasks.errors import ConfigError

TRAIN = [TrainEnvSpec(env_id=name) for name in ("A-v0", "B-v0", "C-v0")]
EVALUATION = [EvalEnvSpec(env_id=name) for name in ("X-v0", "Y-v0")]
OWN_SAMPLER = """
from pipeline.env_samplers import BaseEnvSampler

class Last(BaseEnvSampler):
    def __init__(self, train, evaluation, seed, weights=None):
        super().__init__(train, evaluation, seed)
        self.weights = weights

    def sample(self):
        return self.train[-1]

class NotOne:
    pass
"""


@pytest.fixture
def own_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "own_env_sampler.py").write_text(OWN_SAMPLER)
    monkeypatch.syspath_prepend(tmp_path)
    return "own_env_sampler"


def names(sampler: BaseEnvSampler, count: int) -> list[str]:
    return [sampler.sample().env_id for _ in range(count)]


def test_uniform_draws_all_environments_about_equally_often() -> None:
    drawn = Counter(names(UniformEnvSampler(TRAIN, seed=3), 3000))
    assert set(drawn) == {"A-v0", "B-v0", "C-v0"}
    assert all(850 < count < 1150 for count in drawn.values())


def test_weighted_draws_by_share_and_never_draws_a_weight_of_zero() -> None:
    drawn = Counter(names(WeightedEnvSampler(TRAIN, seed=3, weights=[3, 0, 1]), 4000))
    assert drawn["B-v0"] == 0
    assert 2850 < drawn["A-v0"] < 3150


def test_round_robin_takes_turns_in_order() -> None:
    assert names(RoundRobinEnvSampler(TRAIN), 5) == ["A-v0", "B-v0", "C-v0", "A-v0", "B-v0"]


@pytest.mark.parametrize("name", ["uniform", "weighted", "round_robin"])
def test_same_seed_same_sequence_whatever_is_drawn_for_evaluation_in_between(name: str) -> None:
    weights = [1, 2, 3] if name == "weighted" else None
    alone, mixed = (make_env_sampler(name, TRAIN, EVALUATION, weights, 5) for _ in range(2))
    sequence = []
    for index in range(40):
        for _ in range(index % 3):
            mixed.sample_eval()
        sequence.append(mixed.sample().env_id)
    assert sequence == names(alone, 40)


@pytest.mark.parametrize("kind", [UniformEnvSampler, RoundRobinEnvSampler])
def test_evaluation_takes_turns_whatever_is_drawn_for_training_in_between(kind: type[BaseEnvSampler]) -> None:
    sampler = kind(TRAIN, EVALUATION, 0)
    sequence = []
    for index in range(4):
        names(sampler, index)
        sequence.append(sampler.sample_eval().env_id)
    assert sequence == ["X-v0", "Y-v0", "X-v0", "Y-v0"]


def test_another_seed_gives_another_sequence() -> None:
    assert names(UniformEnvSampler(TRAIN, seed=1), 40) != names(UniformEnvSampler(TRAIN, seed=2), 40)


def test_results_leave_the_samplers_here_as_they_are() -> None:
    told, untold = UniformEnvSampler(TRAIN, seed=1), UniformEnvSampler(TRAIN, seed=1)
    told.update(1.0, -1.0)
    told.update(0.0, None)
    assert names(told, 20) == names(untold, 20)


def test_no_training_environment_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"environments\.train is empty: expected at least one environment"):
        UniformEnvSampler([])


def test_evaluation_without_evaluation_environments_is_refused_again_and_again() -> None:
    sampler = UniformEnvSampler(TRAIN)
    for _ in range(2):
        with pytest.raises(ConfigError, match=r"environments\.eval is empty .* set collect\.num_eval_workers to null"):
            sampler.sample_eval()


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        (None, r"environments\.weights is missing: the weighted sampler needs 3"),
        ([1.0, 2.0], r"environments\.weights has 2 entries: expected 3"),
        ([1.0, -1.0, 1.0], r"environments\.weights is \[1\.0, -1\.0, 1\.0\]: expected finite numbers of at least 0"),
        ([1.0, float("nan"), 1.0], r"environments\.weights is \[1\.0, nan, 1\.0\]"),
        ([1.0, float("inf"), 1.0], r"environments\.weights is \[1\.0, inf, 1\.0\]"),
        ([0.0, 0.0, 0.0], r"one of them above 0"),
    ],
)
def test_weights_that_make_no_distribution_are_refused(weights: list[float] | None, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make_env_sampler("weighted", TRAIN, EVALUATION, weights, 0)


def test_weights_for_a_sampler_without_weights_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"environments\.sampler is 'uniform', which has no weights"):
        make_env_sampler("uniform", TRAIN, EVALUATION, [1, 1, 1], 0)


def test_an_unknown_sampler_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(ConfigError, match=r"environments\.sampler is 'unifrom'.* Did you mean 'uniform'\?"):
        make_env_sampler("unifrom", TRAIN, EVALUATION, None, 0)


def test_a_class_of_ones_own_is_found_by_its_path(own_module: str) -> None:
    assert names(make_env_sampler(f"{own_module}:Last", TRAIN, EVALUATION, None, 0), 2) == ["C-v0", "C-v0"]
    assert vars(make_env_sampler(f"{own_module}:Last", TRAIN, EVALUATION, [1, 2, 3], 0))["weights"] == [1, 2, 3]


def test_a_class_that_is_no_sampler_is_refused(own_module: str) -> None:
    with pytest.raises(ConfigError, match=r"expected a subclass of pipeline\.env_samplers:BaseEnvSampler"):
        make_env_sampler(f"{own_module}:NotOne", TRAIN, EVALUATION, None, 0)
