"""What is read of a base model: its linear layers, whose weights they are, and which target modules it lacks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tasks.adapter_files import Shape
from tasks.base_model import check_target_modules, fingerprint, linear_shapes, read_base
from tasks.errors import ConfigError
from tests.unit.example_adapters import BASE, DOWN, Q, safetensors_bytes, write_base


def test_the_linear_shapes_of_a_base_leave_out_what_is_not_a_matrix(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    tensors: dict[str, Shape] = {f"{Q}.weight": (64, 32), f"{Q}.bias": (64,), "model.norm.weight": (32,)}
    tensors["model.embed_tokens.weight"] = (100, 32)
    (tmp_path / "model.safetensors").write_bytes(safetensors_bytes(tensors))
    assert linear_shapes(str(tmp_path)) == {Q: (64, 32)}


def test_the_shapes_of_a_base_in_shards_come_from_all_of_them(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    files = {"model-1.safetensors": Q, "model-2.safetensors": DOWN}
    for file, module in files.items():
        (tmp_path / file).write_bytes(safetensors_bytes({f"{module}.weight": BASE[module]}))
    index = {"weight_map": {f"{module}.weight": file for file, module in files.items()}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    assert linear_shapes(str(tmp_path)) == BASE


@pytest.mark.parametrize("config", [{"quantization_config": {"quant_method": "gptq"}}, {}])
def test_there_are_no_shapes_where_the_base_is_quantised_or_not_in_safetensors(
    tmp_path: Path, config: dict[str, Any]
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    if config:
        (tmp_path / "model.safetensors").write_bytes(safetensors_bytes({f"{Q}.weight": (64, 32)}))
    assert linear_shapes(str(tmp_path)) is None


def test_a_hub_model_is_read_from_the_local_cache_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub = pytest.importorskip("huggingface_hub")
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(safetensors_bytes({f"{Q}.weight": (64, 32)}))

    def cached(repo_id: str, filename: str) -> str | None:
        path = tmp_path / filename
        return str(path) if repo_id == "owner/model" and path.is_file() else None

    monkeypatch.setattr(hub, "try_to_load_from_cache", cached)
    assert linear_shapes("owner/model") == {Q: (64, 32)}
    assert linear_shapes("owner/other") is None


def test_a_fingerprint_tells_weights_apart_that_have_the_same_shapes(tmp_path: Path) -> None:
    one, copy, other = (write_base(tmp_path / str(index), fill) for index, fill in enumerate([0.5, 0.5, 0.25]))
    known = fingerprint(str(one))
    assert known is not None and len(known) == 64
    assert fingerprint(str(copy)) == known
    assert fingerprint(str(other)) != known
    assert read_base(str(one)).fingerprint == known
    assert read_base(str(one)).shapes == BASE


def test_there_is_no_fingerprint_without_the_files(tmp_path: Path) -> None:
    assert fingerprint(str(tmp_path)) is None


def test_target_modules_that_the_model_lacks_are_all_named_with_what_it_has() -> None:
    with pytest.raises(
        ConfigError,
        match=r"target_modules has 'q_prj', 'w1', which the model 'base' does not have; "
        r"expected names among its linear layers: down_proj, q_proj\. Did you mean 'q_proj'",
    ):
        check_target_modules("base", BASE, ["q_prj", "down_proj", "w1"])


def test_target_modules_are_last_parts_or_whole_names_and_pass_where_nothing_is_known() -> None:
    check_target_modules("base", BASE, ["q_proj", DOWN])
    check_target_modules("base", None, ["anything"])
