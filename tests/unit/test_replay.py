"""What the step buffer takes, gives, throws away and counts, and when it says stop."""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.replay import ReplayBuffer, StepBuffer, StopConditions
from tasks.contracts import AgentSpec, Choice, ModelKind, ModelRef, Role, Status, Step, Trajectory
from tasks.errors import ConfigError

AGENT = AgentSpec(0, Role.ACTOR, ModelRef("policy@0", ModelKind.ENGINE, policy_version=0))


def trajectory(game: str, steps: int, *, status: Status = Status.COMPLETED, reward: float = 1.0) -> Trajectory:
    decisions = tuple(Step(index, 0, "seen", Choice("[0]", "said", True), False) for index in range(steps))
    return Trajectory(game, f"group of {game}", "A-v0", AGENT, status, reward, decisions)


def filled(steps: int, *, capacity: int = 100_000, seed: int = 0) -> StepBuffer:
    buffer = StepBuffer(capacity, seed=seed)
    buffer.add_player_trajectory(trajectory("game", steps), "A-v0")
    return buffer


def indices(buffer: StepBuffer, count: int) -> list[int]:
    return [item.step.index for item in buffer.get_batch(count)]


def test_it_is_what_the_scheduler_needs() -> None:
    assert isinstance(StepBuffer(), ReplayBuffer)


def test_a_drawn_step_brings_the_facts_of_its_game() -> None:
    buffer = StepBuffer()
    played = trajectory("game-7", 1, status=Status.ILLEGAL_MOVE, reward=-1.0)
    buffer.add_player_trajectory(played, "A-v0")
    (drawn,) = buffer.get_batch(1)
    assert drawn.step == played.steps[0]
    assert (drawn.reward, drawn.agent, drawn.env_id) == (-1.0, AGENT, "A-v0")
    assert (drawn.game_id, drawn.group_id, drawn.status) == ("game-7", "group of game-7", Status.ILLEGAL_MOVE)


@pytest.mark.parametrize("logprobs", [(float("nan"), -0.1), (-0.1, float("-inf")), (-0.1,), ()])
def test_a_step_without_finite_log_probabilities_is_counted_and_never_drawn(logprobs: tuple[float, ...]) -> None:
    played = trajectory("game", 2)
    odd = Step(2, 0, "seen", Choice("[0]", "said", True, completion_ids=(1, 2), logprobs=logprobs), False)
    buffer = StepBuffer()
    buffer.add_player_trajectory(replace(played, steps=(*played.steps, odd)), "A-v0")
    assert sorted(indices(buffer, buffer.size())) == [0, 1]
    stats = buffer.stats()
    assert (stats.added, stats.flagged, stats.skipped, stats.episodes) == (2, 1, 0, 1)


def test_each_step_is_drawn_once_in_random_order() -> None:
    buffer = filled(50)
    drawn = indices(buffer, 20) + indices(buffer, 30)
    assert sorted(drawn) == list(range(50))
    assert drawn != sorted(drawn)
    assert buffer.size() == 0


def test_every_step_is_as_likely_to_be_drawn() -> None:
    drawn = Counter(index for seed in range(2000) for index in indices(filled(4, seed=seed), 1))
    assert all(400 < drawn[index] < 600 for index in range(4))


def test_same_seed_and_calls_same_evictions_and_draws() -> None:
    def drawn(seed: int) -> list[int]:
        return indices(filled(40, capacity=20, seed=seed), 15)

    assert drawn(1) == drawn(1)
    assert drawn(1) != drawn(2)


def test_a_full_buffer_evicts_at_random_counts_it_and_keeps_the_newest_step() -> None:
    buffer = filled(100, capacity=10)
    assert buffer.stats().evicted == 90
    kept = indices(buffer, 10)
    assert len(set(kept)) == 10
    assert 99 in kept
    assert sorted(kept) != list(range(90, 100))


def test_what_the_environment_paid_nothing_is_left_out_and_a_kept_truncated_game_earns_zero() -> None:
    buffer = StepBuffer(truncated="keep")
    unpaid = replace(trajectory("unpaid", 2), final_reward=None)
    buffer.add_player_trajectory(unpaid, "A-v0")
    assert (buffer.size(), buffer.stats().skipped) == (0, 2)
    buffer.add_player_trajectory(replace(unpaid, game_id="cut", status=Status.TRUNCATED), "A-v0")
    assert [step.reward for step in buffer.get_batch(2)] == [0.0, 0.0]


@pytest.mark.parametrize("status", list(Status))
@pytest.mark.parametrize("policy", ["drop", "keep"])
def test_only_trainable_games_are_taken_and_truncated_ones_by_policy(status: Status, policy: str) -> None:
    buffer = StepBuffer(truncated=policy)  # type: ignore[arg-type]
    buffer.add_player_trajectory(trajectory("game", 3, status=status), "A-v0")
    taken = status in ("completed", "illegal_move") or (status == "truncated" and policy == "keep")
    stats = buffer.stats()
    assert (stats.size, stats.skipped, stats.episodes) == ((3, 0, 1) if taken else (0, 3, 0))


