"""The built-in model, really built: what comes out of the conversion is the model that went in."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tasks.models import resolve_model
from tests.engine.conftest import ENGINE_MARKS, chat

pytestmark = ENGINE_MARKS


def test_the_builtin_model_is_built_and_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    monkeypatch.setenv("SELFPLAY_CACHE", str(tmp_path))
    stages: list[str] = []
    folder = resolve_model("builtin:smollm2-135m-instruct", stages.append)

    assert len(stages) == 4
    config = json.loads((Path(folder) / "config.json").read_text())
    assert (config["model_type"], config["dtype"], "quantization_config" in config) == ("llama", "float32", False)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert tokenizer.tokenize("a 12") == ["a", "Ġ", "1", "2"], "digits are tokens of their own"
    prompt = tokenizer.apply_chat_template(
        chat("What is the capital of France?"), add_generation_prompt=True, return_tensors="pt", return_dict=False
    )
    answer = AutoModelForCausalLM.from_pretrained(folder).generate(prompt, do_sample=False, max_new_tokens=12)
    assert "Paris" in tokenizer.decode(answer[0, prompt.shape[1] :])
