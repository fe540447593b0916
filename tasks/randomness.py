"""Random numbers that belong to one game: seeds derived from a game's, and isolation of code that draws globally.

TextArena's environments draw from the process-wide `random` and `numpy.random`, and games on one worker share the
process. `isolate` rebinds those names inside given modules to stand-ins that find the current game's own generators
through a context variable; without a current game they are the real modules.
"""

from __future__ import annotations

import hashlib
import random
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cached_property
from types import ModuleType
from typing import Any

import numpy as np

SEED_LIMIT = 2**63

_current: ContextVar[GameGenerators | None] = ContextVar("game_generators", default=None)


def derive_seed(*parts: int | str) -> int:
    """A seed in [0, 2**63) that depends on all `parts` in order, the same in every process and on every machine."""
    digest = hashlib.blake2b("/".join(map(str, parts)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") % SEED_LIMIT


class GameGenerators:
    """One game's own `random.Random` and `numpy.random.RandomState`.

    TextArena seeds the first anew in `reset`, with the seed it is given; what is drawn before depends on `seed` too.
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self.python = random.Random(derive_seed(seed, "python"))

    @cached_property
    def numpy(self) -> np.random.RandomState:
        """NumPy's generator, made when first asked for."""
        return _numpy_generator(derive_seed(self._seed, "numpy"))

    @contextmanager
    def bound(self) -> Iterator[None]:
        """Inside the block, isolated modules draw from these generators."""
        token = _current.set(self)
        try:
            yield
        finally:
            _current.reset(token)


def isolate(package: str) -> None:
    """Rebind the random names in every module of `package` that is imported by now; doing it again does no harm.

    Covers `import random`, `import numpy`, and names taken from either random module, whatever they are called there.
    """
    for name, module in list(sys.modules.items()):
        if name == package or name.startswith(f"{package}."):
            for attribute, value in list(vars(module).items()):
                stand_in = _stand_in(value)
                if stand_in is not None:
                    setattr(module, attribute, stand_in)


def _stand_in(value: Any) -> Any:
    """What a module should hold in place of `value`; None where it can stay."""
    if value is random:
        return _RANDOM
    if value is np:
        return _NUMPY
    if value is np.random:
        return _NUMPY_RANDOM
    owner = getattr(value, "__self__", None)  # `from random import choice` is a method of the hidden global generator
    if owner is _GLOBAL_PYTHON:
        return _late(_RANDOM, value.__name__)
    if owner is _GLOBAL_NUMPY:
        return _late(_NUMPY_RANDOM, value.__name__)
    return None


def _late(module: ModuleType, name: str) -> Callable[..., Any]:
    """A function that looks `name` up when it is called, so in the game that calls it."""
    return lambda *args, **kwargs: getattr(module, name)(*args, **kwargs)


def _numpy_generator(seed: int) -> np.random.RandomState:
    """A generator for a seed of any size; `numpy.random.seed` itself ends at 2**32 - 1."""
    return np.random.RandomState(np.random.MT19937(np.random.SeedSequence(seed)))


class _SeededRandom(random.Random):
    """`random.Random`, whose default seed is drawn from the current game instead of the system."""

    def __init__(self, x: int | float | str | bytes | bytearray | None = None) -> None:
        game = _current.get()
        super().__init__(game.python.getrandbits(64) if x is None and game is not None else x)


class _RandomStandIn(ModuleType):
    """Stands for the module `random`."""

    Random = _SeededRandom

    def __getattr__(self, name: str) -> Any:
        game = _current.get()
        if game is not None and hasattr(game.python, name):
            return getattr(game.python, name)
        return getattr(random, name)


class _NumpyRandomStandIn(ModuleType):
    """Stands for the module `numpy.random`."""

    def __getattr__(self, name: str) -> Any:
        game = _current.get()
        if game is None:
            return getattr(np.random, name)
        if name == "seed":
            return lambda seed=None: game.numpy.set_state(_numpy_generator(_or_drawn(seed, game)).get_state())
        if name == "default_rng":
            return lambda seed=None: np.random.default_rng(_or_drawn(seed, game))
        return getattr(game.numpy, name) if hasattr(game.numpy, name) else getattr(np.random, name)


def _or_drawn(seed: Any, game: GameGenerators) -> Any:
    """`seed`, or for None one drawn from the game."""
    return game.python.getrandbits(63) if seed is None else seed


class _NumpyStandIn(ModuleType):
    """Stands for the module `numpy`."""

    def __getattr__(self, name: str) -> Any:
        return _NUMPY_RANDOM if name == "random" else getattr(np, name)


_RANDOM = _RandomStandIn("random")
_NUMPY_RANDOM = _NumpyRandomStandIn("numpy.random")
_NUMPY = _NumpyStandIn("numpy")
_GLOBAL_PYTHON = random.seed.__self__  # type: ignore[attr-defined]
_GLOBAL_NUMPY = np.random.rand.__self__  # type: ignore[attr-defined]
