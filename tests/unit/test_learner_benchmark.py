"""The variants of the benchmark of learning compute the same gradient; with numbers too small to say anything."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from benchmarks.learner import VARIANTS, arguments, run_variant
from tests.tiny_model import make_model


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("model"))


@pytest.mark.parametrize(
    ("name", "reference"),
    [("learner", "straight"), ("learner_chats", "straight_chats"), ("learner_memory", "full_memory")],
)
def test_a_variant_differs_in_cost_alone(model: Path, tmp_path: Path, name: str, reference: str) -> None:
    torch.set_num_threads(1)  # more only wait for each other on a model this small
    results, gradients = {}, {}
    for variant in (name, reference):
        path = tmp_path / variant
        options = arguments().parse_args([f"--model={model}", "--steps=3", "--chats=1", f"--gradients={path}"])
        results[variant] = run_variant(VARIANTS[variant], options)
        gradients[variant] = torch.load(path)
    assert results[name]["steps"] == results[reference]["steps"]
    assert results[name]["tokens"] <= results[reference]["tokens"]
    assert (gradients[name] - gradients[reference]).norm() <= 1e-4 * gradients[reference].norm()


def test_chats_are_merged(model: Path) -> None:
    torch.set_num_threads(1)
    options = arguments().parse_args([f"--model={model}", "--chats=1"])
    merged = run_variant(VARIANTS["learner_chats"], options)
    assert merged["passes"] == 1 < merged["steps"]
