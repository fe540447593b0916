"""Publishing a version: whole on disk or not at all, with its origin, its rating, and a name of its own for ever."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path

import pytest

from pipeline.model_registry import ModelRegistry
from pipeline.ratings import Ratings
from tasks.adapter_files import CONFIG_NAME, WEIGHTS_NAME, content_digest
from tasks.adapter_manifest import MANIFEST_NAME, check_base, check_content, read_manifest
from tasks.base_model import BaseModel, read_base
from tasks.contracts import (
    AdapterRef,
    AgentSpec,
    Episode,
    GameSpec,
    LoraSpec,
    Mode,
    ModelKind,
    ModelRef,
    Role,
    Status,
)
from tasks.errors import AdapterError, ConfigError
from tests.unit.example_adapters import BASE, CONFIG, LORA, TENSORS, adapter_bytes, write_base

POLICY = ModelRef("policy@0", ModelKind.ENGINE, policy_version=0)
RANDOM = ModelRef("scripted:random", ModelKind.SCRIPTED)
BASE_MODEL = BaseModel("base", "f" * 64, BASE)


def registry_in(run: Path) -> ModelRegistry:
    return ModelRegistry(POLICY, run / "registry.json")


def publish(registry: ModelRegistry, fill: float = 1.0, step: int = 1, lora: LoraSpec = LORA) -> ModelRef:
    return registry.publish(adapter_bytes(fill=fill), base=BASE_MODEL, lora=lora, step=step, algorithm="reinforce")


def won_by(winner: ModelRef, loser: ModelRef) -> Episode:
    agents = (AgentSpec(0, Role.ACTOR, winner), AgentSpec(1, Role.OPPONENT, loser))
    return Episode(GameSpec("run", "game", Mode.EVAL, "A-v0", 2, 0, agents), Status.COMPLETED, rewards=(1.0, -1.0))


def test_a_version_is_a_new_folder_with_its_files_and_a_manifest_of_where_it_comes_from(tmp_path: Path) -> None:
    registry = registry_in(tmp_path)
    first, second = publish(registry, 1.0, step=7), publish(registry, 2.0, step=8)
    assert [first.uid, second.uid] == ["policy@1", "policy@2"]
    assert [first.policy_version, second.policy_version] == [1, 2]
    assert registry.current() is second
    assert registry.policy_versions() == (POLICY, first, second)
    folder = tmp_path / "adapters" / "policy@2"
    assert second.adapter == AdapterRef("policy@2", str(folder))
    assert {path.name: path.read_bytes() for path in folder.iterdir() if path.name != MANIFEST_NAME} == adapter_bytes(
        fill=2.0
    )
    manifest = read_manifest(folder)
    assert (manifest.uid, manifest.policy_version, manifest.parent) == ("policy@2", 2, "policy@1")
    assert (manifest.step, manifest.algorithm) == (8, "reinforce")
    assert (manifest.base_model, manifest.base_fingerprint) == ("base", "f" * 64)
    assert manifest.digest == content_digest(folder) == second.adapter.digest
    assert sorted(path.name for path in (tmp_path / "adapters").iterdir()) == ["policy@1", "policy@2"]


def test_the_manifest_is_written_last_and_the_folder_appears_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rename = os.rename
    seen: list[set[str]] = []

    def look(source: Path, target: Path) -> None:
        seen.append({path.name for path in Path(source).iterdir()})
        assert not Path(target).exists()
        rename(source, target)

    monkeypatch.setattr("os.rename", look)
    publish(registry_in(tmp_path))
    assert seen == [{CONFIG_NAME, WEIGHTS_NAME, MANIFEST_NAME}]


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({}, r"handed over as \[\]; expected adapter_config\.json and adapter_model\.safetensors"),
        (adapter_bytes() | {WEIGHTS_NAME: b""}, "has 0 bytes"),
        (adapter_bytes() | {WEIGHTS_NAME: adapter_bytes()[WEIGHTS_NAME][:-8]}, "The file is cut off"),
        (adapter_bytes(CONFIG | {"r": 32}), "Set vllm.lora_config.lora_rank to 32"),
        (
            adapter_bytes(tensors={name.replace("layers.0", "layers.9"): shape for name, shape in TENSORS.items()}),
            "made for another base",
        ),
    ],
)
def test_what_engines_could_not_serve_is_not_published_and_the_old_version_stays(
    tmp_path: Path, files: dict[str, bytes], message: str
) -> None:
    registry = registry_in(tmp_path)
    first = publish(registry)
    with pytest.raises(AdapterError, match=message):
        registry.publish(files, base=BASE_MODEL, lora=LORA, step=2, algorithm="reinforce")
    assert registry.current() is first
    assert [path.name for path in (tmp_path / "adapters").iterdir()] == ["policy@1"]
    assert publish(registry, 2.0).uid == "policy@2"


def test_a_disk_that_is_full_leaves_no_half_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    registry = registry_in(tmp_path)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("os.rename", full)
        with pytest.raises(OSError, match="No space left"):
            publish(registry)
    assert list((tmp_path / "adapters").iterdir()) == []
    assert registry.current() is POLICY
    assert publish(registry).uid == "policy@1"


def test_a_version_that_a_killed_run_left_is_taken_if_it_is_the_same_and_never_overwritten(tmp_path: Path) -> None:
    publish(registry_in(tmp_path), 1.0)
    (tmp_path / "adapters" / ".policy@1.partial").mkdir()
    assert publish(registry_in(tmp_path), 1.0).uid == "policy@1"
    other = publish(registry_in(tmp_path), 2.0)
    assert (other.uid, other.policy_version) == ("policy@1.2", 1)
    assert publish(registry_in(tmp_path), 2.0).uid == "policy@1.2"
    assert publish(registry_in(tmp_path), 3.0).uid == "policy@1.3"
    assert read_manifest(tmp_path / "adapters" / "policy@1.2").uid == "policy@1.2"
    (tmp_path / "adapters" / "policy@1" / MANIFEST_NAME).unlink()
    assert publish(registry_in(tmp_path), 1.0).uid == "policy@1.4", "what has no manifest is not complete"


def test_what_has_no_versions_or_no_folder_cannot_publish(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"'scripted:random' cannot have a next version: .* version None"):
        publish(ModelRegistry(RANDOM, tmp_path / "registry.json"))
    with pytest.raises(ConfigError, match=r"'policy@0' cannot have a next version: the registry's path is None"):
        publish(ModelRegistry(POLICY))


def test_a_version_inherits_its_parents_rating_with_less_certainty_and_no_games(tmp_path: Path) -> None:
    registry = registry_in(tmp_path)
    assert registry.rating(publish(registry).uid).sigma == pytest.approx(25 / 3), "its parent was never rated"
    for _ in range(30):
        registry.record(won_by(registry.current(), RANDOM))
    parent = registry.rating("policy@1")
    child = registry.rating(publish(registry, 2.0).uid)
    assert child.mu == parent.mu > 25
    assert child.sigma == pytest.approx(math.sqrt(parent.sigma**2 + 25 * (25 / 300) ** 2))
    assert parent.sigma < child.sigma < 25 / 3
    assert (parent.games, child.games) == (30, 0)
    assert registry.rating("policy@1") == parent


def test_uncertainty_never_exceeds_that_of_a_new_model() -> None:
    ratings = Ratings()
    ratings.rate(won_by(POLICY, RANDOM))
    sigmas = [ratings.of("policy@0").sigma]
    for version in range(1, 500):
        ratings.inherit(f"policy@{version}", f"policy@{version - 1}")
        sigmas.append(ratings.of(f"policy@{version}").sigma)
    assert sigmas == sorted(sigmas)
    assert sigmas[-1] == pytest.approx(25 / 3)


def test_lineage_survives_saving_and_a_move_of_the_run(tmp_path: Path) -> None:
    registry = registry_in(tmp_path / "here")
    publish(registry, 1.0)
    publish(registry, 2.0)
    registry.save()
    assert registry.lineage("policy@2") == ("policy@2", "policy@1", "policy@0")
    (tmp_path / "here").rename(tmp_path / "there")
    loaded = ModelRegistry.load(tmp_path / "there" / "registry.json")
    assert loaded.lineage("policy@2") == ("policy@2", "policy@1", "policy@0")
    current = loaded.current().adapter
    assert current is not None
    assert current.path == str(tmp_path / "there" / "adapters" / "policy@2")
    assert current.digest == content_digest(Path(current.path))
    assert publish(loaded, 3.0).uid == "policy@3"


def test_files_that_are_not_those_published_are_refused(tmp_path: Path) -> None:
    registry = registry_in(tmp_path)
    adapter = publish(registry, 1.0).adapter
    assert adapter is not None
    folder = Path(adapter.path)
    check_content(adapter, folder)
    weights = (folder / WEIGHTS_NAME).read_bytes()
    for content in (b"", weights[:-8], adapter_bytes(fill=2.0)[WEIGHTS_NAME]):
        (folder / WEIGHTS_NAME).write_bytes(content)
        with pytest.raises(
            AdapterError, match=r"the files of adapter policy@1 .* cut off, still being written, or another adapter's"
        ):
            check_content(adapter, folder)
    (folder / WEIGHTS_NAME).unlink()
    with pytest.raises(AdapterError, match=r"has no adapter_model\.safetensors that can be read"):
        check_content(adapter, folder)


def test_an_adapter_of_a_base_with_the_same_shapes_and_other_weights_is_refused(tmp_path: Path) -> None:
    ours, other = (read_base(str(write_base(tmp_path / name, fill))) for name, fill in (("a", 0.0), ("b", 1.0)))
    registry = registry_in(tmp_path)
    adapter = registry.publish(adapter_bytes(), base=ours, lora=LORA, step=1, algorithm="reinforce").adapter
    assert adapter is not None
    check_base(adapter, Path(adapter.path), ours.fingerprint)
    check_base(adapter, Path(adapter.path), None)
    with pytest.raises(AdapterError, match=r"policy@1 was trained on the base model .*, whose weights are others"):
        check_base(adapter, Path(adapter.path), other.fingerprint)


def test_a_folder_without_a_manifest_or_with_a_strange_one_is_not_complete(tmp_path: Path) -> None:
    with pytest.raises(AdapterError, match=r"has no manifest\.json, which is written last: .* not complete"):
        read_manifest(tmp_path)
    (tmp_path / MANIFEST_NAME).write_text(json.dumps({"format": 2}))
    with pytest.raises(AdapterError, match=r"expected a manifest of format 1 with \['algorithm', .*'uid'\]"):
        read_manifest(tmp_path)
