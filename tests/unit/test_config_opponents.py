"""Opponents in a configuration: their forms, and that a secret neither fits in nor comes out in a message."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pipeline.config import ApiOpponent, EvalEnvSpec, ModelsConfig, dump, load
from tasks.errors import ConfigError

SECRET = "sk-or-v1-0123456789abcdef"
YAML = """
vllm: {model_name: "scripted:random"}
environments:
  train: [{env_id: KuhnPoker-v0-train, num_actors: 1}]
  eval: [{env_id: KuhnPoker-v0-train, fixed_opponent: {api: tiny, base_url: "http://127.0.0.1:8000/v1"}}]
models:
  sampler: fixed
  opponents:
    - scripted:first
    - google/gemini-2.0-flash-lite-001
    - {api: tiny, base_url: "http://127.0.0.1:8000/v1", key_variable: MY_KEY, max_concurrency: 2, temperature: 0.5}
"""


def test_a_file_with_all_forms_loads_and_its_dump_loads_back_equal(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(YAML)
    config = load(tmp_path / "a.yaml")
    assert config.models.opponents == (
        "scripted:first",
        "google/gemini-2.0-flash-lite-001",
        ApiOpponent(
            api="tiny",
            base_url="http://127.0.0.1:8000/v1",
            key_variable="MY_KEY",
            max_concurrency=2,
            temperature=0.5,
        ),
    )
    assert config.environments.eval[0].fixed_opponent == ApiOpponent(api="tiny", base_url="http://127.0.0.1:8000/v1")
    (tmp_path / "b.yaml").write_text(dump(config))
    assert load(tmp_path / "b.yaml") == config


def test_only_openrouter_has_a_key_by_default() -> None:
    assert ApiOpponent(api="a/b").key_variable == "OPENROUTER_API_KEY"
    assert ApiOpponent(api="a/b", base_url="http://localhost:1/v1").key_variable is None
    assert ApiOpponent(api="a/b", key_variable=None).key_variable is None


@pytest.mark.parametrize(
    ("opponent", "message"),
    [
        ({"api": ""}, "api: got '', expected text that is not empty"),
        ({"api": "a", "api_key": SECRET}, "api_key: unknown key; valid are api, "),
        (
            {"api": "a", "key_variable": SECRET},
            "key_variable: expected the name of an environment variable in capitals",
        ),
        ({"api": "a", "base_url": f"http://me:{SECRET}@host/v1"}, "base_url: holds a login, a query or a fragment"),
        ({"api": "a", "base_url": f"http://host/v1?key={SECRET}"}, "base_url: holds a login, a query or a fragment"),
        ({"api": "a", "base_url": f"http://host/v1#{SECRET}"}, "base_url: holds a login, a query or a fragment"),
        ({"api": "a", "base_url": "host/v1"}, "base_url: got 'host/v1', expected an address such as http"),
        ({"api": "a", "retries": -1}, "retries: got -1, expected a whole number of at least 0"),
        ({"api": "a", "max_concurrency": 0}, "max_concurrency: got 0, expected a whole number of at least 1"),
        ({"api": "a", "timeout_s": 0}, "timeout_s: got 0, expected a number above 0"),
        ({1: 2}, "1: unknown key"),
        (5, "got 5, expected a name, or a mapping such as {api: model, base_url: ...}"),
        ("scripted:frist", "got 'scripted:frist', expected scripted:random, .* Did you mean 'scripted:first'"),
        ("/google", "got '/google', expected"),
    ],
)
def test_a_wrong_opponent_is_refused_and_no_secret_is_shown(opponent: Any, message: str) -> None:
    for make, path in (
        (lambda: EvalEnvSpec(env_id="X-v0", fixed_opponent=opponent), r"fixed_opponent(\.|: )"),
        (lambda: ModelsConfig(sampler="fixed", opponents=("scripted:first", opponent)), r"opponents\.1(\.|: )"),
    ):
        with pytest.raises(ConfigError, match=path + message) as caught:
            make()
        assert SECRET not in str(caught.value)
        assert "missing" not in str(caught.value) or opponent == {1: 2}
