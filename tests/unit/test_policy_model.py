"""The model in training gives the log-probabilities and gradients of the plain computation, and refuses odd models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tasks import losses
from tasks.collate import collate
from tasks.contracts import SamplingSpec
from tasks.errors import LearnerError
from tasks.learner_contracts import LearnerSample
from tasks.policy_model import PolicyModel, learner_dtype
from tasks.prefixes import rows_of
from tests.tiny_model import make_model
from tests.unit.learner_samples import sample, tiny_spec

CPU = torch.device("cpu")
ONE_LAYER: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 1,
    "num_key_value_heads": 1,
}
TEMPERATURE = 0.7


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("model"))


def changed_policy(model: Path, *, checkpointing: bool = True) -> PolicyModel:
    """A policy whose adapter has random weights, so that every one of them has a gradient."""
    spec = tiny_spec(model, model, sampling=SamplingSpec(temperature=TEMPERATURE), gradient_checkpointing=checkpointing)
    policy = PolicyModel(spec)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in policy.parameters:
            parameter.normal_(0, 0.2, generator=generator)
    return policy


def samples() -> list[LearnerSample]:
    """Sequences of several lengths, one with two trained steps, three of them alike to begin with."""
    generator = torch.Generator().manual_seed(2)
    ids = [torch.randint(200, (length,), generator=generator).tolist() for length in (30, 12, 21)]
    return [
        sample(ids[0], [(5, 9), (20, 30)], [1.0, -2.0]),
        sample(ids[0][:16] + ids[1], [(5, 9), (18, 24)], [0.3, 1.5]),
        sample(ids[0][:22] + ids[1], [(23, 34)], [-0.7]),
        sample(ids[1], [(1, 2)], [0.5]),
        sample(ids[2], [(8, 21)], [-1.0]),
    ]


def plain_logprobs(policy: PolicyModel, one: LearnerSample) -> torch.Tensor:
    """log_softmax over all positions of one sequence alone, then the trained ones."""
    ids = torch.tensor([one.token_ids])
    logprobs_TV = (policy.adapted(input_ids=ids, use_cache=False).logits[0].float() / TEMPERATURE).log_softmax(-1)
    positions = [place for start, stop in one.spans for place in range(start, stop)]
    return logprobs_TV[[place - 1 for place in positions], [one.token_ids[place] for place in positions]]


@pytest.mark.parametrize(("checkpointing", "share"), [(True, True), (False, True), (False, False)])
def test_log_probabilities_and_gradients_agree_with_the_plain_computation(
    model: Path, monkeypatch: pytest.MonkeyPatch, checkpointing: bool, share: bool
) -> None:
    monkeypatch.setattr(losses, "CHUNK_LOGITS", 2000)  # several chunks even here
    policy = changed_policy(model, checkpointing=checkpointing)
    rows = rows_of(samples(), share=share)
    assert len(rows) == (3 if share else 5)
    micro = collate(rows, 0, CPU)
    logprobs_N, _ = policy.token_logprobs(micro)
    got = torch.autograd.grad((micro.advantages_N * logprobs_N).sum(), policy.parameters)

    plain_N = torch.cat([plain_logprobs(policy, one) for row in rows for one in row.samples])
    expected = torch.autograd.grad((micro.advantages_N * plain_N).sum(), policy.parameters)
    torch.testing.assert_close(logprobs_N, plain_N, rtol=1e-5, atol=1e-5)
    for grad, reference in zip(got, expected, strict=True):
        assert reference.norm() > 0
        assert (grad - reference).norm() <= 1e-4 * reference.norm()


def test_a_merged_sequence_gives_each_step_what_it_has_alone(model: Path) -> None:
    policy = changed_policy(model)
    merged = samples()[0]
    alone = [
        sample(merged.token_ids[:stop], [(start, stop)], [reward])
        for (start, stop), reward in zip(merged.spans, merged.rewards, strict=True)
    ]
    together_N, _ = policy.token_logprobs(collate(rows_of([merged]), 0, CPU))
    apart_N, _ = policy.token_logprobs(collate(rows_of(alone, share=False), 0, CPU))
    torch.testing.assert_close(together_N, apart_N)


@pytest.mark.parametrize(
    ("name", "device", "dtype"),
    [
        ("auto", "cuda", torch.bfloat16),
        ("auto", "cpu", torch.float32),
        ("float32", "cuda", torch.float32),
        ("bfloat16", "cpu", torch.bfloat16),
    ],
)
def test_auto_is_half_precision_on_a_gpu_alone(name: str, device: str, dtype: torch.dtype) -> None:
    assert learner_dtype(name, torch.device(device)) is dtype


def test_the_base_model_is_frozen(model: Path) -> None:
    policy = PolicyModel(tiny_spec(model, model))
    trained = {name for name, parameter in policy.adapted.named_parameters() if parameter.requires_grad}
    assert trained
    assert all(".lora_A." in name or ".lora_B." in name for name in trained)


def test_micro_batches_carry_lags_and_leave_flagged_steps_out() -> None:
    kept = sample([7, 8, 9], [(1, 2), (2, 3)], [1.0, 2.0], version=3)
    flagged = sample([5, 6], [(1, 2)], [0.0], logprob=-torch.inf)
    micro = collate(rows_of([flagged, kept]), policy_version=5, device=CPU)
    assert micro.ids_BT.tolist() == [[5, 6, 0], [7, 8, 9]]
    assert micro.targets_N.tolist() == [8, 9]
    assert micro.rows_N.tolist() == [1, 1]
    assert micro.places_N.tolist() == [0, 1]
    assert micro.advantages_N.tolist() == [1.0, 2.0]
    assert micro.lags_N.tolist() == [2, 2]


def test_a_model_that_scales_its_logits_is_refused(tmp_path: Path) -> None:
    from transformers import CohereConfig, CohereForCausalLM

    config = CohereConfig(**ONE_LAYER, logit_scale=0.0625, initializer_range=1.0)
    CohereForCausalLM(config).save_pretrained(tmp_path)
    with pytest.raises(LearnerError, match=r"are not those of its output layer: log-probabilities differ by"):
        PolicyModel(tiny_spec(tmp_path, tmp_path, target_modules=("q_proj",)))


def test_sequences_of_a_model_with_windows_are_kept_apart(model: Path, tmp_path: Path) -> None:
    from transformers import MistralConfig, MistralForCausalLM

    config = MistralConfig(**ONE_LAYER, sliding_window=16)
    MistralForCausalLM(config).save_pretrained(tmp_path)
    assert not PolicyModel(tiny_spec(tmp_path, tmp_path, target_modules=("q_proj",))).shares_prefixes
    assert PolicyModel(tiny_spec(model, tmp_path)).shares_prefixes
