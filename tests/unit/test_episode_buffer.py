"""Batches of whole episodes; drawing by age, throwing out by age, and going on from a checkpoint, of both buffers."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.replay import EpisodeBuffer, ReplayBuffer, StepBuffer, TrainingStep, TrajectoryBuffer
from pipeline.rewards import RewardTransforms, RoleAdvantage
from tasks.contracts import AgentSpec, Choice, ModelKind, ModelRef, Role, Status, Step, Trajectory
from tasks.errors import ConfigError


def trajectory(game: str, indices: list[int], *, seat: int = 0, version: int = 0) -> Trajectory:
    agent = AgentSpec(seat, Role.ACTOR, ModelRef(f"policy@{version}", ModelKind.ENGINE, policy_version=version))
    steps = tuple(Step(index, seat, "seen", Choice("[0]", "said", True), False) for index in indices)
    return Trajectory(game, game, "A-v0", agent, Status.COMPLETED, 1.0, steps)


def add_game(buffer: TrajectoryBuffer, game: str, steps: int, *, version: int = 0) -> None:
    """A game of two learning players who take turns."""
    for seat in (0, 1):
        indices = [index for index in range(steps) if index % 2 == seat]
        buffer.add_player_trajectory(trajectory(game, indices, seat=seat, version=version), "A-v0")


def games_of(drawn: list[TrainingStep]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for item in drawn:
        found.setdefault(item.game_id, []).append(item.step.index)
    return found


def test_it_is_what_the_scheduler_needs() -> None:
    assert isinstance(EpisodeBuffer(), ReplayBuffer)


def test_episodes_are_drawn_whole_and_in_the_order_they_were_played() -> None:
    buffer = EpisodeBuffer(seed=1)
    for number in range(6):
        add_game(buffer, f"game-{number}", 4)
    drawn = games_of(buffer.get_batch(10))
    assert list(drawn.values()) == [[0, 1, 2, 3]] * 3, "the third episode completes the ten"
    assert buffer.size() == 12
    assert (buffer.stats().added, buffer.stats().drawn, buffer.stats().episodes) == (24, 12, 6)


def test_more_than_it_holds_is_refused() -> None:
    buffer = EpisodeBuffer()
    add_game(buffer, "game", 3)
    with pytest.raises(ConfigError, match=r"get_batch\(4\): expected between 1 and the 3 steps in the buffer"):
        buffer.get_batch(4)


def test_what_is_full_gives_up_whole_episodes() -> None:
    buffer = EpisodeBuffer(capacity=10)
    for number in range(4):
        add_game(buffer, f"game-{number}", 4)
    assert buffer.size() == 8
    assert buffer.stats().evicted == 8
    assert all(indices == [0, 1, 2, 3] for indices in games_of(buffer.get_batch(8)).values())


def test_an_episode_beyond_the_capacity_is_held_alone() -> None:
    buffer = EpisodeBuffer(capacity=3)
    add_game(buffer, "short", 2)
    add_game(buffer, "long", 8)
    assert games_of(buffer.get_batch(1)) == {"long": list(range(8))}


@pytest.mark.parametrize("kind", [StepBuffer, EpisodeBuffer])
def test_older_versions_come_first_and_equals_at_random(kind: type[TrajectoryBuffer]) -> None:
    def drawn(seed: int) -> list[TrainingStep]:
        buffer = kind(seed=seed)
        for number, version in enumerate([2, 0, 1, 0, 1, 2]):
            add_game(buffer, f"game-{number}", 2, version=version)
        return buffer.get_batch(12, oldest_first=True)

    assert [item.version for item in drawn(0)] == [0] * 4 + [1] * 4 + [2] * 4
    assert len({tuple(item.game_id for item in drawn(seed)) for seed in range(8)}) > 1


@pytest.mark.parametrize("kind", [StepBuffer, EpisodeBuffer])
def test_what_is_too_old_is_thrown_out_and_counted(kind: type[TrajectoryBuffer]) -> None:
    buffer = kind()
    for number, version in enumerate([0, 1, 0, 2]):
        add_game(buffer, f"game-{number}", 4, version=version)
    assert buffer.discard(lambda item: item.version < 1) == 8
    assert sorted(games_of(buffer.get_batch(8))) == ["game-1", "game-3"]
    assert buffer.stats().discarded == 8


@pytest.mark.parametrize("kind", [StepBuffer, EpisodeBuffer])
def test_a_restored_buffer_draws_what_the_first_one_would_have_drawn(kind: type[TrajectoryBuffer]) -> None:
    first = kind(seed=7, transforms=RewardTransforms(final=[RoleAdvantage()]))
    for number in range(8):
        add_game(first, f"game-{number}", 3)
    first.get_batch(6)
    second = kind(seed=0, transforms=RewardTransforms(final=[RoleAdvantage()]))
    second.restore(pickle.loads(pickle.dumps(first.state())))
    assert second.stats() == first.stats()
    for buffer in (first, second):
        add_game(buffer, "later", 3)
    assert second.get_batch(15) == first.get_batch(15)


@given(
    kind=st.sampled_from([StepBuffer, EpisodeBuffer]),
    capacity=st.integers(1, 12),
    calls=st.lists(st.tuples(st.sampled_from(["add", "draw", "oldest", "discard", "clear"]), st.integers(1, 5))),
)
def test_every_step_is_in_one_place(kind: type[TrajectoryBuffer], capacity: int, calls: list[tuple[str, int]]) -> None:
    buffer = kind(capacity)
    seen: set[tuple[str, int]] = set()
    for number, (call, size) in enumerate(calls):
        if call == "add":
            add_game(buffer, f"game-{number}", size, version=number)
        elif call == "discard":
            buffer.discard(lambda item, size=size: item.version % size == 0)
        elif call == "clear":
            buffer.clear()
        elif buffer.size() >= size:
            drawn = {(item.game_id, item.step.index) for item in buffer.get_batch(size, oldest_first=call == "oldest")}
            assert len(drawn) >= size
            assert not drawn & seen, "no step is drawn twice"
            seen |= drawn
        stats = buffer.stats()
        assert stats.added == stats.size + stats.drawn + stats.evicted + stats.cleared + stats.discarded
        assert stats.size == buffer.size() <= max(capacity, 5)
