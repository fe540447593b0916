"""YAML in and out: files that are no config, `--set`, and a dump that loads back equal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.config import EnvironmentsConfig, EvalEnvSpec, LoraConfig, RunConfig, TrainEnvSpec, VLLMConfig, dump, load
from pipeline.config_games import SECRET_NAME
from tasks.errors import ConfigError


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "run.yaml"
    path.write_text("vllm: {model_name: 'scripted:random'}\nenvironments: {train: [{env_id: KuhnPoker-v0-train}]}\n")
    return path


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: [1\nb: 2", "{file}, line 2: not valid YAML: expected ',' or ']', but got ':'"),
        ("name: a\nname: b", "{file}, line 1: not valid YAML: the key 'name' stands twice"),
        ("on: 1", "{file}, line 1: not valid YAML: the key True is not text: quote it"),
        (
            "x: !!python/object:a.b c",
            "{file}, line 1: not valid YAML: could not determine a constructor for the tag "
            "'tag:yaml.org,2002:python/object:a.b'",
        ),
        (
            "\x07",
            "{file}: not valid YAML: unacceptable character #x0007: special characters are not allowed in "
            '"<unicode string>", position 0',
        ),
        ("- 1", "{file}: holds [1], expected a mapping such as `name: demo`"),
    ],
)
def test_a_file_that_is_no_config_is_refused(file: Path, text: str, message: str) -> None:
    file.write_text(text)
    with pytest.raises(ConfigError) as refused:
        load(file)
    assert str(refused.value) == message.format(file=file)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.yaml: cannot be read \(.*No such file.*expected a YAML file"):
        load(tmp_path / "none.yaml")


def test_an_empty_file_lacks_what_has_no_default(file: Path) -> None:
    file.write_text("")
    with pytest.raises(ConfigError) as refused:
        load(file)
    assert str(refused.value).splitlines() == [
        f"{file}:",
        "  vllm: missing; it has no default",
        "  environments: missing; it has no default",
    ]


def test_overrides_reach_lists_and_make_missing_mappings(file: Path) -> None:
    config = load(
        file,
        [
            "vllm.lora_config.lora_rank=8",
            "environments.train.0.env_id=TicTacToe-v0-train",
            "environments.train.0.env_kwargs.a.b=[1, null]",
            "environments.eval=[{env_id: KuhnPoker-v0-train}]",
            "buffer.stop.seconds=1e1",
            "tracking.uri=",
        ],
    )
    assert config.vllm.lora_config == LoraConfig(lora_rank=8)
    assert config.environments.train == (TrainEnvSpec(env_id="TicTacToe-v0-train", env_kwargs={"a": {"b": [1, None]}}),)
    assert config.environments.eval == (EvalEnvSpec(env_id="KuhnPoker-v0-train"),)
    assert config.buffer.stop.seconds == 10.0
    assert config.tracking.uri is None


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("seed", "--set seed: expected key.path=value, such as collect.num_train_workers=4"),
        ("vllm..x=1", "--set vllm..x=1: expected key.path=value, such as collect.num_train_workers=4"),
        ("seed=[", "--set seed=[, line 1: not valid YAML: expected the node content, but found '<stream end>'"),
        (
            "vllm.model_name.x=1",
            "--set vllm.model_name.x=1: vllm.model_name is 'scripted:random', which has no 'x' in it",
        ),
        (
            "environments.train.1.env_id=a",
            "--set environments.train.1.env_id=a: environments.train is a list of 1, got '1', expected an index from 0 "
            "to 0",
        ),
    ],
)
def test_an_override_that_leads_nowhere_is_refused(file: Path, override: str, message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        load(file, [override])
    assert str(refused.value) == message


# A configuration refuses names of secrets.
names = st.text().filter(lambda name: not SECRET_NAME.search(name))
plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3),
    max_leaves=6,
)


@settings(deadline=None)
@given(
    stop=st.lists(st.text() | st.sampled_from(["1e5", "1_0e3", "yes", "0x1", "~", "1.e+3"]), max_size=3),
    kwargs=st.dictionaries(names, plain, max_size=3),
    temperature=st.floats(min_value=0, allow_infinity=False),
    lora=st.none() | st.builds(LoraConfig, lora_rank=st.integers(1, 512)),
)
def test_what_is_dumped_loads_back_equal(
    tmp_path_factory: pytest.TempPathFactory,
    stop: list[str],
    kwargs: dict[str, Any],
    temperature: float,
    lora: LoraConfig | None,
) -> None:
    config = RunConfig(
        vllm=VLLMConfig(model_name="a/model", stop=tuple(stop), temperature=temperature, lora_config=lora),
        environments=EnvironmentsConfig(
            train=(TrainEnvSpec(env_id="a", env_kwargs=kwargs),), eval=(EvalEnvSpec(env_id="a"),)
        ),
    )
    file = tmp_path_factory.getbasetemp() / "resolved.yaml"
    file.write_text(dump(config), encoding="utf-8")
    assert load(file) == config


def test_the_dump_shows_every_default(file: Path) -> None:
    resolved = yaml.safe_load(dump(load(file)))
    assert resolved["environments"]["train"][0]["num_actors"] == 2
    assert resolved["collect"] == {
        "num_train_workers": 8,
        "num_eval_workers": None,
        "action_sampler": "default",
        "prefetch": 0.25,
        "retries": 2,
        "max_consecutive_failures": 20,
        "group_size": 1,
        "incomplete_groups": "deliver",
    }
