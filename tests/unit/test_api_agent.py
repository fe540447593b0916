"""Opponents behind an endpoint: what they are asked, what of a bad network is borne, and where their keys stay."""

from __future__ import annotations

import asyncio
import pickle
import re
from collections.abc import Sequence
from typing import Any

import pytest

from tasks.agents import make_agent
from tasks.api_agent import close_endpoints
from tasks.contracts import AgentSpec, ApiRef, Choice, GameSpec, Mode, ModelKind, ModelRef, Role, SamplingSpec, Status
from tasks.errors import OpponentError, PromptTooLongError
from tasks.play import play_game
from tests.api_server import Answer, ApiServer, api_server, says

KEY = "sk-not-to-be-seen-0123456789"
KEY_VARIABLE = "SELFPLAY_TEST_KEY"
BET = "\\boxed{[bet]}"


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KEY_VARIABLE, KEY)
    monkeypatch.setenv("OPENAI_API_KEY", "sk-of-another-service")


def spec(base_url: str, sampling: SamplingSpec | None = None, **changes: Any) -> GameSpec:
    """A game of two players behind the endpoint; pauses are short."""
    settings = {"key_variable": KEY_VARIABLE, "retries": 2, "backoff_s": 0.001, "timeout_s": 5.0, **changes}
    model = ModelRef("them", ModelKind.API, api=ApiRef("vendor/model", base_url, **settings))
    agents = tuple(AgentSpec(p, Role.OPPONENT, model, sampling=sampling or SamplingSpec()) for p in range(2))
    return GameSpec("run", "game", Mode.EVAL, "KuhnPoker-v0-train", 2, 1, agents)


async def ask(game: GameSpec, observation: str = "Your card: K", times: int = 1) -> list[Choice]:
    try:
        agent = make_agent(game, game.agents[0], engine=None)
        return list(await asyncio.gather(*(agent.act(observation, step) for step in range(times))))
    finally:
        await close_endpoints()


def answer_of(answers: Sequence[Answer], **changes: Any) -> tuple[Choice, ApiServer]:
    with api_server(answers) as server:
        (choice,) = asyncio.run(ask(spec(server.base_url, **changes)))
    return choice, server


def refusal_of(answers: Sequence[Answer], **changes: Any) -> tuple[str, ApiServer]:
    with api_server(answers) as server, pytest.raises(OpponentError) as caught:
        asyncio.run(ask(spec(server.base_url, **changes)))
    assert KEY not in str(caught.value)
    assert KEY.encode() not in pickle.dumps(caught.value)
    return str(caught.value), server


def test_it_asks_for_one_completion_with_its_prompt_its_sampling_and_its_key() -> None:
    sampling = SamplingSpec(temperature=0.3, top_p=0.9, max_tokens=77, stop=("END",))
    choice, server = answer_of([says(f"I think. {BET}")], sampling=sampling)
    (request,) = server.requests
    (message,) = request.pop("messages")
    assert message["content"].startswith("Your card: K")
    assert request == {"model": "vendor/model", "temperature": 0.3, "top_p": 0.9, "max_tokens": 77, "stop": ["END"]}
    assert server.authorizations == [f"Bearer {KEY}"]
    assert (choice.action, choice.completion, choice.format_ok) == ("[bet]", f"I think. {BET}", True)
    assert (choice.finish_reason, choice.token_limit) == ("stop", 77)
    assert (choice.generated_tokens, choice.cached_tokens) == (5, 3)
    assert (choice.prompt_ids, choice.completion_ids, choice.logprobs, choice.logprobs_ok) == ((), (), (), True)


def test_an_endpoint_without_a_key_is_not_given_that_of_another() -> None:
    _, server = answer_of([says(BET)], key_variable=None)
    assert server.authorizations == ["Bearer none"]


