"""The canary on engines that put every adapter to work, some of them, or none."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from pipeline import adapter_canary
from pipeline.adapter_canary import Canary
from tasks.adapter_files import CONFIG_NAME, WEIGHTS_NAME, check_adapter, safetensors_shapes
from tasks.canary import Probe, probe_of, silent_modules, write_probe
from tasks.contracts import AdapterRef, Completion, EngineFigures, EngineReply, EngineState, SamplingSpec
from tasks.engine_keeper import IDLE, EngineLoad
from tasks.errors import AdapterError, EngineDiedError
from tests.unit.example_adapters import BASE, CONFIG, DOWN, LORA, Q, write_adapter


class FakeEngine:
    """Answers every prompt with one token, whose log-probability moves by `effect` for an adapter on what it hears."""

    def __init__(self, hears: Collection[str], effect: float = 1.0) -> None:
        self._hears = hears
        self._effect = effect

    async def start(self) -> None:
        raise NotImplementedError

    async def stop(self) -> None:
        raise NotImplementedError

    async def generate(
        self,
        messages: Sequence[Mapping[str, str]],
        sampling: SamplingSpec,
        *,
        n: int,
        seed: int,
        adapter: AdapterRef | None,
    ) -> EngineReply:
        assert sampling.temperature == 0 and n == 1
        logprob = -2.0
        if adapter is not None:
            check_adapter(Path(adapter.path), BASE, LORA)
            changed = json.loads((Path(adapter.path) / CONFIG_NAME).read_text())["target_modules"]
            logprob += self._effect * bool(set(changed) & set(self._hears))
        return EngineReply((1,), (Completion("x", (7,), (logprob,), "length"),))

    def load(self) -> EngineLoad:
        return IDLE


@pytest.fixture
def probe(tmp_path: Path) -> Probe:
    return probe_of(write_adapter(tmp_path / "adapter"))


@pytest.mark.parametrize(
    ("hears", "silent"),
    [(["q_proj", "down_proj"], ()), (["q_proj"], ("down_proj",)), ([], ("q_proj", "down_proj"))],
)
def test_modules_whose_adapters_change_nothing_are_told(
    probe: Probe, hears: list[str], silent: tuple[str, ...]
) -> None:
    assert asyncio.run(silent_modules(FakeEngine(hears), probe)) == silent


def test_what_rounding_might_do_is_no_effect(probe: Probe) -> None:
    assert asyncio.run(silent_modules(FakeEngine(["q_proj", "down_proj"], effect=0.03), probe)) == (
        "q_proj",
        "down_proj",
    )


@pytest.mark.parametrize(("rslora", "scaling"), [(False, 8 / 4), (True, 8 / 2)])
def test_a_probe_has_the_adapters_names_for_one_kind_and_weights_as_large_as_a_layers(
    tmp_path: Path, probe: Probe, rslora: bool, scaling: float
) -> None:
    np = pytest.importorskip("numpy")
    safetensors = pytest.importorskip("safetensors.numpy")
    changed = Probe({**probe.config, "use_rslora": rslora}, probe.shapes)
    write_probe(changed, [DOWN], tmp_path)
    assert safetensors_shapes(tmp_path / WEIGHTS_NAME) == {
        name: shape for name, shape in probe.shapes.items() if DOWN in name
    }
    tensors: dict[str, Any] = safetensors.load_file(tmp_path / WEIGHTS_NAME)
    a, b = (tensors[f"base_model.model.{DOWN}.lora_{half}.weight"] for half in "AB")
    assert np.std(scaling * b @ a) == pytest.approx(1 / math.sqrt(128), rel=0.2)
    config = json.loads((tmp_path / CONFIG_NAME).read_text())
    assert config == {**CONFIG, "use_rslora": rslora, "target_modules": ["down_proj"]}


class FakeClient:
    """Runs functions on one worker; `answer` is what the canary hears there."""

    def __init__(self, answer: Any, state: EngineState = EngineState.READY) -> None:
        self.answer = answer
        self.asked = 0
        self._state = state

    def run(self, function: Any, *arguments: Any, **_: Any) -> dict[str, Any]:
        if function is adapter_canary.host_state:
            return {"tcp://learner": None, "tcp://engine": EngineFigures("tcp://engine", self._state)}
        self.asked += 1
        if isinstance(self.answer, Exception):
            raise self.answer
        return {"tcp://engine": self.answer}


@pytest.fixture
def adapter(tmp_path: Path) -> AdapterRef:
    return AdapterRef("policy@1", str(write_adapter(tmp_path / "adapter")))


def test_it_is_shown_once_per_run(adapter: AdapterRef) -> None:
    client = FakeClient(())
    canary = Canary(client)
    for _ in range(3):
        canary.check(adapter)
    assert client.asked == 1


def test_a_run_whose_adapters_do_not_reach_the_model_stops_and_names_the_modules(adapter: AdapterRef) -> None:
    canary = Canary(FakeClient(("q_proj", "down_proj")))
    with pytest.raises(
        AdapterError,
        match=rf"the engine on tcp://engine answers as before .*: q_proj \(1, such as {Q}\), down_proj \(1, such as",
    ):
        canary.check(adapter)


@pytest.mark.parametrize("trouble", [EngineDiedError("dead"), OSError("the worker left")])
def test_an_engine_that_is_lost_meanwhile_or_none_that_is_ready_shows_nothing_and_the_next_version_does(
    adapter: AdapterRef, trouble: Exception
) -> None:
    starting = FakeClient((), EngineState.STARTING)
    Canary(starting).check(adapter)
    assert starting.asked == 0
    client = FakeClient(trouble)
    canary = Canary(client)
    canary.check(adapter)
    client.answer = ("q_proj",)
    with pytest.raises(AdapterError, match="q_proj"):
        canary.check(adapter)
