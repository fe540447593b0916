"""Which opponent is drawn, how fixed opponents are named, and which names are refused."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from pipeline.config import ApiOpponent, TrainEnvSpec
from pipeline.model_registry import ModelRegistry
from pipeline.model_samplers import FixedSampler, LastKSampler, MirrorSampler, make_model_sampler, opponent_ref
from tasks.contracts import ApiRef, ModelKind, ModelRef, SamplingSpec
from tasks.errors import AdapterError, ConfigError

POLICY = ModelRef("policy@0", ModelKind.ENGINE, policy_version=0)
ENV = TrainEnvSpec(env_id="A-v0")
OWN_SAMPLER = """
from pipeline.model_samplers import BaseModelSampler

class Own(BaseModelSampler):
    def __init__(self, registry, opponents=(), seed=0):
        super().__init__(registry, seed)
        self.opponents = opponents

    def sample_opponent(self, env):
        return self.current()

class NotOne:
    pass
"""


@pytest.fixture
def own_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "own_model_sampler.py").write_text(OWN_SAMPLER)
    monkeypatch.syspath_prepend(tmp_path)
    return "own_model_sampler"


@pytest.fixture
def registry() -> ModelRegistry:
    return ModelRegistry(POLICY)


def adapter(folder: Path, weights: bytes = b"weights", config: str = "{}") -> Path:
    folder.mkdir(parents=True)
    (folder / "adapter_config.json").write_text(config)
    (folder / "adapter_model.safetensors").write_bytes(weights)
    return folder


def test_mirror_plays_against_the_checkpoint_in_training(registry: ModelRegistry) -> None:
    sampler = MirrorSampler(registry)
    assert sampler.current() == POLICY
    assert sampler.sample_opponent(ENV) == POLICY


def test_fixed_draws_each_entry_equally_often_and_makes_them_known(registry: ModelRegistry) -> None:
    sampler = FixedSampler(registry, ["scripted:random", "scripted:first"], seed=1)
    drawn = Counter(sampler.sample_opponent(ENV).uid for _ in range(2000))
    assert set(drawn) == {"scripted:random", "scripted:first"}
    assert 900 < drawn["scripted:first"] < 1100
    assert registry.get("scripted:first") == ModelRef("scripted:first", ModelKind.SCRIPTED)
    assert sampler.current() == POLICY


def test_same_seed_same_opponents(registry: ModelRegistry) -> None:
    def draws(seed: int) -> list[str]:
        sampler = FixedSampler(registry, ["scripted:random", "scripted:first"], seed)
        return [sampler.sample_opponent(ENV).uid for _ in range(40)]

    assert draws(1) == draws(1)
    assert draws(1) != draws(2)


def test_fixed_without_opponents_is_refused(registry: ModelRegistry) -> None:
    with pytest.raises(ConfigError, match=r"models\.opponents is empty: the fixed sampler needs at least one"):
        FixedSampler(registry, [])


def test_an_adapter_is_known_by_its_folder_and_its_content(tmp_path: Path) -> None:
    one = opponent_ref(f"adapter:{adapter(tmp_path / 'a' / 'early')}")
    assert one.kind is ModelKind.ENGINE
    assert one.policy_version is None
    assert one.adapter is not None
    assert one.adapter.path == str(tmp_path / "a" / "early")
    assert one.uid == one.adapter.uid
    assert one.uid.startswith("adapter:early@")
    elsewhere = opponent_ref(f"adapter:{adapter(tmp_path / 'b' / 'early')}")
    assert elsewhere.uid == one.uid
    other_weights = opponent_ref(f"adapter:{adapter(tmp_path / 'c' / 'early', weights=b'other')}")
    other_config = opponent_ref(f"adapter:{adapter(tmp_path / 'd' / 'early', config='{ }')}")
    assert len({one.uid, other_weights.uid, other_config.uid}) == 3


def test_an_adapter_by_a_relative_path_gets_an_absolute_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    adapter(tmp_path / "early")
    monkeypatch.chdir(tmp_path)
    found = opponent_ref("adapter:early").adapter
    assert found is not None
    assert found.path == str(tmp_path / "early")


@pytest.mark.parametrize("missing", ["adapter_config.json", "adapter_model.safetensors"])
def test_an_incomplete_adapter_is_refused(tmp_path: Path, missing: str) -> None:
    folder = adapter(tmp_path / "early")
    (folder / missing).unlink()
    with pytest.raises(AdapterError, match=rf"has no {missing} that can be read .*: expected adapter_config\.json and"):
        opponent_ref(f"adapter:{folder}")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("scripted:randon", r"no opponent 'scripted:randon': expected .* Did you mean 'scripted:random'"),
        (
            "random",
            r"no opponent 'random': expected scripted:random, scripted:first, adapter:/path/to/folder or vendor",
        ),
        ("adapter:", r"no opponent 'adapter:'"),
        ("adapter:/nowhere/at/all", r"opponent 'adapter:/nowhere/at/all': there is no folder /nowhere/at/all"),
    ],
)
def test_what_is_no_opponent_is_refused(name: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        opponent_ref(name)


def test_a_model_of_openrouter_is_named_as_there() -> None:
    ref = opponent_ref("google/gemini-2.0-flash-lite-001")
    assert (ref.uid, ref.kind, ref.policy_version) == ("google/gemini-2.0-flash-lite-001", ModelKind.API, None)
    assert ref.api is not None
    assert (ref.api.base_url, ref.api.key_variable) == ("https://openrouter.ai/api/v1", "OPENROUTER_API_KEY")


def test_any_other_endpoint_is_named_with_its_settings(registry: ModelRegistry) -> None:
    there = ApiOpponent(api="tiny", base_url="http://127.0.0.1:8000/v1", temperature=0.5, max_tokens=32, retries=1)
    fixed = FixedSampler(registry, [there])
    assert fixed.sample_opponent(ENV) == ModelRef(
        "tiny@127.0.0.1:8000",
        ModelKind.API,
        api=ApiRef(
            model="tiny",
            base_url="http://127.0.0.1:8000/v1",
            key_variable=None,
            sampling=SamplingSpec(temperature=0.5, max_tokens=32),
            retries=1,
        ),
    )


def test_one_model_asked_in_two_ways_needs_two_names(registry: ModelRegistry) -> None:
    cold, hot = ApiOpponent(api="a/b", temperature=0.1), ApiOpponent(api="a/b")
    with pytest.raises(ConfigError, match=r"two models share the uid 'a/b'"):
        FixedSampler(registry, [cold, hot])
    named = ApiOpponent(api="a/b", temperature=0.1, name="cold")
    uids = {opponent.uid for opponent in FixedSampler(ModelRegistry(POLICY), [named, hot]).opponents}
    assert uids == {"cold", "a/b"}


def test_last_k_draws_each_of_the_newest_versions_equally_often(registry: ModelRegistry) -> None:
    registry.add(ModelRef("scripted:random", ModelKind.SCRIPTED))
    for version in (3, 1, 2):
        registry.add(ModelRef(f"policy@{version}", ModelKind.ENGINE, version))
    sampler = LastKSampler(registry, k=3, seed=1)
    drawn = Counter(sampler.sample_opponent(ENV).uid for _ in range(900))
    assert set(drawn) == {"policy@1", "policy@2", "policy@3"}
    assert min(drawn.values()) > 240


def test_last_k_sees_versions_that_come_later_and_draws_the_same_with_the_same_seed(registry: ModelRegistry) -> None:
    one, two = (LastKSampler(registry, seed=4) for _ in range(2))
    assert {one.sample_opponent(ENV) for _ in range(20)} == {POLICY}, "with one version it is self-play"
    two.rng.setstate(one.rng.getstate())
    registry.add(ModelRef("policy@1", ModelKind.ENGINE, 1))
    drawn = [one.sample_opponent(ENV).uid for _ in range(20)]
    assert set(drawn) == {"policy@0", "policy@1"}
    assert drawn == [two.sample_opponent(ENV).uid for _ in range(20)]


def test_last_k_of_a_scripted_player_is_self_play() -> None:
    scripted = ModelRef("scripted:random", ModelKind.SCRIPTED)
    assert LastKSampler(ModelRegistry(scripted)).sample_opponent(ENV) == scripted


def test_last_k_of_no_version_is_refused(registry: ModelRegistry) -> None:
    with pytest.raises(ConfigError, match=r"models\.k is 0: the last_k sampler needs at least 1 version"):
        LastKSampler(registry, k=0)


def test_samplers_by_name(registry: ModelRegistry, own_module: str) -> None:
    assert isinstance(make_model_sampler("mirror", registry, [], 0), MirrorSampler)
    fixed = make_model_sampler("fixed", registry, ["scripted:first"], 0)
    assert fixed.sample_opponent(ENV).uid == "scripted:first"
    last = make_model_sampler("last_k", registry, [], 0, 7)
    assert isinstance(last, LastKSampler)
    assert last.k == 7
    own = make_model_sampler(f"{own_module}:Own", registry, [], 0)
    assert own.sample_opponent(ENV) == POLICY
    assert vars(make_model_sampler(f"{own_module}:Own", registry, ["them"], 0))["opponents"] == ["them"]


def test_an_unknown_sampler_is_refused_with_the_nearest_name(registry: ModelRegistry) -> None:
    with pytest.raises(ConfigError, match=r"models\.sampler is 'miror': expected .* Did you mean 'mirror'"):
        make_model_sampler("miror", registry, [], 0)


def test_a_class_that_is_no_sampler_is_refused(registry: ModelRegistry, own_module: str) -> None:
    with pytest.raises(ConfigError, match=r"expected a subclass of pipeline\.model_samplers:BaseModelSampler"):
        make_model_sampler(f"{own_module}:NotOne", registry, [], 0)


@pytest.mark.parametrize(("name", "plays"), [("mirror", "itself"), ("last_k", "its own versions")])
def test_opponents_for_samplers_that_have_none_are_refused(registry: ModelRegistry, name: str, plays: str) -> None:
    with pytest.raises(ConfigError, match=rf"models\.sampler is '{name}', which plays against {plays}: set .* 'fixed'"):
        make_model_sampler(name, registry, ["scripted:random"], 0)
