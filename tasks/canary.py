"""Shows that adapters reach the model: that the base model does not play on in silence, as it does when names differ.

A first adapter has hardly moved yet, so nothing is learned from its own answers. Instead each kind of module it changes
gets a probe: an adapter with the same configuration and the same tensor names, for this kind alone, and random weights
as large as the model's own. Where the engine puts it to work the next token is another, or has another probability.
"""

from __future__ import annotations

import asyncio
import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np
from distributed import Worker

from tasks.adapter_files import CONFIG_NAME, WEIGHTS_NAME, Shape, module_of, read_json, safetensors_shapes
from tasks.contracts import AdapterRef, EngineReply, SamplingSpec
from tasks.errors import ClusterError
from tasks.host import HOST_NAME, GameHost

if TYPE_CHECKING:
    from tasks.host import Engine

# In nats. Rounding in bfloat16 moves a log-probability by a hundredth, a probe by many times this.
LEAST_DIFFERENCE = 0.1
_PROMPTS = ("Hello", "Name a number.", "What comes after Monday?", "[GAME] It is your turn.", "Say yes or no.")
_GREEDY = SamplingSpec(temperature=0.0, max_tokens=1)


@dataclass(frozen=True)
class Probe:
    """What probes are made of: an adapter's configuration, and the shapes of its tensors by name; no weights."""

    config: Mapping[str, Any]
    shapes: Mapping[str, Shape]

    def kinds(self) -> dict[str, list[str]]:
        """The names of the modules that the adapter changes, by the last part of the name."""
        kinds: dict[str, list[str]] = {}
        for module in dict.fromkeys(map(module_of, self.shapes)):
            kinds.setdefault(module.rpartition(".")[2], []).append(module)
        return kinds


def probe_of(folder: Path) -> Probe:
    """The probe for a published adapter.

    Raises:
        AdapterError: the folder lacks its files.
    """
    return Probe(read_json(folder / CONFIG_NAME), safetensors_shapes(folder / WEIGHTS_NAME))


async def silent_modules(engine: Engine, probe: Probe) -> tuple[str, ...]:
    """The kinds of modules, by the last part of their names, whose adapters leave the engine's answers as they were.

    Raises:
        AdapterError: the engine refuses the adapter.
        EngineDiedError: from the engine.
    """
    base = await _ask(engine, None)
    silent = []
    for kind, modules in probe.kinds().items():
        with TemporaryDirectory(prefix="selfplay-canary-") as place:
            write_probe(probe, modules, Path(place))
            answers = await _ask(engine, AdapterRef(f"canary {place}", place))
        if median(map(_difference, base, answers)) < LEAST_DIFFERENCE:
            silent.append(kind)
    return tuple(silent)


async def silent_modules_here(probe: Probe, dask_worker: Worker) -> tuple[str, ...]:
    """For `Client.run`: `silent_modules` of a worker's engine, beside its games.

    Raises:
        ClusterError: the worker has no engine that is ready.
        AdapterError, EngineDiedError: from the engine.
    """
    host = dask_worker.plugins.get(HOST_NAME)
    if not isinstance(host, GameHost):
        raise ClusterError(f"the worker {dask_worker.address} hosts no games, so it has no engine to ask")
    return await host.beside_games(partial(silent_modules, probe=probe))


def write_probe(probe: Probe, modules: Sequence[str], folder: Path) -> None:
    """Write the adapter that changes `modules` alone, and much, to `folder`.

    The product of its halves, times PEFT's scaling (alpha / r, or alpha / sqrt(r) with `use_rslora`), has entries of
    mean 0 and variance 1 / in features: those of a layer as it is commonly initialised.
    """
    rank = int(probe.config["r"])
    scaling = float(probe.config["lora_alpha"]) / (rank**0.5 if probe.config.get("use_rslora") else rank)
    rng = np.random.default_rng(0)
    tensors = {}
    for name, shape in probe.shapes.items():
        if module_of(name) in modules:
            spread = shape[1] ** -0.5 if ".lora_A." in name else 1 / (scaling * rank**0.5)
            tensors[name] = (spread * rng.standard_normal(shape)).astype("<f4")
    kinds = sorted({module.rpartition(".")[2] for module in modules})
    (folder / CONFIG_NAME).write_text(json.dumps({**probe.config, "target_modules": kinds}), encoding="utf-8")
    (folder / WEIGHTS_NAME).write_bytes(_safetensors(tensors))


def _safetensors(tensors: Mapping[str, np.ndarray[Any, np.dtype[np.float32]]]) -> bytes:
    """A file in the safetensors format; see `tasks.adapter_files`."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, tensor in tensors.items():
        header[name] = {"dtype": "F32", "shape": tensor.shape, "data_offsets": [end, end + tensor.nbytes]}
        end += tensor.nbytes
    text = json.dumps(header).encode()
    return b"".join((struct.pack("<Q", len(text)), text, *(tensor.tobytes() for tensor in tensors.values())))


async def _ask(engine: Engine, adapter: AdapterRef | None) -> list[EngineReply]:
    chats = [[{"role": "user", "content": prompt}] for prompt in _PROMPTS]
    return await asyncio.gather(*(engine.generate(chat, _GREEDY, n=1, seed=0, adapter=adapter) for chat in chats))


def _difference(before: EngineReply, after: EngineReply) -> float:
    """How far the most likely next token moved, in nats; infinitely far where it is another."""
    (one,), (other,) = before.completions, after.completions
    if one.token_ids != other.token_ids or not one.logprobs:
        return float("inf")
    return abs((one.logprobs[0] or 0.0) - (other.logprobs[0] or 0.0))
