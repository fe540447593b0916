"""When a group reaches the buffer, what its trajectories say of it, and what becomes of one with games missing."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace

import pytest

from pipeline.groups import GroupGate
from pipeline.replay import StepBuffer, StopConditions
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
    Trajectory,
)
from tasks.errors import ConfigError

POLICY = ModelRef("policy@0", ModelKind.ENGINE, 0)
FAILURES = (Status.OVERFLOW, Status.TIMEOUT, Status.FAILED, Status.CANCELLED)
BOTH = (Role.ACTOR, Role.ACTOR)


class Shown:
    """A user's buffer: keeps what it is given."""

    def __init__(self) -> None:
        self.got: list[tuple[Trajectory, str]] = []

    def add_player_trajectory(self, trajectory: Trajectory, env_id: str) -> None:
        self.got.append((trajectory, env_id))

    def continue_collection(self) -> bool:
        return True

    def facts(self) -> list[tuple[str, int, int, int]]:
        """Game, seat, games delivered and games of the group, in the order they came."""
        return [(got.game_id, got.agent.player_id, got.group_delivered, got.group_size) for got, _ in self.got]


def member(
    index: int,
    status: Status = Status.COMPLETED,
    *,
    group: str = "g",
    rewards: tuple[float | None, ...] | None = (1.0, -1.0),
    roles: Sequence[Role] = BOTH,
) -> Episode:
    """Game `index` of a group, of one step by each player."""
    agents = tuple(AgentSpec(seat, role, POLICY) for seat, role in enumerate(roles))
    spec = GameSpec("run", f"{group}-{index}", Mode.TRAIN, "A-v0", len(roles), 5, agents, group, index)
    steps = tuple(Step(seat, seat, "seen", Choice("[0]", "said", True), False) for seat in range(len(roles)))
    ended = status in (Status.COMPLETED, Status.ILLEGAL_MOVE)
    return Episode(spec, status, steps, rewards if ended else None)


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_a_group_arrives_whole_in_the_order_of_its_games_when_the_last_one_ends(order: tuple[int, ...]) -> None:
    buffer = Shown()
    gate = GroupGate(buffer, 3)
    for index in order:
        assert buffer.got == []
        gate.add(member(index, Status.ILLEGAL_MOVE if index == 1 else Status.COMPLETED))
    assert buffer.facts() == [(f"g-{index}", seat, 3, 3) for index in range(3) for seat in range(2)]
    assert {got.group_id for got, _ in buffer.got} == {"g"}
    assert {env_id for _, env_id in buffer.got} == {"A-v0"}
    assert gate.counts() == {"size": 3, "complete": 1, "incomplete": 0, "dropped": 0}


def test_groups_do_not_wait_for_each_other() -> None:
    buffer = Shown()
    gate = GroupGate(buffer, 2)
    for index, group in ((0, "g"), (0, "h"), (1, "h")):
        gate.add(member(index, group=group))
    assert [got.group_id for got, _ in buffer.got] == ["h"] * 4
    gate.add(member(1))
    assert [got.group_id for got, _ in buffer.got] == ["h"] * 4 + ["g"] * 4


def test_only_learning_players_are_delivered() -> None:
    buffer = Shown()
    gate = GroupGate(buffer, 2)
    for index in range(2):
        gate.add(member(index, roles=(Role.OPPONENT, Role.ACTOR)))
    assert buffer.facts() == [("g-0", 1, 2, 2), ("g-1", 1, 2, 2)]


@pytest.mark.parametrize("status", FAILURES)
def test_a_group_with_a_failed_game_is_delivered_with_its_count(status: Status) -> None:
    buffer = Shown()
    gate = GroupGate(buffer, 3)
    for index, ended in enumerate((Status.COMPLETED, status, Status.COMPLETED)):
        gate.add(member(index, ended))
    assert buffer.facts() == [("g-0", 0, 2, 3), ("g-0", 1, 2, 3), ("g-2", 0, 2, 3), ("g-2", 1, 2, 3)]
    assert gate.counts() == {"size": 3, "complete": 0, "incomplete": 1, "dropped": 0}


@pytest.mark.parametrize("odd", [None, float("nan"), float("inf")])
def test_a_game_that_paid_no_finite_number_does_not_count(odd: float | None) -> None:
    buffer = StepBuffer()
    gate = GroupGate(buffer, 2)
    gate.add(member(0))
    gate.add(member(1, rewards=(odd, odd)))
    assert gate.counts() == {"size": 2, "complete": 0, "incomplete": 1, "dropped": 0}
    assert (buffer.size(), buffer.stats().episodes) == (2, 1)