def test_it_stops_after_so_many_games_not_trajectories() -> None:
    buffer = StepBuffer(stop=StopConditions(episodes=2))
    buffer.add_player_trajectory(trajectory("one", 1), "A-v0")
    buffer.add_player_trajectory(trajectory("one", 1), "A-v0")
    buffer.add_player_trajectory(trajectory("failed", 1, status=Status.FAILED), "A-v0")
    assert buffer.continue_collection()
    buffer.add_player_trajectory(trajectory("two", 1), "A-v0")
    assert not buffer.continue_collection()


def test_it_stops_after_so_many_steps_even_if_they_were_drawn_evicted_or_cleared() -> None:
    buffer = StepBuffer(2, StopConditions(steps=6))
    buffer.add_player_trajectory(trajectory("one", 3), "A-v0")
    buffer.get_batch(1)
    buffer.clear()
    buffer.add_player_trajectory(trajectory("two", 2), "A-v0")
    assert buffer.continue_collection()
    buffer.add_player_trajectory(trajectory("three", 1), "A-v0")
    assert not buffer.continue_collection()


def test_it_stops_so_many_seconds_after_it_was_first_asked() -> None:
    now = 100.0
    buffer = StepBuffer(stop=StopConditions(seconds=5.0), clock=lambda: now)
    now = 200.0
    assert buffer.continue_collection()
    now = 204.9
    assert buffer.continue_collection()
    now = 205.0
    assert not buffer.continue_collection()


def test_it_stops_when_told_and_still_takes_what_is_finished_later() -> None:
    buffer = StepBuffer()
    assert buffer.continue_collection()
    buffer.stop()
    assert not buffer.continue_collection()
    buffer.add_player_trajectory(trajectory("late", 2), "A-v0")
    assert buffer.size() == 2
    assert not buffer.continue_collection()


def test_without_conditions_it_goes_on() -> None:
    buffer = filled(100)
    assert buffer.continue_collection()


actions = st.lists(
    st.tuples(st.sampled_from(["add", "add", "draw", "clear"]), st.integers(1, 9), st.sampled_from(Status))
)


@given(actions=actions, capacity=st.integers(1, 12))
def test_counts_add_up_whatever_happens(actions: list[tuple[str, int, Status]], capacity: int) -> None:
    buffer = StepBuffer(capacity)
    offered = 0
    for number, (action, amount, status) in enumerate(actions):
        if action == "add":
            buffer.add_player_trajectory(trajectory(str(number), amount, status=status), "A-v0")
            offered += amount
        elif action == "clear":
            buffer.clear()
        elif buffer.size() >= amount:
            buffer.get_batch(amount)
        stats = buffer.stats()
        assert stats.added == stats.size + stats.drawn + stats.evicted + stats.cleared
        assert offered == stats.added + stats.skipped
        assert stats.size == buffer.size() <= capacity


def test_threads_that_add_and_draw_at_once_lose_and_repeat_nothing() -> None:
    buffer = StepBuffer()
    drawn: list[str] = []
    start = threading.Barrier(4)

    def add(name: str) -> None:
        start.wait()
        for number in range(300):
            buffer.add_player_trajectory(trajectory(f"{name} {number}", 1), "A-v0")

    def draw() -> None:
        start.wait()
        while len(drawn) < 900:
            if buffer.size():
                drawn.extend(item.game_id for item in buffer.get_batch(1))

    threads = [threading.Thread(target=add, args=(name,), daemon=True) for name in "abc"]
    threads.append(threading.Thread(target=draw, daemon=True))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert not any(thread.is_alive() for thread in threads)
    assert sorted(drawn) == sorted(f"{name} {number}" for name in "abc" for number in range(300))
    assert buffer.stats().drawn == buffer.stats().episodes == 900


@pytest.mark.parametrize("count", [0, -1, 4])
def test_a_batch_that_cannot_be_drawn_is_refused_and_nothing_is_lost(count: int) -> None:
    buffer = filled(3)
    with pytest.raises(ConfigError, match=rf"get_batch\({count}\): expected between 1 and the 3 steps in the buffer"):
        buffer.get_batch(count)
    assert buffer.size() == 3


def test_a_capacity_of_nothing_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"buffer\.capacity is 0: expected at least 1 step"):
        StepBuffer(0)


def test_an_unknown_policy_for_truncated_games_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"buffer\.truncated is 'maybe': expected 'drop' or 'keep'"):
        StepBuffer(truncated="maybe")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("condition", "value"), [("episodes", 0), ("steps", -1), ("seconds", 0.0), ("seconds", float("nan"))]
)
def test_a_stop_condition_of_nothing_is_refused(condition: str, value: float) -> None:
    with pytest.raises(ConfigError, match=rf"buffer\.stop\.{condition} is {value}: expected a number above 0, or null"):
        StopConditions(**{condition: value})  # type: ignore[arg-type]
