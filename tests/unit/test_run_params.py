"""A configuration as parameters and as text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from pipeline.run_params import MAX_VALUE_LENGTH, config_text, flat_params, redact
from tasks.contracts import Mode

CONFIG: dict[str, Any] = {
    "name": "demo",
    "vllm": {"temperature": 1.0, "stop": ["a", "b"], "lora_config": None, "engine_args": {}, "greedy": False},
    "environments": {"train": [{"env_id": "Kuhn"}, {"env_id": "TicTacToe"}], "weights": []},
    "mode": Mode.TRAIN,
    "folder": Path("/runs/1"),
}


def test_nested_settings_become_dotted_parameters() -> None:
    assert flat_params(CONFIG) == {
        "name": "demo",
        "vllm.temperature": "1.0",
        "vllm.stop": '["a", "b"]',
        "vllm.lora_config": "null",
        "vllm.engine_args": "{}",
        "vllm.greedy": "false",
        "environments.train.0.env_id": "Kuhn",
        "environments.train.1.env_id": "TicTacToe",
        "environments.weights": "[]",
        "mode": "train",
        "folder": "/runs/1",
    }


def test_a_dot_in_a_key_is_no_level() -> None:
    assert flat_params({"a.b": 1, "a": {"b": 2}, "a\\": {"b": 3}}) == {"a\\.b": "1", "a.b": "2", "a\\\\.b": "3"}


def test_a_long_value_says_where_it_is() -> None:
    assert flat_params({"a": "x" * MAX_VALUE_LENGTH}) == {"a": "x" * MAX_VALUE_LENGTH}
    assert flat_params({"a": "x" * 6001}) == {"a": "(6001 characters, in the artifact config.yaml)"}


def test_the_text_reads_back_in_order() -> None:
    read = yaml.safe_load(config_text(CONFIG))
    assert read == {**CONFIG, "mode": "train", "folder": "/runs/1"}
    assert list(read) == list(CONFIG)


@pytest.mark.parametrize(
    "key", ["hf_token", "token", "api_key", "apiKey", "API-KEY", "password", "aws.secret", "aws_secret_access_key"]
)
def test_a_secret_is_masked_wherever_it_stands(key: str) -> None:
    config = {"vllm": {"engine_args": {key: "s3cret"}, "list": [{key: ["s3cret", 7]}]}}
    assert "s3cret" not in config_text(config)
    assert "s3cret" not in "".join(flat_params(config).values())
    assert "7" not in config_text(config)


@pytest.mark.parametrize("key", ["max_tokens", "tokenizer", "token_budget", "key", "monkey"])
def test_an_ordinary_setting_is_not_masked(key: str) -> None:
    assert flat_params({key: 16}) == {key: "16"}


def test_a_secret_that_is_not_set_shows_as_such() -> None:
    assert flat_params({"hf_token": None}) == {"hf_token": "null"}


def test_the_login_in_an_address_is_masked() -> None:
    assert flat_params({"uri": "https://me:pw@host:5000/x"}) == {"uri": "https://***@host:5000/x"}
    assert redact("API request to http://me:p/@w@host failed, see http://other") == (
        "API request to http://***@host failed, see http://other"
    )
