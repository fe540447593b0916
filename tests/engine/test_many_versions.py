"""Hundreds of versions in a row, from a learner into an engine: nothing is kept of those that were given up."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from pipeline.model_registry import ModelRegistry
from tasks.adapter_files import WEIGHTS_NAME
from tasks.base_model import read_base
from tasks.contracts import LoraSpec, ModelKind, ModelRef
from tasks.learner import Learner
from tests.engine.conftest import ENGINE_MARKS, LoopThread, Served, running_engine, tiny_spec
from tests.tiny_model import TARGET_MODULES
from tests.unit.learner_samples import batch, sample
from tests.unit.learner_samples import tiny_spec as learner_spec

pytestmark = [*ENGINE_MARKS, pytest.mark.long, pytest.mark.timeout(1200)]

RANK = 64  # as large as the tiny model, so that what is kept shows
LORA = LoraSpec(max_rank=RANK, max_adapters=2, target_modules=TARGET_MODULES)
VERSIONS = 300
SETTLED = 60  # versions after which the processes have the memory they work with


@pytest.fixture(scope="module")
def served(base: Path, loop_thread: LoopThread) -> Iterator[Served]:
    with running_engine(tiny_spec(base, lora=LORA), loop_thread) as served:
        yield served


def use(served: Served) -> dict[str, tuple[int, int]]:
    """Memory in bytes that belongs to one process alone, and its open files: of each of the engine's and of the
    learner's, which is this one."""
    gc.collect()
    processes = [psutil.Process(), *served.engine._processes]
    return {
        f"{process.name()} {process.pid}": (process.memory_full_info().uss, process.num_fds()) for process in processes
    }


def test_memory_and_open_files_stay_level_over_hundreds_of_versions(served: Served, base: Path, tmp_path: Path) -> None:
    learner = Learner(learner_spec(base, tmp_path / "checkpoints", lora_rank=RANK, learning_rate=1e-3))
    registry = ModelRegistry(ModelRef("policy@0", ModelKind.ENGINE, 0), tmp_path / "registry.json")
    model = read_base(str(base))
    uses, said, published_bytes = [], set(), 0
    for step in range(VERSIONS):
        reward = 1.0 if step % 2 else -1.0
        tokens = sample(range(10, 30), [(5, 9), (12, 16)], [reward, reward / 2], version=step)
        files = learner.step(batch(tokens, number=step, version=step)).adapter
        assert files is not None
        adapter = registry.publish(files, base=model, lora=LORA, step=step, algorithm="reinforce").adapter
        _, completion = served.complete("move", adapter=adapter, max_tokens=2, temperature=0.0)
        said.add(completion.logprobs)
        if step + 1 in (SETTLED, VERSIONS):
            uses.append(use(served))
        published_bytes += len(files[WEIGHTS_NAME]) * (step >= SETTLED)
    assert registry.current().policy_version == VERSIONS
    assert len(said) > 0.9 * VERSIONS, "each version is played as itself"
    before, after = uses
    for process, (memory, open_files) in before.items():
        later_memory, later_open_files = after[process]
        assert later_open_files <= open_files + 2, process
        assert later_memory - memory < published_bytes / 20, process
