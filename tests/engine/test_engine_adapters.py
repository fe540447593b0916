"""What the vLLM engine promises of adapters: each version its own, many at once, and none that is broken."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import tasks.engine_adapters
from pipeline.model_registry import ModelRegistry
from tasks.adapter_files import CONFIG_NAME, WEIGHTS_NAME
from tasks.adapter_manifest import MANIFEST_NAME
from tasks.base_model import read_base
from tasks.contracts import AdapterRef, Completion, EngineReply, LoraSpec, ModelKind, ModelRef, SamplingSpec
from tasks.engine import VLLMEngine
from tasks.errors import AdapterError, ConfigError
from tests.engine.conftest import ENGINE_MARKS, LoopThread, Served, chat, running_engine, tiny_spec
from tests.engine.forward import forward_logprobs, load_model, mean_difference
from tests.tiny_model import TARGET_MODULES, make_adapter

pytestmark = ENGINE_MARKS

LORA = LoraSpec(max_rank=8, max_adapters=2, target_modules=TARGET_MODULES)
VERSIONS = 5
CLOSE = 1e-2


@pytest.fixture(scope="module")
def served(base: Path, loop_thread: LoopThread) -> Iterator[Served]:
    """An engine that keeps two adapters at a time."""
    with running_engine(tiny_spec(base, lora=LORA), loop_thread) as served:
        yield served


@pytest.fixture(scope="module")
def versions(base: Path, tmp_path_factory: pytest.TempPathFactory) -> list[AdapterRef]:
    """Published versions of one policy."""
    run = tmp_path_factory.mktemp("run")
    registry = ModelRegistry(ModelRef("policy@0", ModelKind.ENGINE, 0), run / "registry.json")
    published = []
    for seed in range(VERSIONS):
        saved = make_adapter(run / "saved", base, seed=seed)
        files = {name: (saved / name).read_bytes() for name in (CONFIG_NAME, WEIGHTS_NAME)}
        model = registry.publish(files, base=read_base(str(base)), lora=LORA, step=seed, algorithm="reinforce")
        assert model.adapter is not None
        published.append(model.adapter)
    return published


@pytest.fixture
def copy(versions: list[AdapterRef], tmp_path: Path) -> AdapterRef:
    """A version of its own for a test to damage: the last one's weights under a new uid, in a folder of its own."""
    shutil.copytree(versions[-1].path, tmp_path / "copy")
    return replace(versions[-1], uid=f"copy {tmp_path}", path=str(tmp_path / "copy"))


def ask(served: Served, adapter: AdapterRef | None, max_tokens: int = 8) -> Future[EngineReply]:
    """One request that is not waited for."""
    sampling = SamplingSpec(max_tokens=max_tokens)
    return asyncio.run_coroutine_threadsafe(
        served.engine.generate(chat("move"), sampling, n=1, seed=0, adapter=adapter), served.on.loop
    )


def difference(base: Path, adapter: AdapterRef | None, reply: EngineReply, completion: Completion) -> float:
    """Mean distance of the log-probabilities from those that PEFT gives this version."""
    return mean_difference(list(completion.logprobs), forward_logprobs(load_model(base, adapter), reply, completion))


def assert_played_by(base: Path, adapter: AdapterRef | None, reply: EngineReply) -> None:
    (completion,) = reply.completions
    assert difference(base, adapter, reply, completion) < CLOSE


def test_more_versions_in_play_than_the_engine_keeps_each_answer_as_themselves(
    served: Served, base: Path, versions: list[AdapterRef]
) -> None:
    asked = [(adapter, ask(served, adapter)) for _ in range(3) for adapter in [None, *versions]]
    for adapter, request in asked:
        assert_played_by(base, adapter, request.result(60))


def test_versions_are_loaded_while_a_request_is_under_way_which_keeps_its_own(
    served: Served, base: Path, versions: list[AdapterRef]
) -> None:
    long = ask(served, versions[0], max_tokens=200)
    loaded = 0
    while not long.done():
        adapter = versions[1 + loaded % 2]
        served.generate("move", adapter=adapter, max_tokens=1)
        loaded += 1
    assert loaded > 1
    assert_played_by(base, versions[0], long.result())


def cut(file: Path, size: int) -> None:
    file.write_bytes(file.read_bytes()[:size])


