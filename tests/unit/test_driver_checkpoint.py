"""The driver's checkpoint: whole or not at all, and refused where it is another run's."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.checkpoints import FOLDER, Checkpoint, check_identity, load_checkpoint, run_id_of, save_checkpoint
from pipeline.trainer import Progress
from tasks.errors import ConfigError, DatasetError


def checkpoint(number: int) -> Checkpoint:
    return Checkpoint(
        identity={"vllm.model_name": "m"},
        progress=Progress(number=number, version=number, trained=10 * number),
        scheduler={"run_id": "abc"},
        buffer={},
        staleness={},
        registry=b"{}",
        shards=frozenset({"00000-a.parquet"}),
    )


def test_the_newest_takes_the_place_of_the_one_before(tmp_path: Path) -> None:
    for number in range(3):
        save_checkpoint(tmp_path, checkpoint(number))
    assert load_checkpoint(tmp_path) == checkpoint(2)
    assert [path.name for path in (tmp_path / FOLDER).iterdir()] == ["driver.pickle"]


def test_a_run_killed_before_its_first_has_none(tmp_path: Path) -> None:
    assert load_checkpoint(tmp_path) is None


def test_a_run_keeps_its_identity_from_its_first_moment_on(tmp_path: Path) -> None:
    first = run_id_of(tmp_path, resume=True)
    assert run_id_of(tmp_path, resume=True) == first
    assert run_id_of(tmp_path, resume=False) != first


@pytest.mark.parametrize("cut", [0, 10, 100])
def test_one_that_is_cut_off_is_refused_in_words(tmp_path: Path, cut: int) -> None:
    save_checkpoint(tmp_path, checkpoint(1))
    path = tmp_path / FOLDER / "driver.pickle"
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(DatasetError, match=r"driver\.pickle cannot be read as a checkpoint: .*Resume with the version"):
        load_checkpoint(tmp_path)


def test_another_run_is_refused_with_every_difference() -> None:
    saved = {"vllm.model_name": "a", "vllm.lora_config.lora_rank": 8, "learner.algorithm": "reinforce"}
    check_identity(saved, dict(saved))
    with pytest.raises(ConfigError) as caught:
        check_identity(saved, {**saved, "vllm.model_name": "b", "vllm.lora_config.lora_rank": 16})
    assert str(caught.value).startswith(
        "the run cannot be resumed as another one: vllm.model_name was 'a' and is now 'b'; "
        "vllm.lora_config.lora_rank was 8 and is now 16. Resume with the settings it began with"
    )
