"""Recorded steps become sequences without losing one, and a sequence knows its steps."""

from __future__ import annotations

import math
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.batch import check_sample, samples_of, spans_of, trained_spans
from tasks.errors import LearnerError
from tests.unit.learner_samples import recorded_step, sample


def test_a_prompt_that_extends_the_tokens_before_it_is_merged() -> None:
    first = recorded_step([1, 2], [3, 4], index=0, reward=0.5)
    second = recorded_step([1, 2, 3, 4, 5], [6], index=2, reward=-1.0)
    (merged,) = samples_of([second, first])
    assert merged.token_ids == (1, 2, 3, 4, 5, 6)
    assert merged.spans == ((2, 4), (5, 6))
    assert merged.logprobs == (-0.03, -0.04, -0.06)
    assert merged.rewards == (0.5, -1.0)
    assert (merged.env_id, merged.role, merged.player_id, merged.game_id) == ("env", "actor", 0, "game")
    assert merged == pickle.loads(pickle.dumps(merged))


@pytest.mark.parametrize(
    "second",
    [
        recorded_step([1, 2, 3, 9, 5], [6], index=1),  # the earlier completion reads otherwise in the new prompt
        recorded_step([1, 2], [3, 4], index=1),  # the prompt is shorter than what went before
        recorded_step([1, 2, 3, 4, 5], [6], index=1, player_id=1),
        recorded_step([1, 2, 3, 4, 5], [6], index=1, game_id="other"),
        recorded_step([1, 2, 3, 4, 5], [6], index=1, version=1),
    ],
    ids=["other tokens", "shorter", "other player", "other game", "other version"],
)
def test_what_does_not_continue_stands_alone(second) -> None:  # type: ignore[no-untyped-def]
    first = recorded_step([1, 2], [3, 4])
    samples = samples_of([first, second])
    assert sorted(sample.token_ids for sample in samples) == sorted(
        tuple(item.step.choice.prompt_ids + item.step.choice.completion_ids) for item in (first, second)
    )


def test_a_sequence_goes_on_after_one_that_broke() -> None:
    steps = [
        recorded_step([1], [2], index=0),
        recorded_step([7], [8], index=1),
        recorded_step([7, 8, 9], [], index=2),
        recorded_step([7, 8, 9, 3], [4], index=3),
    ]
    assert [sample.spans for sample in samples_of(steps)] == [((1, 2),), ((1, 2), (3, 3), (4, 5))]


@given(
    st.lists(
        st.tuples(st.lists(st.integers(0, 2), min_size=1, max_size=4), st.lists(st.integers(0, 2), max_size=2)),
        max_size=8,
    )
)
def test_no_step_is_lost_and_each_keeps_its_context(texts: list[tuple[list[int], list[int]]]) -> None:
    steps = [recorded_step(p, c, index=i, reward=float(i)) for i, (p, c) in enumerate(texts)]
    seen = {}
    for merged in samples_of(steps):
        check_sample(merged)
        for span in spans_of(merged):
            seen[int(span.reward)] = (
                list(merged.token_ids[: span.start]),
                list(merged.token_ids[span.start : span.stop]),
            )
    assert seen == {i: text for i, text in enumerate(texts)}


def test_only_the_policy_is_learned_from() -> None:
    with pytest.raises(LearnerError, match=r"step 0 of game game was played by 'policy@None', expected a version"):
        samples_of([recorded_step([1], [2], version=None)])


@pytest.mark.parametrize("spans", [((0, 1),), ((2, 1),), ((1, 5),), ((2, 3), (1, 2))])
def test_spans_must_lie_apart_within_the_tokens(spans: tuple[tuple[int, int], ...]) -> None:
    broken = sample([1, 2, 3, 4], spans, [0.0] * len(spans))
    with pytest.raises(LearnerError, match=r"has the spans .* in 4 tokens; expected \[start, end\) in order"):
        check_sample(broken)


def test_log_probabilities_and_rewards_must_be_whole() -> None:
    with pytest.raises(LearnerError, match="2 log-probabilities for 2 trained tokens and 2 rewards for 1 steps"):
        check_sample(sample([1, 2, 3], [(1, 3)], [0.0, 0.0]))


def test_empty_and_flagged_steps_are_not_trained() -> None:
    mixed = sample([1, 2, 3, 4], [(1, 1), (2, 3)], [1.0, 2.0])
    assert [span.start for span in trained_spans(mixed)] == [2]
    assert not list(trained_spans(sample([1, 2], [(1, 2)], [1.0], logprob=math.nan)))