@pytest.mark.parametrize(
    "damage",
    [
        lambda folder: cut(folder / WEIGHTS_NAME, 0),
        lambda folder: cut(folder / WEIGHTS_NAME, 5000),
        lambda folder: cut(folder / CONFIG_NAME, 0),
        lambda folder: cut(folder / CONFIG_NAME, 40),
        lambda folder: (folder / WEIGHTS_NAME).unlink(),
        lambda folder: shutil.rmtree(folder),
    ],
    ids=["empty weights", "half the weights", "empty config", "half the config", "no weights", "no folder"],
)
def test_what_is_not_whole_fails_its_own_request_and_is_served_once_it_has_arrived(
    served: Served, base: Path, versions: list[AdapterRef], copy: AdapterRef, damage: Callable[[Path], Any]
) -> None:
    before = ask(served, versions[0], max_tokens=50)
    damage(Path(copy.path))
    with pytest.raises(AdapterError, match=r"cut off, still being written|has no adapter_"):
        served.generate("move", adapter=copy)
    assert_played_by(base, versions[0], before.result(60))
    assert_played_by(base, versions[0], ask(served, versions[0]).result(60))
    shutil.copytree(versions[-1].path, copy.path, dirs_exist_ok=True)
    assert_played_by(base, copy, ask(served, copy).result(60))


def test_files_of_another_version_are_refused(served: Served, versions: list[AdapterRef], copy: AdapterRef) -> None:
    shutil.copy(Path(versions[0].path) / WEIGHTS_NAME, copy.path)
    with pytest.raises(AdapterError, match="or another adapter's"):
        served.generate("move", adapter=copy)
    assert served.generate("move", adapter=versions[0], max_tokens=1).completions


def test_an_adapter_of_the_same_shapes_for_other_weights_is_refused(served: Served, copy: AdapterRef) -> None:
    manifest = Path(copy.path) / MANIFEST_NAME
    fingerprint = read_base(served.engine._spec.model_name).fingerprint
    assert fingerprint is not None and fingerprint in manifest.read_text()
    manifest.write_text(manifest.read_text().replace(fingerprint, "0" * 64))
    with pytest.raises(AdapterError, match=r"trained on the base model .* whose weights are others"):
        served.generate("move", adapter=copy)
    assert served.generate("move", max_tokens=1).completions


def test_a_version_serves_on_without_its_folder_until_it_is_given_up_and_then_fails_alone(
    served: Served, base: Path, versions: list[AdapterRef], copy: AdapterRef
) -> None:
    served.generate("move", adapter=copy, max_tokens=1)
    shutil.rmtree(copy.path)
    assert_played_by(base, versions[-1], ask(served, copy).result(60))
    for adapter in versions:
        served.generate("move", adapter=adapter, max_tokens=1)
    gone, others = ask(served, copy), [ask(served, adapter) for adapter in versions]
    with pytest.raises(
        AdapterError, match=r"has no adapter_config\.json and no adapter_model\.safetensors, or cannot be read"
    ):
        gone.result(60)
    for adapter, request in zip(versions, others, strict=True):
        assert_played_by(base, adapter, request.result(60))
    shutil.copytree(versions[-1].path, copy.path)
    assert_played_by(base, versions[-1], ask(served, copy).result(60))


def test_each_adapter_version_gives_its_own_logprobs(
    served: Served, base: Path, adapters: tuple[AdapterRef, AdapterRef]
) -> None:
    models = [load_model(base), *(load_model(base, adapter) for adapter in adapters)]
    for index, adapter in enumerate([None, *adapters]):
        reply, completion = served.complete("move", adapter=adapter, max_tokens=24)
        recorded = list(completion.logprobs)
        differences = [mean_difference(recorded, forward_logprobs(model, reply, completion)) for model in models]
        assert differences.pop(index) < 1e-2
        assert min(differences) > 0.1, "base, first and second version are different models"


def test_an_engine_does_not_start_for_modules_that_its_model_lacks(base: Path, loop_thread: LoopThread) -> None:
    engine = VLLMEngine(tiny_spec(base, lora=replace(LORA, target_modules=("q_proj", "query", "w1"))))
    with pytest.raises(ConfigError, match=r"has 'query', 'w1', which the model .* does not have; expected .* q_proj"):
        loop_thread.run(engine.start())
    loop_thread.run(engine.stop())


def test_an_adapter_for_another_base_is_refused_and_the_engine_lives(
    served: Served, foreign_adapter: AdapterRef
) -> None:
    with pytest.raises(AdapterError, match=r"lora_A \(4, 192\) .* expected \(4, 128\) .* made for another base"):
        served.generate("move", adapter=foreign_adapter)
    assert served.generate("move", max_tokens=4).completions


def test_an_adapter_that_only_vllm_refuses_leaves_the_engine_and_other_adapters_alone(
    served: Served, base: Path, foreign_adapter: AdapterRef, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(tasks.engine_adapters, "check_adapter", lambda *_: None)
        with pytest.raises(AdapterError, match="vLLM could not load the adapter"):
            served.generate("move", adapter=AdapterRef("unchecked", foreign_adapter.path))
    after = AdapterRef("after", str(make_adapter(tmp_path, base, seed=3)))
    reply, completion = served.complete("move", adapter=after, max_tokens=8)
    assert list(completion.logprobs) == pytest.approx(
        forward_logprobs(load_model(base, after), reply, completion), abs=1e-2
    )
