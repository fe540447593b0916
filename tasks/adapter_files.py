"""Reads LoRA adapters on disk and refuses what the engine could not serve, before the engine sees it.

An adapter made for another base model does not fail its request, it kills vLLM's core. So rank, modules and tensor
shapes are compared with the base model first. Only JSON and the headers of safetensors files are read: no torch, no
PEFT, no weights. Formats: PEFT's `adapter_config.json` and `adapter_model.safetensors`; safetensors is 8 bytes of
little-endian header length N, N bytes of JSON (name -> dtype, shape, data_offsets), then the data.
"""

from __future__ import annotations

import hashlib
import json
import re
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tasks.contracts import LoraSpec
from tasks.errors import AdapterError

CONFIG_NAME = "adapter_config.json"
WEIGHTS_NAME = "adapter_model.safetensors"

Shape = tuple[int, ...]

# The values that vLLM takes for max_lora_rank.
SERVED_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)

_MAX_HEADER_BYTES = 100_000_000  # the format's own limit
_TENSOR_NAME = re.compile(r"base_model\.model\.(?P<module>.+)\.lora_(?P<half>[AB])\.weight")
# Features of PEFT that change what the two matrices mean, with the values that leave them unused.
_UNSERVED_FEATURES: Mapping[str, Sequence[Any]] = {
    "use_dora": (False,),
    "lora_bias": (False,),
    "bias": ("none",),
    "modules_to_save": ([],),
    "rank_pattern": ({},),
    "alpha_pattern": ({},),
    "layer_replication": ([],),
    "target_parameters": ([],),
    "trainable_token_indices": ([],),
    "init_lora_weights": (True, False, "gaussian", "eva", "orthogonal"),
}


def check_adapter(folder: Path, base_shapes: Mapping[str, Shape] | None, lora: LoraSpec) -> None:
    """Refuse an adapter that the engine could not serve on its base model.

    Args:
        folder: holds `adapter_config.json` and `adapter_model.safetensors`, as PEFT saves them.
        base_shapes: module name -> (out features, in features) of the base, from `linear_shapes` in
            tasks/base_model.py. None where the base's files are out of reach; then shapes are compared with the rank
            alone.
        lora: the largest rank and the modules the engine was started for.

    Raises:
        AdapterError: a file is missing, empty or cut off; rank or modules are not served; a pair is incomplete; or a
            tensor's shape does not fit the base.
    """
    rank = _checked_rank(folder, lora)
    shapes = safetensors_shapes(folder / WEIGHTS_NAME)
    pairs = _pairs(folder, shapes)
    for module, halves in pairs.items():
        leaf = module.rpartition(".")[2]
        if {module, leaf}.isdisjoint(lora.target_modules):
            raise AdapterError(
                f"Adapter {folder} changes {module}, but the engine serves LoRA on "
                f"{', '.join(lora.target_modules)} only. Add {leaf!r} to vllm.lora_config.target_modules."
            )
        if len(halves) < 2:
            missing = ({"A", "B"} - halves.keys()).pop()
            raise AdapterError(
                f"Adapter {folder} has no lora_{missing} for {module}; expected both halves. Save it again."
            )
        _check_pair(folder, module, halves, rank, base_shapes)


def module_of(tensor: str) -> str:
    """The module that a tensor of an adapter belongs to, by the base model's name for it.

    Raises:
        AdapterError: it is no tensor of a LoRA adapter.
    """
    match = _TENSOR_NAME.fullmatch(tensor)
    if match is None:
        raise AdapterError(
            f"{tensor!r} is no tensor of a LoRA adapter; expected 'base_model.model.<module>.lora_A.weight' or lora_B."
        )
    return match["module"]


def content_digest(folder: Path) -> str:
    """The SHA-256, in hex digits, over those of an adapter's configuration and of its weights.

    Raises:
        AdapterError: one of the files is missing.
    """
    return digest_of({name: _file_digest(folder, name) for name in (CONFIG_NAME, WEIGHTS_NAME)})


def digest_of(files: Mapping[str, str]) -> str:
    """The digest of an adapter from the hex SHA-256 of each of its files, by name."""
    digest = hashlib.sha256()
    for name in (CONFIG_NAME, WEIGHTS_NAME):
        digest.update(bytes.fromhex(files[name]))
    return digest.hexdigest()


def _file_digest(folder: Path, name: str) -> str:
    try:
        with (folder / name).open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise AdapterError(
            f"Adapter {folder} has no {name} that can be read ({error.strerror}): expected {CONFIG_NAME} and "
            f"{WEIGHTS_NAME}, as PEFT's save_pretrained writes them."
        ) from error


