"""What rewards become on their way to the learner, on numbers worked out by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from pipeline.replay import StepBuffer
from pipeline.rewards import FormatReward, IllegalMovePenalty, RewardTransforms, RoleAdvantage
from tasks.contracts import AgentSpec, Choice, ModelKind, ModelRef, Role, Status, Step, Trajectory
from tasks.errors import ConfigError

POLICY = ModelRef("policy@0", ModelKind.ENGINE, policy_version=0)


def step(index: int = 0, *, format_ok: bool = True, illegal: bool = False) -> Step:
    return Step(index, 0, "seen", Choice("[0]", "said", format_ok), illegal)


def played(game: str, reward: float, *steps: Step, seat: int = 0) -> Trajectory:
    agent = AgentSpec(seat, Role.ACTOR, POLICY)
    return Trajectory(game, game, "A-v0", agent, Status.COMPLETED, reward, steps or (step(),))


def test_the_mean_is_subtracted_before_the_reward_enters_it() -> None:
    advantage = RoleAdvantage(decay=0.9)
    assert advantage(1.0, "A", 0) == 1.0  # the mean is still 0
    assert advantage(1.0, "A", 0) == pytest.approx(0.9)  # 0.9 * 0 + 0.1 * 1
    assert advantage(-1.0, "A", 0) == pytest.approx(-1.19)  # 0.9 * 0.1 + 0.1 * 1 = 0.19


def test_each_environment_and_seat_has_its_own_mean() -> None:
    advantage = RoleAdvantage()
    for _ in range(300):
        advantage(1.0, "A", 0)
        advantage(-1.0, "A", 1)
    assert advantage.means["A", 0] == pytest.approx(1.0, abs=1e-5)
    assert advantage.means["A", 1] == pytest.approx(-1.0, abs=1e-5)
    assert advantage(0.5, "B", 0) == 0.5


def test_equal_rewards_are_worth_less_and_less() -> None:
    advantage = RoleAdvantage(decay=0.5)
    assert [advantage(1.0, "A", 0) for _ in range(4)] == [1.0, 0.5, 0.25, 0.125]


def test_a_decay_that_is_no_share_is_refused() -> None:
    with pytest.raises(
        ConfigError, match=r"learner\.rewards\.decay is 1\.0: expected a number of at least 0 and below"
    ):
        RoleAdvantage(decay=1.0)


def test_the_stages_follow_each_other() -> None:
    transforms = RewardTransforms(
        final=[RoleAdvantage(decay=0.5)],
        step=[FormatReward(0.25), IllegalMovePenalty(1.0)],
        batch=lambda rewards, env_ids: [reward * 10 for reward in rewards],
    )
    buffer = StepBuffer(transforms=transforms)
    buffer.add_player_trajectory(played("first", 1.0, step(0), step(1, format_ok=False)), "A-v0")
    buffer.add_player_trajectory(played("second", 1.0, step(0, illegal=True)), "A-v0")
    drawn = {(item.game_id, item.step.index): item for item in buffer.get_batch(3)}
    # first: 1 - 0, in form or not; second: 1 - 0.5, in form, refused; then all times 10
    assert {key: item.transformed for key, item in drawn.items()} == {
        ("first", 0): pytest.approx(12.5),
        ("first", 1): pytest.approx(10.0),
        ("second", 0): pytest.approx(-2.5),
    }
    assert {item.reward for item in drawn.values()} == {1.0}, "the raw reward stays beside it"


def test_the_baseline_moves_once_per_trajectory_not_per_step() -> None:
    advantage = RoleAdvantage(decay=0.5)
    buffer = StepBuffer(transforms=RewardTransforms(final=[advantage]))
    buffer.add_player_trajectory(played("game", 1.0, *map(step, range(7))), "A-v0")
    assert advantage.means == {("A-v0", 0): 0.5}
    assert buffer.transforms.baselines() == {("A-v0", 0): 0.5}


@pytest.mark.parametrize("reward", [math.nan, math.inf])
def test_a_reward_that_is_no_number_never_reaches_the_baseline(reward: float) -> None:
    advantage = RoleAdvantage()
    buffer = StepBuffer(transforms=RewardTransforms(final=[advantage]))
    buffer.add_player_trajectory(played("game", reward), "A-v0")
    assert (advantage.means, buffer.size(), buffer.stats().skipped) == ({}, 0, 1)


def test_what_was_learned_goes_on_from_a_checkpoint() -> None:
    before = RewardTransforms(final=[RoleAdvantage(decay=0.5)])
    before.of_trajectory(1.0, "A", 0)
    after = RewardTransforms(final=[RoleAdvantage(decay=0.5)])
    after.restore(before.state())
    assert after.of_trajectory(1.0, "A", 0) == before.of_trajectory(1.0, "A", 0) == 0.5


def test_a_checkpoint_of_other_transformations_is_refused() -> None:
    state = RewardTransforms(final=[RoleAdvantage()]).state()
    with pytest.raises(
        ConfigError, match="has 1 transformations of final rewards, this run 0: resume with the learner"
    ):
        RewardTransforms().restore(state)


def test_without_transformations_a_reward_is_what_it_was() -> None:
    buffer = StepBuffer()
    buffer.add_player_trajectory(replace(played("game", -0.5)), "A-v0")
    (drawn,) = buffer.get_batch(1)
    assert drawn.transformed == drawn.reward == -0.5
