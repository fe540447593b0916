"""The learner on a tiny model: it learns, leaves the weights alone when there is nothing to learn, and goes on."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load

from tasks.checkpoints import saved_versions
from tasks.errors import LearnerError
from tasks.learner import Learner
from tasks.learner_contracts import LearnerBatch, LearnerSample
from tests.tiny_model import make_model
from tests.unit.learner_samples import batch, sample, tiny_spec

GOOD = sample(range(10, 30), [(5, 9), (12, 16)], [1.0, -0.5])


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
def make_learner(model: Path, tmp_path: Path):  # type: ignore[no-untyped-def]
    torch.set_num_threads(1)  # more only wait for each other on a model this small

    def make(**changes: Any) -> Learner:
        return Learner(tiny_spec(model, tmp_path / "checkpoints", **changes))

    return make


@pytest.mark.parametrize(("reward", "becomes_likelier"), [(1.0, True), (-1.0, False)])
def test_rewarded_tokens_become_likelier_and_punished_ones_less(
    make_learner: Any, reward: float, becomes_likelier: bool
) -> None:
    learner = make_learner(micro_batch_tokens=16)
    one = sample(range(10, 30), [(5, 9)], [reward])
    reports = [learner.step(batch(one, number=n, version=n)) for n in range(4)]
    assert [report.policy_version for report in reports] == [1, 2, 3, 4]
    ratios = [report.metrics["ratio_mean"] for report in reports]  # to the same recorded probabilities each time
    assert ratios == sorted(ratios, reverse=not becomes_likelier)


def test_metrics_by_hand(make_learner: Any) -> None:
    old = replace(GOOD, policy_version=1, rewards=(3.0, 0.0))
    empty = sample([1, 2, 3], [(2, 2)], [2.0], version=4)
    flagged = sample([1, 2, 3], [(2, 3)], [-1.0], logprob=math.nan, version=4)
    report = make_learner().step(LearnerBatch(7, 4, (old, empty, flagged), dropped=5))
    expected = {
        "samples": 3,
        "steps": 4,
        "dropped": 5,
        "advantage_mean": 1.0,
        "advantage_std": math.sqrt((4 + 1 + 1 + 4) / 4),
        "lag_mean": 1.5,
        "lag_max": 3,
        "masked_share": 0.75,
        "flagged_share": 0.25,
        "learning_rate": 0.01,
    }
    assert {name: report.metrics[name] for name in expected} == pytest.approx(expected)
    assert report.metrics["entropy"] > 0
    assert report.metrics["approx_kl"] >= 0
    assert report.metrics["ratio_max"] >= report.metrics["ratio_mean"] > 0
    assert report.metrics["grad_norm"] > 0
    assert "logprob_diff_mean" not in report.metrics  # nothing trained was sampled from this version
    assert all(math.isfinite(value) for value in report.metrics.values())


def test_agreement_is_measured_without_lag(make_learner: Any) -> None:
    metrics = make_learner().step(batch(GOOD)).metrics
    assert metrics["logprob_diff_max"] >= metrics["logprob_diff_mean"] > 0


@pytest.mark.parametrize(
    "samples",
    [
        (),
        (replace(GOOD, rewards=(0.0, 0.0)),),
        (sample([1, 2, 3], [(2, 2)], [1.0]),),
        (sample([1, 2, 3], [], []),),
        (sample([1, 2, 3], [(1, 3)], [1.0], logprob=-math.inf),),
    ],
    ids=["no samples", "zero advantages", "empty completions", "everything masked", "all flagged"],
)
def test_nothing_to_learn_changes_nothing(make_learner: Any, samples: tuple[LearnerSample, ...]) -> None:
    learner, twin = make_learner(weight_decay=0.1), make_learner(weight_decay=0.1)
    learner.step(batch(GOOD))  # gives the optimiser a momentum to go on with
    twin.step(batch(GOOD))
    report = learner.step(batch(*samples, number=1, version=1))
    assert report.skipped
    assert report.reason.startswith("nothing to learn")
    assert report.adapter is None
    assert report.policy_version == 1
    assert report.metrics["loss"] == report.metrics["grad_norm"] == 0
    assert learner.step(batch(GOOD, number=2, version=1)).adapter == twin.step(batch(GOOD, number=2, version=1)).adapter


def test_a_loss_that_is_no_number_is_skipped_and_in_a_row_an_error(make_learner: Any) -> None:
    learner = make_learner(max_skipped=3)
    bad = replace(GOOD, rewards=(math.nan, 1.0))
    first = learner.step(batch(bad, GOOD))
    assert first.skipped
    assert first.reason == "the loss is nan and the norm of its gradient nan: not finite, 1 in a row"
    assert first.adapter is None
    assert "loss" not in first.metrics
    assert learner.step(batch(bad, number=1)).reason.endswith("2 in a row")
    assert learner.step(batch(GOOD, number=2)).policy_version == 1  # a good one begins the count anew
    learner.step(batch(bad, number=3, version=1))
    learner.step(batch(bad, number=4, version=1))
    with pytest.raises(LearnerError, match=r"not finite for the 3\. step in a row.* Look at the metrics of the steps"):
        learner.step(batch(bad, number=5, version=1))


def test_micro_batches_do_not_change_the_gradient(make_learner: Any) -> None:
    samples = [sample(range(10, 10 + length), [(3, length)], [length / 10]) for length in (6, 12, 9, 20)]
    whole = make_learner(micro_batch_tokens=1000).step(batch(*samples)).metrics
    cut = make_learner(micro_batch_tokens=1).step(batch(*samples)).metrics
    for name in ("loss", "grad_norm", "entropy", "approx_kl"):
        assert cut[name] == pytest.approx(whole[name], rel=1e-5)


def test_the_gradient_is_clipped(make_learner: Any) -> None:
    free = make_learner(max_grad_norm=None).step(batch(GOOD))
    clipped = make_learner(max_grad_norm=1e-9).step(batch(GOOD))
    assert clipped.metrics["grad_norm"] == free.metrics["grad_norm"]  # reported before clipping
    assert clipped.adapter != free.adapter  # Adam's epsilon is no longer small beside the gradient


def test_going_on_from_a_checkpoint_is_going_on(make_learner: Any) -> None:
    settings = {"lora_dropout": 0.5, "schedule": "linear", "total_steps": 10, "warmup_steps": 2, "weight_decay": 0.1}
    learner = make_learner(**settings)
    reports = [learner.step(batch(GOOD, number=n, version=n)) for n in range(4)]
    resumed = make_learner(**settings)
    resumed.restore(2)
    assert resumed.policy_version == 2
    again = [resumed.step(batch(GOOD, number=n, version=n)) for n in (2, 3)]
    assert [report.adapter for report in again] == [report.adapter for report in reports[2:]]
    assert [report.metrics["loss"] for report in again] == [report.metrics["loss"] for report in reports[2:]]


def test_checkpoints_of_other_settings_are_refused(make_learner: Any, tmp_path: Path) -> None:
    make_learner().step(batch(GOOD))
    assert saved_versions(tmp_path / "checkpoints") == [1]
    with pytest.raises(LearnerError, match="was made with lora_rank 4, expected 8"):
        make_learner(lora_rank=8).restore(1)


def test_a_broken_sequence_is_refused(make_learner: Any) -> None:
    with pytest.raises(LearnerError, match="7 log-probabilities for 8 trained tokens"):
        make_learner().step(batch(replace(GOOD, logprobs=(-1.0,) * 7)))


def test_half_precision_keeps_the_adapter_in_full(make_learner: Any) -> None:
    half, full = make_learner(dtype="bfloat16").step(batch(GOOD)), make_learner(dtype="float32").step(batch(GOOD))
    assert half.metrics["loss"] == pytest.approx(full.metrics["loss"], rel=0.05)
    weights = load(half.adapter["adapter_model.safetensors"])
    assert {tensor.dtype for tensor in weights.values()} == {torch.float32}