def safetensors_shapes(path: Path) -> dict[str, Shape]:
    """Tensor name -> shape, from the header of a safetensors file.

    Raises:
        AdapterError: the file is missing, empty, cut off, or its header is not one.
    """
    if not path.is_file():
        raise AdapterError(f"{path} is missing; expected weights in the safetensors format (PEFT's save_pretrained).")
    size = path.stat().st_size
    with path.open("rb") as file:
        start = file.read(8)
        length = struct.unpack("<Q", start)[0] if len(start) == 8 else 0
        if not 2 <= length <= min(size - 8, _MAX_HEADER_BYTES):
            raise AdapterError(
                f"{path} has {size} bytes and names a header of {length} bytes; expected a header within the file. "
                "The file is cut off or not in the safetensors format: copy or save it again."
            )
        raw = file.read(length)
    try:
        header = json.loads(raw)
        tensors = {name: entry for name, entry in header.items() if name != "__metadata__"}
        end = max((entry["data_offsets"][1] for entry in tensors.values()), default=0)
        shapes = {name: tuple(int(length) for length in entry["shape"]) for name, entry in tensors.items()}
    except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        raise AdapterError(f"{path} has a header that is not safetensors' JSON ({error}): save it again.") from error
    if 8 + length + end != size:
        raise AdapterError(
            f"{path} has {size} bytes; its header promises {8 + length + end}. The file is cut off: copy it again."
        )
    return shapes


def _checked_rank(folder: Path, lora: LoraSpec) -> int:
    """The adapter's rank, once its configuration says nothing the engine could not serve."""
    path = folder / CONFIG_NAME
    if not path.is_file():
        raise AdapterError(
            f"{folder} has no {CONFIG_NAME}; expected a LoRA adapter as PEFT's save_pretrained writes it."
        )
    config = read_json(path)
    if config.get("peft_type") != "LORA":
        raise AdapterError(f"{path} has peft_type {config.get('peft_type')!r}; the engine serves 'LORA' only.")
    for feature, unused in _UNSERVED_FEATURES.items():
        value = config.get(feature)
        if value is not None and value not in unused:
            raise AdapterError(
                f"{path} has {feature} {value!r}, which the engine does not serve; expected {unused[0]!r}. "
                "Train or convert the adapter without it."
            )
    rank = config.get("r")
    if not isinstance(rank, int) or not 1 <= rank <= lora.max_rank:
        raise AdapterError(
            f"{path} has rank r={rank!r}; the engine serves ranks 1 to {lora.max_rank}. {_rank_advice(rank)}"
        )
    return rank


def _rank_advice(rank: Any) -> str:
    if not isinstance(rank, int) or not 1 <= rank <= SERVED_RANKS[-1]:
        return f"vLLM serves ranks up to {SERVED_RANKS[-1]}: train an adapter of such a rank."
    return f"Set vllm.lora_config.lora_rank to {served_rank(rank)}, the next of vLLM's sizes that holds it."


def served_rank(rank: int) -> int:
    """The rank that an engine reserves for adapters of `rank`: the smallest of vLLM's sizes that holds it."""
    return min(size for size in SERVED_RANKS if size >= rank)


def _pairs(folder: Path, shapes: Mapping[str, Shape]) -> dict[str, dict[str, Shape]]:
    """Module name -> {"A": shape, "B": shape}, from the adapter's tensor names."""
    pairs: dict[str, dict[str, Shape]] = {}
    for name, shape in shapes.items():
        match = _TENSOR_NAME.fullmatch(name)
        if match is None:
            raise AdapterError(
                f"Adapter {folder} holds a tensor {name!r}; expected only names like "
                "'base_model.model.<module>.lora_A.weight' and '...lora_B.weight'."
            )
        pairs.setdefault(match["module"], {})[match["half"]] = shape
    if not pairs:
        raise AdapterError(f"Adapter {folder} holds no tensors in {WEIGHTS_NAME}: save it again.")
    return pairs


def _check_pair(
    folder: Path,
    module: str,
    halves: Mapping[str, Shape],
    rank: int,
    base_shapes: Mapping[str, Shape] | None,
) -> None:
    """Compare lora_A (rank, in) and lora_B (out, rank) of one module with the base's weight (out, in)."""
    a, b = halves["A"], halves["B"]
    if len(a) != 2 or len(b) != 2:
        raise AdapterError(f"Adapter {folder} has lora_A {a} and lora_B {b} on {module}; expected two dimensions each.")
    base = (b[0], a[1]) if base_shapes is None else base_shapes.get(module)
    if base is None:
        raise AdapterError(
            f"Adapter {folder} changes {module}, which the base model does not have: it was made for another base. "
            "Train it on this base, or set vllm.model_name to its own."
        )
    out_features, in_features = base
    if a != (rank, in_features) or b != (out_features, rank):
        raise AdapterError(
            f"Adapter {folder} has lora_A {a} and lora_B {b} on {module}; expected {(rank, in_features)} and "
            f"{(out_features, rank)} for rank {rank} on this base. It was made for another base: train it on this "
            "one, or set vllm.model_name to its own."
        )


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in `path`.

    Raises:
        AdapterError: it is empty, cut off or something else.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise AdapterError(f"{path} is not JSON ({error}); the file is empty or cut off: save it again.") from error
    if not isinstance(value, dict):
        raise AdapterError(f"{path} holds {type(value).__name__}; expected a JSON object.")
    return value
