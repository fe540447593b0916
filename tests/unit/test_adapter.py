"""Adapters in training: the files that engines accept, the same for the same weights, and back again."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM

from tasks.adapter import adapter_files, add_adapter, load_adapter
from tasks.adapter_files import check_adapter
from tasks.contracts import LoraSpec
from tasks.errors import LearnerError
from tests.tiny_model import TARGET_MODULES, make_model
from tests.unit.learner_samples import tiny_spec


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("model"))


def adapted(model: Path, *, seed: int = 0, rank: int = 4) -> PeftModel:
    return add_adapter(AutoModelForCausalLM.from_pretrained(model), tiny_spec(model, model, seed=seed, lora_rank=rank))


def test_the_files_are_an_adapter_that_engines_serve(model: Path, tmp_path: Path) -> None:
    for name, content in adapter_files(adapted(model)).items():
        (tmp_path / name).write_bytes(content)
    check_adapter(tmp_path, None, LoraSpec(8, 1, TARGET_MODULES))


def test_peft_itself_reads_the_files(model: Path, tmp_path: Path) -> None:
    trained = adapted(model)
    with torch.no_grad():
        for parameter in trained.parameters():
            if parameter.requires_grad:
                parameter.normal_()
    for name, content in adapter_files(trained).items():
        (tmp_path / name).write_bytes(content)
    read = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(model), tmp_path)
    ids = torch.arange(6)[None]
    torch.testing.assert_close(read(input_ids=ids).logits, trained(input_ids=ids).logits)


def test_the_seed_decides_the_first_weights_and_a_new_adapter_changes_nothing(model: Path) -> None:
    torch.manual_seed(5)
    before = torch.get_rng_state()
    assert adapter_files(adapted(model)) == adapter_files(adapted(model))
    assert adapter_files(adapted(model)) != adapter_files(adapted(model, seed=1))
    assert torch.equal(torch.get_rng_state(), before)
    ids = torch.arange(6)[None]
    base = AutoModelForCausalLM.from_pretrained(model)
    torch.testing.assert_close(adapted(model)(input_ids=ids).logits, base(input_ids=ids).logits)


def test_weights_come_back(model: Path) -> None:
    saved = adapter_files(adapted(model, seed=1))
    other = adapted(model)
    load_adapter(other, saved)
    assert adapter_files(other) == saved


def test_another_shape_is_refused(model: Path) -> None:
    with pytest.raises(
        LearnerError, match=r"does not fit: .* is \(8, 128\), expected \(4, 128\) \(28 tensors differ\)"
    ):
        load_adapter(adapted(model), adapter_files(adapted(model, rank=8)))
