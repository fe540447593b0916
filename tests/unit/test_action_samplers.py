"""Votes over completions, on replies written by hand."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.action_samplers import action_sampler
from tasks.contracts import Completion, EngineReply, SamplingSpec
from tasks.errors import ConfigError
from tasks.prompts import action_extraction

bracket = action_extraction("bracket")


def reply(*texts: str) -> EngineReply:
    """One completion per text; the i-th has i + 1 tokens."""
    return EngineReply(
        prompt_ids=(7, 8),
        completions=tuple(
            Completion(text, tuple(range(i + 1)), (-0.5,) * (i + 1), "stop") for i, text in enumerate(texts)
        ),
        cached_tokens=2,
    )


def test_default_takes_the_one_completion_as_it_is() -> None:
    choice = action_sampler("default").choose(reply("I [bet]"), bracket, random.Random(0))
    assert (choice.action, choice.completion, choice.format_ok) == ("[bet]", "I [bet]", True)
    assert (choice.prompt_ids, choice.completion_ids, choice.logprobs) == ((7, 8), (0,), (-0.5,))
    assert (choice.finish_reason, choice.generated_tokens, choice.cached_tokens) == ("stop", 1, 2)
    assert (choice.votes, choice.confidence, choice.entropy) == (None, None, None)


def test_a_log_probability_that_is_missing_is_nan_and_the_limit_is_recorded() -> None:
    odd = EngineReply((1,), (Completion("bet", (4, 5), (-0.1, None), "length"),), token_limit=2)
    choice = action_sampler("default").choose(odd, bracket, random.Random(0))
    assert [math.isnan(value) for value in choice.logprobs] == [False, True]
    assert (choice.logprobs_ok, choice.token_limit) == (False, 2)
    assert choice.feedback == "no move found; expected [move]."


def test_the_most_frequent_action_wins_and_its_first_voter_is_recorded() -> None:
    choice = action_sampler("majority:4").choose(
        reply("[fold]", "so [bet]", "[bet]", "[bet]!"), bracket, random.Random(0)
    )
    assert choice.action == "[bet]"
    assert choice.completion == "so [bet]"
    assert choice.completion_ids == (0, 1)
    assert choice.generated_tokens == 1 + 2 + 3 + 4
    assert choice.votes == {"[fold]": 1, "[bet]": 3}
    assert choice.confidence == 0.75
    assert choice.entropy == pytest.approx(-(0.25 * math.log(0.25) + 0.75 * math.log(0.75)))


def test_a_unanimous_vote_has_no_entropy() -> None:
    choice = action_sampler("majority").choose(reply("[a]", "[a]", "[a]"), bracket, random.Random(0))
    assert (choice.confidence, choice.entropy) == (1.0, 0.0)
    assert math.copysign(1.0, choice.entropy or 0.0) == 1.0


def test_ill_formed_answers_vote_only_when_there_is_no_other() -> None:
    mixed = action_sampler("majority").choose(reply("hm", "hm", "[bet]"), bracket, random.Random(0))
    assert (mixed.action, mixed.votes, mixed.format_ok) == ("[bet]", {"[bet]": 1}, True)
    all_wrong = action_sampler("majority").choose(reply("hm", "ah", "hm"), bracket, random.Random(0))
    assert (all_wrong.action, all_wrong.votes, all_wrong.format_ok) == ("hm", {"hm": 2, "ah": 1}, False)


def test_an_ill_formed_answer_with_the_winning_text_is_not_the_one_recorded() -> None:
    extract = action_extraction("boxed")
    choice = action_sampler("majority").choose(reply("[bet]", "\\boxed{bet}", "[bet]"), extract, random.Random(0))
    assert (choice.completion, choice.format_ok, choice.votes) == ("\\boxed{bet}", True, {"[bet]": 1})


def test_ties_are_broken_by_the_given_generator_alone() -> None:
    tied = reply("[a]", "[b]", "[b]", "[a]")
    sampler = action_sampler("majority:4")
    picks = [sampler.choose(tied, bracket, random.Random(seed)).action for seed in range(40)]
    assert picks == [sampler.choose(tied, bracket, random.Random(seed)).action for seed in range(40)]
    assert set(picks) == {"[a]", "[b]"}


@given(st.lists(st.sampled_from(["[a]", "[b]", "[c]", "hm", "[a] "]), min_size=2, max_size=9))
def test_the_winner_has_the_most_votes_and_its_completion_says_so(texts: list[str]) -> None:
    choice = action_sampler(f"majority:{len(texts)}").choose(reply(*texts), bracket, random.Random(0))
    assert choice.votes is not None
    assert choice.votes[choice.action] == max(choice.votes.values())
    assert bracket(choice.completion).action == choice.action
    assert choice.confidence == choice.votes[choice.action] / sum(choice.votes.values())
    assert 0 <= (choice.entropy or 0.0) <= math.log(len(choice.votes)) + 1e-9


@pytest.mark.parametrize(
    ("name", "completions"), [("default", 1), ("majority", 3), ("majority:2", 2), ("majority:16", 16)]
)
def test_names(name: str, completions: int) -> None:
    assert action_sampler(name, SamplingSpec(temperature=0.7)).completions == completions


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "majorty",
            r"unknown action_sampler 'majorty'; valid are default, majority and majority:K\. Did you mean 'majority'",
        ),
        ("default:3", "unknown action_sampler 'default:3'"),
        ("", "unknown action_sampler ''"),
        ("majority:1", "asks for '1' completions; expected a whole number from 2 up"),
        ("majority:", "asks for '' completions"),
        ("majority:-3", "asks for '-3' completions"),
        ("majority:two", "asks for 'two' completions"),
        ("majority:²", "asks for '²' completions"),
    ],
)
def test_wrong_names_are_refused(name: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        action_sampler(name)


def test_a_vote_at_temperature_zero_is_refused() -> None:
    with pytest.raises(ConfigError, match="'majority' at temperature 0 would count one completion several times"):
        action_sampler("majority", SamplingSpec(temperature=0.0))
    assert action_sampler("default", SamplingSpec(temperature=0.0)).completions == 1
