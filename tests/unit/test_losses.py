"""Chosen log-probabilities: by hand, and equal to the plain computation over the whole vocabulary, chunk by chunk."""

from __future__ import annotations

import math

import pytest
import torch

from tasks import losses
from tasks.losses import approximate_kl, token_logprobs


def test_by_hand() -> None:
    # logits log 1, log 1, log 2: probabilities 1/4, 1/4, 1/2; halved by temperature 2: 1, 1, sqrt 2 over their sum.
    hidden_NH = torch.tensor([[0.0, 0.0, math.log(2)]])
    targets_N = torch.tensor([2])
    logprobs_N, entropy_N = token_logprobs(hidden_NH, targets_N, lambda hidden: hidden, 1.0)
    assert logprobs_N.item() == pytest.approx(math.log(1 / 2))
    assert entropy_N.item() == pytest.approx(1.5 * math.log(2))
    cooler_N, _ = token_logprobs(hidden_NH, targets_N, lambda hidden: hidden, 2.0)
    assert cooler_N.item() == pytest.approx(math.log(math.sqrt(2) / (2 + math.sqrt(2))))


@pytest.mark.parametrize("chunk_logits", [1, 50 * 7, 10**9])
def test_chunks_agree_with_the_whole(monkeypatch: pytest.MonkeyPatch, chunk_logits: int) -> None:
    monkeypatch.setattr(losses, "CHUNK_LOGITS", chunk_logits)
    torch.manual_seed(0)
    head = torch.nn.Linear(16, 50, bias=False)
    hidden_NH = torch.randn(20, 16, requires_grad=True)
    targets_N = torch.randint(50, (20,))
    weights_N = torch.randn(20)
    logprobs_N, entropy_N = token_logprobs(hidden_NH, targets_N, head, 0.7)
    (weights_N * logprobs_N).sum().backward()
    got = hidden_NH.grad, head.weight.grad

    whole_NV = (head(hidden_NH) / 0.7).log_softmax(-1)
    expected_N = whole_NV[torch.arange(20), targets_N]
    expected = torch.autograd.grad((weights_N * expected_N).sum(), [hidden_NH, head.weight])
    torch.testing.assert_close(logprobs_N, expected_N)
    torch.testing.assert_close(entropy_N, torch.distributions.Categorical(logits=whole_NV).entropy())
    torch.testing.assert_close(got, tuple(expected))
    assert not entropy_N.requires_grad


def test_the_vocabulary_is_never_seen_for_more_tokens_than_a_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(losses, "CHUNK_LOGITS", 50 * 4)
    head = torch.nn.Linear(16, 50)
    seen: list[int] = []
    head.register_forward_hook(lambda _module, _inputs, logits: seen.append(logits.shape[0]))
    hidden_NH = torch.randn(10, 16, requires_grad=True)
    token_logprobs(hidden_NH, torch.zeros(10, dtype=torch.long), head, 1.0)[0].sum().backward()
    assert max(seen) == 4


def test_kl_estimate_by_hand() -> None:
    # r = 2: 2 - 1 - log 2; r = 1: 0; r = 1/2: 1/2 - 1 + log 2
    logprobs_N = torch.tensor([math.log(0.5), -1.0, math.log(0.25)])
    recorded_N = torch.tensor([math.log(0.25), -1.0, math.log(0.5)])
    expected = torch.tensor([1 - math.log(2), 0.0, math.log(2) - 0.5])
    torch.testing.assert_close(approximate_kl(logprobs_N, recorded_N), expected)
