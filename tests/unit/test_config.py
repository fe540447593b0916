"""The configuration: what is refused and in which words, and what becomes of what is accepted."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from pipeline.config import (
    SCRIPTED_MODELS,
    ClusterConfig,
    EvalEnvSpec,
    LoraConfig,
    RunConfig,
    TrainEnvSpec,
    VLLMConfig,
    import_object,
    load,
)
from tasks.agents import scripted_players
from tasks.contracts import LoraSpec, ModelKind, ModelRef, SamplingSpec
from tasks.errors import ConfigError

SMALLEST: dict[str, Any] = {
    "vllm": {"model_name": "scripted:random"},
    "environments": {"train": [{"env_id": "KuhnPoker-v0-train"}]},
}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "run.yaml"
    path.write_text(yaml.safe_dump(SMALLEST))
    return path


def refusal(file: Path, *overrides: str) -> list[str]:
    """The lines that refuse the smallest config with these changes, without the first, which names the file."""
    with pytest.raises(ConfigError) as refused:
        load(file, overrides)
    first, *lines = str(refused.value).splitlines()
    assert first == f"{file}:"
    return [line.strip() for line in lines]


@pytest.mark.parametrize(
    ("override", "line"),
    [
        ("vllm.temperature=-1", "vllm.temperature: got -1, expected a number of at least 0"),
        ("vllm.temperature=.inf", "vllm.temperature: got inf, expected a finite number of at least 0"),
        ("vllm.temperature=true", "vllm.temperature: got True, expected a number of at least 0"),
        ("vllm.top_p=0", "vllm.top_p: got 0, expected a number above 0 and at most 1"),
        ("vllm.max_tokens=4096", "vllm.max_tokens: got 4096, expected less than max_model_len, which is 4096"),
        ("vllm.max_model_len=100", "vllm.max_tokens: got 256, expected less than max_model_len, which is 100"),
        ("vllm.max_tokens='8'", "vllm.max_tokens: got '8', expected a whole number of at least 1"),
        (
            "collect.action_sampler=majorty",
            "collect.action_sampler: unknown action_sampler 'majorty'; valid are default, majority and majority:K. "
            "Did you mean 'majority'?",
        ),
        ("vllm.lora_config.lora_rank=0", "vllm.lora_config.lora_rank: got 0, expected a whole number from 1 to 512"),
        (
            "vllm.lora_config.lora_rank=513",
            "vllm.lora_config.lora_rank: got 513, expected a whole number from 1 to 512",
        ),
        (
            "vllm.engine_args={max_cpu_loras: 2}",
            "vllm.engine_args: max_cpu_loras follows from vllm.max_loras: set that, and remove it here",
        ),
        (
            "vllm.lora_config.modules_to_save=[lm_head]",
            "vllm.lora_config.modules_to_save: got ['lm_head'], expected none: engines serve the low-rank matrices "
            "alone and would play on with the base model's own weights there. Remove it, or name linear layers in "
            "target_modules",
        ),
        (
            "vllm={model_name: m, lora_config: {lora_rank: 20}, engine_args: {max_lora_rank: 16}}",
            "vllm.lora_config: lora_rank is 20, but engine_args.max_lora_rank is 16, and vLLM takes the sizes 1, 8, "
            "16, 32, 64, 128, 256, 320, 512: set max_lora_rank to 32, or remove it",
        ),
        (
            "vllm={model_name: m, lora_config: {lora_rank: 20}, engine_args: {max_lora_rank: 24}}",
            "vllm.lora_config: lora_rank is 20, but engine_args.max_lora_rank is 24, and vLLM takes the sizes 1, 8, "
            "16, 32, 64, 128, 256, 320, 512: set max_lora_rank to 32, or remove it",
        ),
        ("vllm.lora_config.lora_dropout=1.5", "vllm.lora_config.lora_dropout: got 1.5, expected a number from 0 to 1"),
        (
            "vllm.lora_config.target_modules=[]",
            "vllm.lora_config.target_modules: got an empty list, expected names of modules, such as q_proj, k_proj, "
            "v_proj, o_proj, gate_proj, up_proj, down_proj",
        ),
        (
            "vllm.model_name=scripted:randon",
            "vllm.model_name: got 'scripted:randon', expected scripted:random or scripted:first. "
            "Did you mean 'scripted:random' or 'scripted:first'?",
        ),
        ("vllm.model_name=''", "vllm.model_name: got '', expected text that is not empty"),
        ("vllm.dtype=float64", "vllm.dtype: got 'float64', expected 'auto', 'float32', 'bfloat16' or 'float16'"),
        ("vllm.engine=tasks.engine", "vllm.engine: got 'tasks.engine', expected package.module:Name."),
        (
            "vllm.engine_args.hf_token=abc",
            "vllm.engine_args: hf_token is a secret, which no config may hold: set HF_TOKEN in the workers' "
            "environment",
        ),
        ("vllm.stop=###", "vllm.stop: got None, expected a list"),
        ("vllm.stop=[1]", "vllm.stop.0: got 1, expected text"),
        (
            "environments.train.0.num_actors=3",
            "environments.train.0.num_actors: got 3, expected a whole number from 1 to num_players, which is 2",
        ),
        (
            "environments.train=[]",
            "environments.train: got an empty list, expected at least one environment, such as "
            "{env_id: KuhnPoker-v0-train}",
        ),
        (
            "environments.train.0.env_kwargs.day=2026-01-01",
            "environments.train.0.env_kwargs: got {'day': datetime.date(2026, 1, 1)}, expected values that JSON can "
            "hold (Object of type date is not JSON serializable)",
        ),
        (
            "environments.sampler=unifrom",
            "environments.sampler: got 'unifrom', expected 'uniform' or 'weighted' or 'round_robin' or "
            "package.module:Name. Did you mean 'uniform'?",
        ),
        (
            "environments.weights=[1]",
            "environments.weights: got [1.0], but the sampler 'uniform' has no weights; set it to 'weighted'",
        ),
        (
            "environments.sampler=weighted",
            "environments.weights: missing; the sampler 'weighted' needs 1 numbers of at least 0, one for each "
            "training environment and one of them above 0",
        ),
        (
            "models.sampler=mirro",
            "models.sampler: got 'mirro', expected 'mirror' or 'fixed' or 'last_k' or package.module:Name. "
            "Did you mean 'mirror'?",
        ),
        (
            "models.sampler=fixed",
            "models.opponents: got an empty list, expected opponents for the sampler 'fixed', such as scripted:random",
        ),
        (
            "models.opponents=[adapter]",
            "models.opponents.0: got 'adapter', expected scripted:random, scripted:first, adapter:/path/to/folder, "
            "vendor/model of OpenRouter or a mapping such as {api: model, base_url: ...}.",
        ),
        ("collect.num_train_workers=0", "collect.num_train_workers: got 0, expected a whole number of at least 1"),
        ("collect.group_size=0", "collect.group_size: got 0, expected a whole number of at least 1"),
        ("collect.incomplete_groups=keep", "collect.incomplete_groups: got 'keep', expected 'deliver' or 'drop'"),
        ("models.k=0", "models.k: got 0, expected a whole number of at least 1"),
        (
            "collect.num_eval_workers=2",
            "collect.num_eval_workers: got 2 without evaluation environments, expected 0 or null, or entries in "
            "environments.eval",
        ),
        (
            "collect.num_eval_workers=-1",
            "collect.num_eval_workers: got -1, expected a whole number of at least 0 or null",
        ),
        (
            "buffer.kind=steps",
            "buffer.kind: got 'steps', expected 'step' or 'episode' or package.module:Name. Did you mean 'step'?",
        ),
        ("cluster.kind=address", "cluster.address: missing; a cluster of kind 'address' needs it"),
        ("cluster.kind=scheduler_file", "cluster.scheduler_file: missing; a cluster of kind 'scheduler_file' needs it"),
        (
            "cluster.address=localhost:8786",
            "cluster.address: got 'localhost:8786', expected the scheduler's address, such as tcp://host:8786 or "
            "tls://host:8786",
        ),
        (
            "cluster.address=tcp://localhost:8786",
            "cluster.address: got 'tcp://localhost:8786', but the cluster's kind is 'local'; set cluster.kind to "
            "'address' or remove it",
        ),
        (
            "tracking.uri=https://me:pass@host",
            "tracking.uri: holds a password, which no config may: set MLFLOW_TRACKING_USERNAME and "
            "MLFLOW_TRACKING_PASSWORD in the environment",
        ),
        ("name=a/b", "name: got 'a/b', expected letters, digits, '.', '_' and '-', for a folder is named after it"),
        ("seed=4294967296", "seed: got 4294967296, expected a whole number from 0 to 4294967295"),
        ("store=[]", "store: got [], expected a mapping"),
        (
            "vlm.temperature=1",
            "vlm: unknown key; valid are name, seed, vllm, environments, models, collect, buffer, "
            "learner, store, cluster, tracking. Did you mean 'vllm'?",
        ),
        (
            "buffer.stop.episode=1",
            "buffer.stop.episode: unknown key; valid are episodes, steps, seconds. Did you mean 'episodes'?",
        ),
    ],
)
def test_what_is_wrong_is_refused_by_field_value_and_range(file: Path, override: str, line: str) -> None:
    assert refusal(file, override) == [line]


@pytest.mark.parametrize("weights", ["[1, 2]", "[-1]", "[0]"])
def test_weights_are_one_for_each_environment_and_not_all_zero(file: Path, weights: str) -> None:
    [line] = refusal(file, "environments.sampler=weighted", f"environments.weights={weights}")
    assert line.startswith("environments.weights: got [")
    assert line.endswith("expected 1 numbers of at least 0, one for each training environment and one of them above 0")


def test_a_missing_field_is_named_and_the_nearest_name_given(file: Path) -> None:
    lines = refusal(file, "environments.train=[{env_idd: KuhnPoker-v0-train}]")
    assert lines[0] == "environments.train.0.env_id: missing; it has no default"
    assert lines[1].startswith("environments.train.0.env_idd: unknown key; valid are env_id, num_players, ")
    assert lines[1].endswith("Did you mean 'env_id'?")


def test_all_problems_come_at_once(file: Path) -> None:
    lines = refusal(
        file, "vllm.temperature=-1", "collect.num_eval_workers=1", "store.shards=3", "vllm.lora_config.rank=1"
    )
    assert [line.partition(":")[0] for line in lines] == [
        "vllm.temperature",
        "vllm.lora_config.rank",
        "collect.num_eval_workers",
        "store.shards",
    ]


def test_a_long_value_is_cut(file: Path) -> None:
    [line] = refusal(file, f"vllm.temperature={'x' * 500}")
    assert "xxx..., expected" in line
    assert len(line) < 200


def test_settings_made_in_python_are_refused_in_the_same_words() -> None:
    with pytest.raises(
        ConfigError, match=r"^num_actors: got 2, expected a whole number from 1 to num_players, which is 1"
    ):
        TrainEnvSpec(env_id="a", num_players=1, num_actors=2)
    with pytest.raises(ConfigError, match=r"^lora_config\.lora_rank: got 600, expected a whole number from 1 to 512$"):
        VLLMConfig.of({"model_name": "a/model", "lora_config": {"lora_rank": 600}})


def test_settings_do_not_change() -> None:
    with pytest.raises(ValueError, match="frozen"):
        ClusterConfig().workers = 2  # type: ignore[misc]


def test_who_learns_unless_said_otherwise() -> None:
    assert TrainEnvSpec(env_id="a", num_players=3).num_actors == 3
    assert TrainEnvSpec(**{"env_id": "a", "num_players": 3, "num_actors": None}).num_actors == 3
    assert EvalEnvSpec(env_id="a", num_players=3).num_actors == 1


def test_the_engine_gets_the_settings_and_the_extra_arguments_unchanged() -> None:
    extra = {"gpu_memory_utilization": 0.5, "compilation_config": {"level": 3}}
    config = VLLMConfig.of(
        {
            "model_name": "a/model",
            "temperature": 0.7,
            "top_p": 0.9,
            "top_k": 20,
            "stop": ["END"],
            "max_tokens": 16,
            "max_model_len": 512,
            "max_parallel_seq": 12,
            "max_loras": 2,
            "dtype": "bfloat16",
            "lora_config": {"lora_rank": 20, "target_modules": ["q_proj"]},
            "engine_args": extra,
        }
    )
    spec = config.engine_spec(seed=5)
    assert (spec.model_name, spec.factory) == ("a/model", "tasks.engine:VLLMEngine")
    assert (spec.max_model_len, spec.max_num_seqs, spec.seed, spec.dtype) == (512, 12, 5, "bfloat16")
    assert spec.lora == LoraSpec(max_rank=32, max_adapters=2, target_modules=("q_proj",))
    assert spec.engine_args == extra
    assert config.sampling() == SamplingSpec(0.7, 0.9, 20, 16, ("END",))
    assert config.policy() == ModelRef("policy@0", ModelKind.ENGINE, 0)
    assert VLLMConfig.of(config) is config


@pytest.mark.parametrize(
    ("rank", "served"), [(1, 1), (2, 8), (8, 8), (9, 16), (64, 64), (129, 256), (257, 320), (321, 512), (512, 512)]
)
def test_the_engine_reserves_a_rank_that_vllm_takes(rank: int, served: int) -> None:
    assert LoraConfig(lora_rank=rank).served_rank == served


def test_lora_is_on_for_all_projections_when_its_config_is_there() -> None:
    assert VLLMConfig(model_name="a/model").engine_spec(0).lora is None
    lora = VLLMConfig(model_name="a/model", lora_config=LoraConfig()).engine_spec(0).lora
    assert lora == LoraSpec(16, 4, ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"))


@pytest.mark.parametrize("name", SCRIPTED_MODELS)
def test_a_scripted_model_needs_no_engine(name: str) -> None:
    config = VLLMConfig(model_name=name)
    assert config.engine_spec(0).factory is None
    assert config.policy() == ModelRef(name, ModelKind.SCRIPTED)


def test_the_scripted_models_are_those_that_can_play() -> None:
    assert set(SCRIPTED_MODELS) == set(scripted_players())


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("samplers", "cannot import 'samplers': expected package.module:Name, such as my_package.samplers:MySampler"),
        (
            "no_such_module:X",
            r"cannot import 'no_such_module:X': ModuleNotFoundError: No module named 'no_such_module'",
        ),
        ("json:decoder_", r"cannot import 'json:decoder_': json has no 'decoder_'\. Did you mean 'decoder'"),
        (
            "raising_module:X",
            "cannot import 'raising_module:X': ZeroDivisionError: division by zero; expected a module",
        ),
    ],
)
def test_an_import_that_fails_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str, message: str
) -> None:
    (tmp_path / "raising_module.py").write_text("1 / 0")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match=f"^{message}"):
        import_object(path)


def test_an_object_is_found_by_its_path() -> None:
    assert import_object("pipeline.config:RunConfig") is RunConfig


def test_importing_the_configuration_loads_nothing_heavy() -> None:
    heavy = ("dask", "mlflow", "numpy", "pyarrow", "textarena", "torch", "vllm")
    code = f"import sys, pipeline.config; print([m for m in {heavy} if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