@pytest.mark.parametrize("value", [None, "", " "])
def test_a_missing_key_is_named_by_its_variable(value: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    if value is None:
        monkeypatch.delenv(KEY_VARIABLE)
    else:
        monkeypatch.setenv(KEY_VARIABLE, value)
    message, server = refusal_of([says(BET)])
    assert message == (
        "the opponent 'vendor/model' needs a key, but the environment variable SELFPLAY_TEST_KEY is not set where the "
        "game is played; set it before the workers start"
    )
    assert server.requests == []


@pytest.mark.parametrize("text", [None, "", " \n", "no box", "a\0b", "\ud83d", "\ufffd", "x" * 200_000])
def test_whatever_the_model_says_is_its_answer(text: str | None) -> None:
    choice, server = answer_of([says(text)])
    assert (choice.completion, choice.format_ok, len(server.requests)) == (text, False, 1)
    assert choice.feedback


def test_half_a_surrogate_pair_in_an_observation_reaches_the_model_as_a_replacement() -> None:
    with api_server([says(BET)]) as server:
        asyncio.run(ask(spec(server.base_url), observation="they said \ud83d"))
    assert server.requests[0]["messages"][0]["content"].startswith("they said \ufffd\n")


@pytest.mark.parametrize("usage", [None, {}, {"completion_tokens": None}, {"completion_tokens": 2**40}, [7]])
def test_tokens_that_are_not_said_are_none(usage: Any) -> None:
    proper = says(BET)
    choice, _ = answer_of([Answer({**proper.body, "usage": usage})])
    assert (choice.action, choice.generated_tokens, choice.cached_tokens) == ("[bet]", 0, 0)


FAULTS = {
    "429": (Answer({"error": {"message": "slow down"}}, 429, {"Retry-After": "0.001"}), "HTTP 429: .*slow down"),
    "429 until a date": (Answer({}, 429, {"Retry-After": "Fri, 31 Dec 1999 23:59:59 GMT"}), "HTTP 429"),
    "500": (Answer(b"<html>oh no</html>", 500), "HTTP 500: <html>oh no"),
    "503": (Answer({"error": "busy"}, 503), "HTTP 503"),
    "a time-out": (says(BET, delay_s=4), r"no whole answer within timeout_s=1\.5"),
    "a slow drip": (Answer(b"{", drip=True), r"no whole answer within timeout_s=1\.5"),
    "a connection cut": (Answer(b'{"choices": [', cut=True), "no connection"),
    "truncated JSON": (Answer(b'{"choices": [{"message": {"con'), "not whole JSON .*Unterminated string"),
    "no JSON": (Answer(b"<html>login</html>"), "not whole JSON .*<html>login"),
    "JSON without end": (Answer(b"[" * 100_000), "not whole JSON"),
    "empty choices": (Answer({"choices": []}), 'an answer without choices: {"choices": '),
    "null choices": (Answer({"choices": None}), "an answer without choices"),
    "a choice without a message": (Answer({"choices": [{"message": None}]}), "an answer without choices"),
    "an error with the status 200": (Answer({"error": {"code": 502}}), "an answer without choices: .*502"),
}


@pytest.mark.parametrize(("fault", "reason"), FAULTS.values(), ids=FAULTS)
def test_a_fault_is_borne_and_then_said(fault: Answer, reason: str) -> None:
    timeout_s = 1.5 if "timeout_s" in reason else 5.0
    choice, server = answer_of([fault, says(BET)], timeout_s=timeout_s)
    assert (choice.action, len(server.requests)) == ("[bet]", 2)
    message, server = refusal_of([fault], retries=1, timeout_s=timeout_s)
    assert len(server.requests) == 2
    pattern = rf"the opponent 'vendor/model' at {server.base_url} gave no usable answer in 2 attempts; the last time: "
    assert re.search(pattern + reason, message), message
    assert "the opponent's max_concurrency, timeout_s, retries and backoff_s are settings" in message
    assert len(message) < 800


def test_nobody_at_home() -> None:
    with api_server([says(BET)]) as server:
        pass
    with pytest.raises(OpponentError, match=r"in 3 attempts; the last time: no connection \("):
        asyncio.run(ask(spec(server.base_url)))


@pytest.mark.parametrize("status", [400, 401, 403, 404, 422])
def test_a_refusal_is_not_asked_again(status: int) -> None:
    message, server = refusal_of([Answer({"error": {"message": f"no: {KEY}"}}, status)])
    assert len(server.requests) == 1
    assert f"refused the request: HTTP {status}: " in message
    assert message.endswith("Check the opponent's model, base_url and max_tokens, and the key in SELFPLAY_TEST_KEY")


@pytest.mark.parametrize(
    "error",
    [
        {"code": "context_length_exceeded", "message": "too many tokens"},
        {"message": "This model's maximum context length is 4096 tokens. You have 5000."},
    ],
)
def test_a_prompt_that_does_not_fit_is_an_overflow(error: dict[str, str]) -> None:
    with api_server([Answer({"error": error}, 400)]) as server:

        async def play() -> Status:
            episode = await play_game(spec(server.base_url), None)
            await close_endpoints()
            return episode.status

        assert asyncio.run(play()) is Status.OVERFLOW
        with pytest.raises(PromptTooLongError, match="takes no prompt of this length: HTTP 400: "):
            asyncio.run(ask(spec(server.base_url)))


def test_a_wait_that_the_endpoint_asks_for_is_kept_and_capped(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []

    async def note(seconds: float) -> None:
        pauses.append(seconds)

    busy = Answer({}, 429, {"Retry-After": "7"})
    with api_server([busy, Answer({}, 429, {"Retry-After": "9999"}), Answer({}, 500), says(BET)]) as server:
        monkeypatch.setattr("tasks.api_agent.asyncio.sleep", note)
        asyncio.run(ask(spec(server.base_url, retries=3, backoff_s=1.0)))
    assert pauses[:2] == [7.0, 60.0]
    assert 2.0 <= pauses[2] <= 4.0


def test_no_more_is_asked_at_once_than_allowed() -> None:
    with api_server([says(BET, delay_s=0.02)]) as server:
        choices = asyncio.run(ask(spec(server.base_url, max_concurrency=3), times=20))
    assert [choice.action for choice in choices] == ["[bet]"] * 20
    assert server.most_at_once == 3


def test_the_key_is_taken_out_of_whatever_comes_back() -> None:
    choice, _ = answer_of([says(f"your key is {KEY}: {BET}")])
    assert choice.completion == f"your key is ***: {BET}"
    refusal_of([Answer({"error": f"{{authorization}} {'x' * 290}{KEY}"}, 500)], retries=0)
    refusal_of([Answer({"choices": [], "sent": "{authorization}"})], retries=0)


def test_a_game_whose_opponent_cannot_be_reached_fails_and_blames_nobody() -> None:
    with api_server([says("\\boxed{[check]}"), Answer({}, 500)]) as server:

        async def play() -> None:
            episode = await play_game(spec(server.base_url), None)
            await close_endpoints()
            assert (episode.status, episode.rewards, episode.offender) == (Status.FAILED, None, None)
            assert len(episode.steps) == 1
            assert episode.reason.startswith("OpponentError: the opponent 'vendor/model' at ")

        asyncio.run(play())


def test_a_game_is_played_to_its_end() -> None:
    with api_server([says("\\boxed{[check]}")]) as server:

        async def play() -> None:
            episode = await play_game(spec(server.base_url), None)
            await close_endpoints()
            assert episode.status is Status.COMPLETED
            assert {step.choice.action for step in episode.steps} == {"[check]"}

        asyncio.run(play())
