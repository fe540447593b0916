"""What adapters need to know of their base model: which linear layers it has, how large they are, and whose it is.

Read from the headers of its safetensors files and a few samples of the weights: no torch, nothing is downloaded.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tasks.adapter_files import Shape, read_json, safetensors_shapes
from tasks.errors import ConfigError
from tasks.models import resolve_model
from tasks.names import nearest

# Their weights are matrices too, but adapters of embeddings have other tensors, which engines are not given.
_EMBEDDINGS = frozenset({"embed_tokens", "wte", "word_embeddings"})
_SAMPLES = 64
_SAMPLE_BYTES = 64 * 1024


@dataclass(frozen=True)
class BaseModel:
    """A base model that adapters are made for.

    `fingerprint` is that of its weights, None where the files are out of reach. `shapes` are those of its linear
    layers, (out features, in features) by module name, None where they cannot be read.
    """

    name: str
    fingerprint: str | None
    shapes: Mapping[str, Shape] | None


def read_base(name: str) -> BaseModel:
    """The base model behind a name: a folder, a hub name or a built-in model, which is built if need be.

    Raises:
        ConfigError: there is no such model.
        AdapterError: a file of it is cut off.
    """
    model = resolve_model(name)
    return BaseModel(name, fingerprint(model), linear_shapes(model))


def fingerprint(model: str) -> str | None:
    """Hex digits that tell the weights of one model from another's; None where there are no files to read.

    A SHA-256 over each safetensors file's name, size and header and 64 samples spread over its data: a model trained
    further has the same header and other data, and to read all of a large model would take minutes.

    Args:
        model: a model folder, or a hub name whose files are looked for in the local hub cache.
    """
    paths = _weight_files(model)
    if not paths:
        return None
    digest = hashlib.sha256()
    for name, path in paths.items():
        size = path.stat().st_size
        digest.update(f"{name} {size}\n".encode())
        with path.open("rb") as file:
            for index in range(_SAMPLES):
                file.seek(size * index // _SAMPLES)
                digest.update(file.read(_SAMPLE_BYTES))
    return digest.hexdigest()


def linear_shapes(model: str) -> dict[str, Shape] | None:
    """The weight shapes, (out features, in features), of the linear layers of a base model, by module name.

    Args:
        model: a model folder, or a hub name whose files are looked for in the local hub cache; nothing is downloaded.

    Returns:
        The shapes; None where there is nothing to read them from: a hub model that is not in the cache, weights not
        in safetensors, or quantised weights, whose stored shapes are not the layers'.

    Raises:
        AdapterError: a safetensors file of the base is cut off.
    """
    config = _model_file(model, "config.json")
    if config is None or "quantization_config" in read_json(config):
        return None
    paths = _weight_files(model)
    if not paths:
        return None
    shapes = {name: shape for path in paths.values() for name, shape in safetensors_shapes(path).items()}
    modules = {name.removesuffix(".weight"): shape for name, shape in shapes.items() if name.endswith(".weight")}
    return {module: shape for module, shape in modules.items() if len(shape) == 2 and _leaf(module) not in _EMBEDDINGS}


def check_target_modules(model: str, shapes: Mapping[str, Shape] | None, targets: Sequence[str]) -> None:
    """Refuse target modules that the base model does not have. Without shapes there is nothing to check by.

    A target is the last part of a module's name, as `q_proj`, or the whole name.

    Raises:
        ConfigError: names all of them, and what the model has.
    """
    if shapes is None:
        return
    leaves = sorted({_leaf(module) for module in shapes})
    unknown = [target for target in targets if target not in shapes and target not in leaves]
    if unknown:
        raise ConfigError(
            f"vllm.lora_config.target_modules has {', '.join(map(repr, unknown))}, which the model {model!r} does not "
            f"have; expected names among its linear layers: {', '.join(leaves)}.{nearest(unknown[0], leaves)}"
        )


def _leaf(module: str) -> str:
    return module.rpartition(".")[2]


def _weight_files(model: str) -> dict[str, Path]:
    """The safetensors files of a model by name; empty where one of them is not there."""
    index = _model_file(model, "model.safetensors.index.json")
    names = sorted(set(read_json(index)["weight_map"].values())) if index else ["model.safetensors"]
    paths = {name: path for name in names if (path := _model_file(model, name)) is not None}
    return paths if len(paths) == len(names) else {}


def _model_file(model: str, name: str) -> Path | None:
    """The file `name` of a model folder, or of a hub model in the local cache; None if it is not there."""
    if Path(model).is_dir():
        path = Path(model) / name
        return path if path.is_file() else None
    from huggingface_hub import try_to_load_from_cache

    cached = try_to_load_from_cache(model, name)
    return Path(cached) if isinstance(cached, str) else None
