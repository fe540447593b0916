"""Generators per game: isolated modules draw from the current game's, and from the process's when there is none."""

from __future__ import annotations

import asyncio
import random
import sys
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from tasks.randomness import GameGenerators, derive_seed, isolate

SOURCE = """
import random
import random as rnd
import numpy
import numpy as np
from numpy import random as np_random
from random import randint, Random
from numpy.random import rand

def draws():
    return [
        random.random(), rnd.choice("abcdefgh"), randint(0, 10**9), random.Random().random(),
        float(numpy.random.random()), int(np.random.randint(10**9)), float(np_random.normal()), float(rand()),
        float(np.random.default_rng().random()), np.zeros(1).shape,
    ]
"""


@pytest.fixture
def module() -> Iterator[ModuleType]:
    """A module that draws in every way there is, isolated."""
    made = ModuleType("drawing_module")
    exec(SOURCE, made.__dict__)
    sys.modules[made.__name__] = made
    isolate(made.__name__)
    isolate(made.__name__)
    yield made
    del sys.modules[made.__name__]


def in_game(seed: int, call: Callable[[], Any]) -> Any:
    with GameGenerators(seed).bound():
        return call()


def test_the_same_seed_draws_the_same_and_another_seed_everything_else(module: ModuleType) -> None:
    first, again, other = (in_game(seed, module.draws) for seed in (5, 5, 6))
    assert first == again
    assert all(a != b for a, b in zip(first[:1] + first[2:-1], other[:1] + other[2:-1], strict=True))


def test_a_game_neither_reads_nor_moves_the_process_wide_generators(module: ModuleType) -> None:
    before = random.getstate(), np.random.get_state()[1].tobytes()
    first = in_game(5, module.draws)
    assert (random.getstate(), np.random.get_state()[1].tobytes()) == before
    random.seed(1)
    np.random.seed(1)
    assert in_game(5, module.draws) == first


def test_without_a_game_the_names_mean_the_real_modules(module: ModuleType) -> None:
    random.seed(3)
    expected = random.random()
    module.random.seed(3)
    assert module.random.random() == expected
    np.random.seed(3)
    expected = float(np.random.random())
    module.np.random.seed(3)
    assert float(module.rand()) == expected


def test_seeding_inside_a_game_is_pythons_own_and_numpy_takes_seeds_of_any_size(module: ModuleType) -> None:
    def seeded(seed: int) -> tuple[float, float]:
        module.random.seed(seed)
        module.np.random.seed(seed)
        return module.random.random(), float(module.np.random.random())

    assert in_game(1, lambda: seeded(42))[0] == random.Random(42).random()
    assert in_game(1, lambda: seeded(2**63 - 1)) == in_game(2, lambda: seeded(2**63 - 1))
    assert in_game(1, lambda: module.Random(42).random()) == random.Random(42).random()


def test_games_of_one_loop_and_its_threads_do_not_see_each_other(module: ModuleType) -> None:
    async def play(seed: int) -> list[Any]:
        generators, seen = GameGenerators(seed), []
        for _ in range(3):
            with generators.bound():
                seen.append(module.random.random())
                seen.append(await asyncio.to_thread(module.random.random))
            await asyncio.sleep(0)
        return seen

    async def together() -> list[list[Any]]:
        return await asyncio.gather(*(play(seed) for seed in range(50)))

    assert asyncio.run(together()) == [asyncio.run(play(seed)) for seed in range(50)]


def test_only_the_named_package_is_touched(module: ModuleType) -> None:
    neighbour = ModuleType("drawing_module_too")
    exec(SOURCE, neighbour.__dict__)
    sys.modules[neighbour.__name__] = neighbour
    isolate("drawing_module")
    assert neighbour.random is sys.modules["random"]
    assert module.random is not sys.modules["random"]
    del sys.modules[neighbour.__name__]


def test_derived_seeds_depend_on_every_part_and_its_place_and_stay_in_range() -> None:
    parts = [(1, 2), (2, 1), (12,), (1, 2, 0), ("1", 2, "a"), (2**63 - 1, 2)]
    seeds = [derive_seed(*one) for one in parts]
    assert len(set(seeds)) == len(parts)
    assert all(0 <= seed < 2**63 for seed in seeds)
    # The same on every machine and in every process: stored games must replay.
    assert derive_seed(0, "x") == 3040467714633486383
