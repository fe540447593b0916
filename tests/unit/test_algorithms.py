"""REINFORCE on numbers worked out by hand, and algorithms found by name."""

from __future__ import annotations

import math
import subprocess
import sys
from dataclasses import dataclass

import pytest
import torch

from tasks.algorithms import TrainedTokens, make_algorithm
from tasks.algorithms.reinforce import Reinforce
from tasks.errors import ConfigError


def trained_tokens(ratios: list[float], advantages: list[float], steps: int = 1) -> TrainedTokens:
    """Tokens of log-probability -1 in the model, sampled with 1/ratio of its probability."""
    logprobs_N = torch.full((len(ratios),), -1.0, requires_grad=True)
    recorded_N = torch.tensor([-1.0 - math.log(ratio) for ratio in ratios])
    return TrainedTokens(logprobs_N, recorded_N, torch.tensor(advantages), torch.zeros(len(ratios)), steps, len(ratios))


def test_token_sum_over_max_tokens_and_steps() -> None:
    tokens = trained_tokens([1.0, 1.0, 1.0], [2.0, 2.0, -1.0], steps=2)
    loss = Reinforce(max_tokens=10).loss(tokens)
    assert loss.item() == pytest.approx((2 + 2 - 1) / (2 * 10))
    loss.backward()  # d loss / d logprob = - advantage / 20
    torch.testing.assert_close(tokens.logprobs_N.grad, torch.tensor([-0.1, -0.1, 0.05]))


def test_token_mean() -> None:
    tokens = trained_tokens([1.0, 1.0, 1.0], [2.0, 2.0, -1.0], steps=2)
    assert Reinforce(max_tokens=10, length="token_mean").loss(tokens).item() == pytest.approx(1.0)


def test_weights_are_truncated_and_have_no_gradient() -> None:
    tokens = trained_tokens([0.5, 1.5, 40.0], [1.0, 1.0, 1.0])
    Reinforce(max_tokens=1, max_ratio=2.0).loss(tokens).backward()
    torch.testing.assert_close(tokens.logprobs_N.grad, torch.tensor([-0.5, -1.5, -2.0]))


def test_shares_of_micro_batches_add_up() -> None:
    algorithm = Reinforce(max_tokens=4, length="token_mean")
    whole = trained_tokens([1.0, 2.0, 0.5], [1.0, -1.0, 3.0])
    parts = [
        TrainedTokens(whole.logprobs_N[cut], whole.recorded_N[cut], whole.advantages_N[cut], whole.entropy_N[cut], 1, 3)
        for cut in (slice(0, 1), slice(1, 3))
    ]
    assert sum(algorithm.loss(part).item() for part in parts) == pytest.approx(algorithm.loss(whole).item())


def test_zero_advantage_survives_an_infinite_ratio() -> None:
    tokens = trained_tokens([1.0], [0.0])
    far = TrainedTokens(tokens.logprobs_N, torch.tensor([-1e4]), tokens.advantages_N, tokens.entropy_N, 1, 1)
    assert far.ratios_N.item() == math.inf
    assert Reinforce(max_tokens=4).loss(far).item() == 0


@dataclass
class Own:
    """An algorithm of a user's."""

    max_tokens: int
    scale: float = 1.0

    def loss(self, tokens: TrainedTokens) -> torch.Tensor:
        return self.scale * tokens.logprobs_N.sum()


def test_found_by_name_or_import_path() -> None:
    assert make_algorithm("reinforce", 16, {"max_ratio": 3.0}) == Reinforce(16, max_ratio=3.0)
    found = make_algorithm("tests.unit.test_algorithms:Own", 16, {"scale": 2.0})
    assert (type(found).__name__, found.max_tokens, found.scale) == ("Own", 16, 2.0)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("reinforc", {}, "unknown algorithm 'reinforc'; valid are reinforce.*Did you mean 'reinforce'"),
        ("nowhere:Own", {}, "algorithm 'nowhere:Own' cannot be imported"),
        ("reinforce", {"clip": 0.2}, "algorithm 'reinforce' does not take {'clip': 0.2}: TypeError"),
        ("reinforce", {"length": "mean"}, "length is 'mean'; expected one of max_tokens, token_mean"),
        ("reinforce", {"max_ratio": 0.0}, "max_ratio is 0.0; expected a number above 0"),
    ],
)
def test_refusals(name: str, arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make_algorithm(name, 16, arguments)


def test_the_driver_checks_a_learner_without_torch() -> None:
    program = """
import sys
import tasks.learn, tasks.batch, tasks.advantages, tasks.learner_checks
from tasks.learner_contracts import LearnerSpec
tasks.learner_checks.check_learner(LearnerSpec("model", "folder", 4, 8, ("q_proj",)))
print(sorted({"torch", "peft", "transformers"} & sys.modules.keys()))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
