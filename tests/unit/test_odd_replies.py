"""Whatever a model says or an engine hands back: recorded as it was, parsed without fail, and stored."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.replay import StepBuffer
from tasks.agents import readable_moves
from tasks.contracts import (
    AdapterRef,
    AgentSpec,
    Completion,
    EngineReply,
    EngineSpec,
    Episode,
    GameSpec,
    Mode,
    ModelKind,
    ModelRef,
    Role,
    SamplingSpec,
    Status,
)
from tasks.play import play_game
from tasks.prompts import action_extraction
from tasks.shards import episodes_table, steps_table, unescaped
from tests.stub_engine import StubEngine, prompt_token_ids

BET = "\\boxed{[bet]}"
# One for each way in which replies are odd.
REPLIES = {
    "empty": "",
    "whitespace": " \n\t ",
    "200 kB": "word " * 40_000 + BET,
    "200 kB of open boxes": "\\boxed{" * 28_000,
    "200 kB of nested boxes": "\\boxed{" * 25_000 + "}" * 25_000,
    "200 kB of open brackets": "[" * 200_000,
    "200 kB of open tags": "<answer>" * 25_000,
    "200 kB of thinking tags": "<think></think>" * 13_000,
    "200 kB of blanks in a box": "\\boxed" + " " * 200_000,
    "200 kB of labels": "valid moves " * 16_000,
    "lone surrogates": "\ud800 \udfff" + BET,
    "a cut emoji": "\U0001f600\ud83d",
    "a replacement character": "\ufffd" + BET,
    "NUL": "\0\\boxed{[be\0t]}",
    "only a closing think-tag": "</think>",
    "a box inside the thinking": f"<think>{BET}</think>",
    "a box before a closing tag": f"{BET}</think>",
    "nested boxes": "\\boxed{\\boxed{\\boxed{[bet]}}}",
    "several boxes": "\\boxed{[fold]} \\boxed{[bet]}",
    "a stop string that the engine removed": "I play [bet",
}


class OneReply:
    """An engine that says one thing."""

    def __init__(self, text: str, logprobs: tuple[float | None, ...] = (-0.5,), token_id: int = 7) -> None:
        self._completion = Completion(text, (token_id,), logprobs, "stop")

    async def generate(
        self,
        messages: Sequence[Mapping[str, str]],
        sampling: SamplingSpec,
        *,
        n: int,
        seed: int,
        adapter: AdapterRef | None,
    ) -> EngineReply:
        "".join(message["content"] for message in messages).encode()  # as a tokenizer must
        return EngineReply((1, 2), (self._completion,) * n, token_limit=sampling.max_tokens)


def game(extraction: str = "boxed", env_id: str = "IteratedPrisonersDilemma-v0-train", **sampling: Any) -> GameSpec:
    """A game whose players see what the other says."""
    policy = ModelRef("policy@0", ModelKind.ENGINE, 0)
    agents = tuple(
        AgentSpec(player, Role.ACTOR, policy, "raw", extraction, sampling=SamplingSpec(**sampling))
        for player in range(2)
    )
    return GameSpec("run", "game", Mode.TRAIN, env_id, 2, 3, agents, max_turns=6)


def played(spec: GameSpec, engine: Any) -> Episode:
    return asyncio.run(play_game(spec, engine))


@pytest.mark.parametrize("extraction", ["boxed", "bracket", "answer", "raw"])
@pytest.mark.parametrize("text", REPLIES.values(), ids=REPLIES)
def test_any_reply_is_played_and_kept_whole(text: str, extraction: str) -> None:
    episode = played(game(extraction), OneReply(text))
    assert episode.status in (Status.COMPLETED, Status.ILLEGAL_MOVE, Status.TRUNCATED), episode.reason
    assert {step.choice.completion for step in episode.steps} == {text}
    assert {step.choice.completion_ids for step in episode.steps} == {(7,)}
    for row in steps_table([episode]).to_pylist():
        escaped = row["escaped"] or []
        assert ("completion" in escaped) == any("\ud800" <= sign <= "\udfff" for sign in text)
        assert (unescaped(row["completion"]) if "completion" in escaped else row["completion"]) == text
        assert row["format_ok"] == (row["feedback"] is None)
    assert episodes_table([episode]).num_rows == 1


@pytest.mark.parametrize(
    ("name", "action"),
    [
        ("lone surrogates", "[bet]"),
        ("a replacement character", "[bet]"),
        ("NUL", "[be\0t]"),
        ("200 kB", "[bet]"),
        ("nested boxes", "[bet]"),
        ("several boxes", "[bet]"),
    ],
)
def test_a_move_in_an_odd_reply_is_found(name: str, action: str) -> None:
    parsed = action_extraction("boxed")(REPLIES[name])
    assert (parsed.action, parsed.format_ok) == (action, True)


@pytest.mark.parametrize(
    "name", ["only a closing think-tag", "a box inside the thinking", "a box before a closing tag"]
)
def test_what_is_thought_is_not_played(name: str) -> None:
    parsed = action_extraction("boxed")(REPLIES[name])
    assert (parsed.action, parsed.format_ok) == ("", False)


@pytest.mark.parametrize("text", REPLIES.values(), ids=REPLIES)
def test_a_scripted_player_reads_moves_from_any_text(text: str) -> None:
    assert readable_moves(text)


@given(st.text(st.characters(codec=None) | st.sampled_from("\\{}[]<>/"), max_size=60), st.sampled_from(["a", "b"]))
@settings(deadline=None)
def test_extractions_take_any_text(text: str, tail: str) -> None:
    for name in ("boxed", "bracket", "answer", "raw"):
        parsed = action_extraction(name)(text + tail)
        assert parsed.format_ok == (parsed.feedback == "")


@pytest.mark.parametrize("value", [None, float("nan"), float("-inf")])
def test_a_step_with_an_odd_log_probability_is_flagged_and_never_trained_on(value: float | None) -> None:
    episode = played(game(), OneReply(BET, (value,)))
    table = steps_table([episode])
    assert set(table["logprobs_ok"].to_pylist()) == {False}
    assert all(isinstance(item, float) for values in table["logprobs"].to_pylist() for item in values)
    buffer = StepBuffer(truncated="keep")
    ended = replace(episode, status=Status.COMPLETED, rewards=(1.0, 0.0))
    trajectory = ended.trajectory(0)
    assert trajectory is not None
    buffer.add_player_trajectory(trajectory, ended.spec.env_id)
    assert (buffer.size(), buffer.stats().flagged) == (0, len(trajectory.steps))


@pytest.fixture
def room() -> int:
    """The tokens of the longest prompt of the game below."""
    episode = played(game(env_id="KuhnPoker-v0-train"), OneReply("\\boxed{[check]}"))
    return max(len(prompt_token_ids([{"role": "user", "content": step.observation}])) for step in episode.steps)


@pytest.mark.parametrize("token_id", [-1, 2**31, 2**70, 1.5])
def test_ids_that_are_none_fail_their_game_and_no_shard(token_id: Any) -> None:
    episode = played(game(), OneReply(BET, token_id=token_id))
    assert (episode.status, episode.steps) == (Status.FAILED, ())
    assert f"token ids are whole numbers from 0 to 2**31 - 1, got {token_id}; look at" in episode.reason
    assert episodes_table([episode]).num_rows == 1


def test_a_log_probability_that_is_no_number_fails_its_game() -> None:
    odd: Any = ("low",)
    episode = played(game(), OneReply(BET, logprobs=odd))
    assert (episode.status, episode.reason) == (Status.FAILED, "ValueError: could not convert string to float: 'low'")


def among(specs: list[GameSpec], **changes: Any) -> list[Episode]:
    """The games played at once on one stub engine."""

    async def play() -> list[Episode]:
        engine = StubEngine(EngineSpec("stub", engine_args={"reply": "\\boxed{[check]}"}, **changes))
        await engine.start()
        return await asyncio.gather(*(play_game(spec, engine) for spec in specs))

    return asyncio.run(play())


def test_a_prompt_that_is_too_long_ends_its_game_alone(room: int) -> None:
    kuhn = game(env_id="KuhnPoker-v0-train")
    long = replace(kuhn, agents=tuple(replace(agent, prompt_template=f"{__name__}:padded") for agent in kuhn.agents))
    first, overflown, last = among([kuhn, long, kuhn], max_model_len=room + 100)
    assert (overflown.status, overflown.steps, overflown.rewards) == (Status.OVERFLOW, (), None)
    assert first.status is last.status is Status.COMPLETED
    assert len(first.steps) == len(last.steps) > 0


def padded(observation: str) -> list[dict[str, str]]:
    """A template that needs more room than there is."""
    return [{"role": "user", "content": observation + " pad" * 1000}]


def test_a_prompt_that_leaves_room_for_one_token_is_played_with_one(room: int) -> None:
    (episode,) = among([game(env_id="KuhnPoker-v0-train", max_tokens=50)], max_model_len=room + 1)
    limits = {len(step.choice.prompt_ids): step.choice.token_limit for step in episode.steps}
    assert limits[room] == 1
    assert limits == {length: min(50, room + 1 - length) for length in limits}
    assert [len(step.choice.completion_ids) for step in episode.steps if len(step.choice.prompt_ids) == room] == [1]
    (row,) = (row for row in steps_table([episode]).to_pylist() if len(row["prompt_ids"]) == room)
    assert (row["max_tokens"], row["token_limit"], row["finish_reason"]) == (50, 1, "length")


def test_one_token_less_and_it_is_an_overflow(room: int) -> None:
    (episode,) = among([game(env_id="KuhnPoker-v0-train", max_tokens=50)], max_model_len=room)
    assert episode.status is Status.OVERFLOW
