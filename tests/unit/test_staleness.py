"""The books on lag: what may begin, what is too old, what is counted; and that on-policy means on-policy."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.staleness import Staleness
from tasks.contracts import (
    AgentSpec,
    Choice,
    Episode,
    GameSpec,
    Mode,
    ModelKind,
    ModelRef,
    Role,
    Status,
    Step,
)
from tasks.errors import ConfigError


def game(number: int, version: int, mode: Mode = Mode.TRAIN) -> GameSpec:
    policy = ModelRef(f"policy@{version}", ModelKind.ENGINE, policy_version=version)
    agents = (AgentSpec(0, Role.ACTOR, policy), AgentSpec(1, Role.OPPONENT, policy))
    return GameSpec("run", f"{mode}-{number}", mode, "A-v0", 2, 0, agents)


def ended(spec: GameSpec, steps: int) -> Episode:
    """A game in which the learning player decided `steps` times, and the other as often."""
    choice = Choice("[0]", "said", True)
    decisions = tuple(Step(index, index % 2, "seen", choice, False) for index in range(2 * steps))
    return Episode(spec, Status.COMPLETED, decisions, rewards=(1.0, -1.0))


class Held:
    """Stands for the buffer: how many steps it holds."""

    steps = 0

    def __call__(self) -> int:
        return self.steps


def books(lag: int, batch_steps: int) -> tuple[Staleness, Held]:
    held = Held()
    return Staleness(lag, batch_steps, held), held


@pytest.mark.parametrize(("lag", "room"), [(0, 8), (1, 16), (4, 40)])
def test_at_the_beginning_as_many_games_as_batches_need_at_a_step_each(lag: int, room: int) -> None:
    assert books(lag, 8)[0].room() == room


def test_games_in_flight_count_for_what_games_yielded_before() -> None:
    staleness, held = books(0, 100)
    staleness.started([game(0, 0)])
    staleness.ended(ended(game(0, 0), steps=10))
    held.steps = 10
    assert staleness.room() == 9  # (100 - 10) / 10
    staleness.started([game(number, 0) for number in range(1, 9)])
    assert staleness.room() == 1
    staleness.started([game(9, 0)])
    assert staleness.room() == 0


def test_games_that_yield_less_are_made_up_for() -> None:
    staleness, held = books(0, 4)
    staleness.started([game(number, 0) for number in range(4)])
    assert staleness.room() == 0
    for number in range(4):
        staleness.ended(ended(game(number, 0), steps=0 if number else 1))
    held.steps = 1
    assert staleness.room() >= 3


def test_on_policy_nothing_begins_while_a_batch_is_trained() -> None:
    staleness, held = books(0, 8)
    held.steps = 8
    assert staleness.room() == 0
    held.steps = 0
    staleness.training([0] * 8)
    assert staleness.room() == 0
    staleness.trained(1)
    assert staleness.room() == 8


def test_with_lag_one_a_batch_is_collected_while_another_is_trained() -> None:
    staleness, _ = books(1, 8)
    staleness.training([0] * 8)
    assert staleness.room() == 8


def test_games_of_a_version_past_use_are_not_waited_for() -> None:
    staleness, _ = books(0, 8)
    staleness.started([game(number, 0) for number in range(8)])
    assert staleness.room() == 0
    staleness.trained(1)
    assert staleness.room() == 8


def test_a_step_is_too_old_beyond_the_lag() -> None:
    staleness, _ = books(2, 8)
    staleness.trained(5)
    assert [version for version in range(6) if staleness.too_old(version)] == [0, 1, 2]


def test_lags_are_those_at_the_time_of_training() -> None:
    staleness, _ = books(2, 4)
    staleness.trained(3)
    assert staleness.training([1, 2, 3, 3]) == [2, 1, 0, 0]
    staleness.trained(4)
    staleness.training([4])
    assert staleness.lags == {0: 3, 1: 1, 2: 1}


def test_evaluation_games_are_none_of_it() -> None:
    staleness, _ = books(0, 8)
    evaluation = game(0, 0, Mode.EVAL)
    staleness.started([evaluation])
    staleness.ended(ended(evaluation, steps=50))
    assert staleness.room() == 8


def test_the_books_go_on_from_a_checkpoint_without_the_games_that_died_with_the_driver() -> None:
    before, _ = books(1, 8)
    before.started([game(number, 0) for number in range(4)])
    before.ended(ended(game(0, 0), steps=2))
    before.training([0, 0])
    before.trained(1)
    before.drop(3)
    after, _ = books(1, 8)
    after.restore(before.state())
    assert (after.version, after.dropped, after.lags) == (1, 3, {0: 2})
    assert after.room() == 8  # 2 batches of 8 at 2 steps a game


@pytest.mark.parametrize(
    ("lag", "batch_steps", "message"),
    [
        (-1, 8, r"learner\.max_policy_lag is -1: expected 0 \(on-policy\) or more versions"),
        (0, 0, r"learner\.batch_steps is 0: expected at least 1 step"),
    ],
)
def test_numbers_out_of_range_are_refused(lag: int, batch_steps: int, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Staleness(lag, batch_steps, lambda: 0)


@given(lag=st.integers(0, 4), batch=st.integers(1, 12), most=st.integers(1, 6), seed=st.integers(0, 2**16))
def test_no_step_is_trained_on_beyond_the_lag_and_the_loop_never_stalls(
    lag: int, batch: int, most: int, seed: int
) -> None:
    """A collection in miniature: games of random length that end in random order, beside a learner that draws."""
    rng = random.Random(seed)
    buffer: list[int] = []
    staleness = Staleness(lag, batch, lambda: len(buffer))
    flying: list[GameSpec] = []
    numbers = iter(range(1_000_000))
    training = 0
    for _ in range(4000):
        room = min(staleness.room(), 8 - len(flying))
        new = [game(next(numbers), staleness.version) for _ in range(max(0, room))]
        staleness.started(new)
        flying += new
        if flying and rng.random() < 0.7:
            spec = flying.pop(rng.randrange(len(flying)))
            episode = ended(spec, rng.randrange(most + 1))
            staleness.ended(episode)
            buffer += [spec.agents[0].model.policy_version or 0] * (len(episode.steps) // 2)
        fresh = [version for version in buffer if not staleness.too_old(version)]
        staleness.drop(len(buffer) - len(fresh))
        buffer[:] = sorted(fresh)
        if training and rng.random() < 0.5:
            training = 0
            staleness.trained(staleness.version + 1)
        elif not training and len(buffer) >= batch:
            training = batch
            lags = staleness.training(buffer[:batch])
            del buffer[:batch]
            assert max(lags) <= lag
        if staleness.version == 5:
            return
    raise AssertionError(f"only {staleness.version} versions, {len(flying)} games in flight")