@pytest.mark.parametrize("status", [*FAILURES, Status.TRUNCATED])
def test_or_it_is_dropped_whole_and_counted(status: Status) -> None:
    buffer = StepBuffer()
    gate = GroupGate(buffer, 3, "drop")
    for index, ended in enumerate((Status.COMPLETED, status, Status.COMPLETED)):
        gate.add(member(index, ended))
    assert (buffer.stats().added, buffer.stats().skipped, buffer.stats().episodes) == (0, 0, 0)
    assert gate.counts() == {"size": 3, "complete": 0, "incomplete": 0, "dropped": 1}
    for index in range(3):
        gate.add(member(index, group="h"))
    assert buffer.stats().episodes == 3
    assert gate.counts() == {"size": 3, "complete": 1, "incomplete": 0, "dropped": 1}


@pytest.mark.parametrize("policy", ["deliver", "drop"])
def test_a_group_without_a_game_to_learn_from_is_dropped(policy: str) -> None:
    buffer = Shown()
    gate = GroupGate(buffer, 2, policy)  # type: ignore[arg-type]
    for index in range(2):
        gate.add(member(index, Status.FAILED))
    assert buffer.got == []
    assert gate.counts()["dropped"] == 1


def test_truncated_games_count_where_the_buffer_accepts_them() -> None:
    for truncated, count, episodes in (("drop", 1, 1), ("keep", 2, 2)):
        buffer = StepBuffer(truncated=truncated)  # type: ignore[arg-type]
        gate = GroupGate(buffer, 2)
        gate.add(member(0))
        gate.add(member(1, Status.TRUNCATED))
        drawn = buffer.get_batch(buffer.size())
        assert {(item.group_delivered, item.group_size) for item in drawn} == {(count, 2)}
        assert buffer.stats().episodes == episodes
        assert buffer.stats().skipped == 2 * (2 - episodes), "what the buffer was shown and did not take"
    assert gate.counts()["complete"] == 1
    own = Shown()
    gate = GroupGate(own, 2)
    gate.add(member(0))
    gate.add(member(1, Status.TRUNCATED))
    assert {fact[2] for fact in own.facts()} == {2}, "a buffer that does not say takes them"


def test_a_player_that_was_paid_nothing_is_missing_from_its_own_count_only() -> None:
    buffer = StepBuffer()
    gate = GroupGate(buffer, 2)
    gate.add(member(0))
    gate.add(member(1, rewards=(0.5, None)))
    drawn = buffer.get_batch(buffer.size())
    counts = {(item.game_id, item.agent.player_id): item.group_delivered for item in drawn}
    assert counts == {("g-0", 0): 2, ("g-1", 0): 2, ("g-0", 1): 1}
    assert gate.counts()["incomplete"] == 1


def test_a_game_whose_every_step_is_flagged_is_missing_from_its_count() -> None:
    game = member(1)
    unlearnable = replace(game.steps[1].choice, completion_ids=(1,), logprobs=(float("nan"),))
    buffer = StepBuffer()
    gate = GroupGate(buffer, 2)
    gate.add(member(0))
    gate.add(replace(game, steps=(game.steps[0], replace(game.steps[1], choice=unlearnable))))
    drawn = buffer.get_batch(buffer.size())
    counts = {(item.game_id, item.agent.player_id): item.group_delivered for item in drawn}
    assert counts == {("g-0", 0): 2, ("g-1", 0): 2, ("g-0", 1): 1}
    assert gate.counts()["incomplete"] == 1


def test_games_without_groups_pass_as_they_end() -> None:
    buffer = Shown()
    gate = GroupGate(buffer)
    for index, status in enumerate((Status.COMPLETED, Status.FAILED, Status.TRUNCATED)):
        gate.add(member(index, status, group=f"g{index}"))
    assert buffer.facts() == [("g0-0", 0, 1, 1), ("g0-0", 1, 1, 1), ("g2-2", 0, 1, 1), ("g2-2", 1, 1, 1)]


def test_the_stop_condition_counts_games_of_delivered_groups() -> None:
    buffer = StepBuffer(stop=StopConditions(episodes=2))
    gate = GroupGate(buffer, 2)
    gate.add(member(0))
    assert buffer.continue_collection()
    gate.add(member(1))
    assert not buffer.continue_collection()


def test_wrong_settings_are_refused() -> None:
    with pytest.raises(ConfigError, match="group_size is 0: expected at least 1 game in a group"):
        GroupGate(Shown(), 0)
    with pytest.raises(ConfigError, match="incomplete_groups is 'keep': expected 'deliver' or 'drop'"):
        GroupGate(Shown(), 2, "keep")  # type: ignore[arg-type]
