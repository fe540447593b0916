"""An opponent behind vLLM's own OpenAI-compatible server, with a tiny random model."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from pipeline.config import ApiOpponent
from tasks.agents import make_agent
from tasks.api_agent import close_endpoints
from tasks.contracts import AgentSpec, Choice, Episode, GameSpec, Mode, Role, SamplingSpec, Status
from tasks.errors import OpponentError
from tasks.play import play_game
from tests.engine.conftest import ENGINE_MARKS, MAX_MODEL_LEN

pytestmark = ENGINE_MARKS

KEY, KEY_VARIABLE = "sk-local-0123456789", "SELFPLAY_TEST_KEY"
START_TIMEOUT_S = 240.0
SETTINGS = {
    "--served-model-name": "tiny",
    "--host": "127.0.0.1",
    "--dtype": "float32",
    "--max-model-len": str(MAX_MODEL_LEN),
    "--kv-cache-memory-bytes": str(16 * 1024**2),
}


@pytest.fixture(scope="module")
def opponent(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiOpponent]:
    """The server, as a configuration names it; it asks for a key."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    arguments = [part for setting in SETTINGS.items() for part in setting]
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(base), "--enforce-eager"]
    environment = {**os.environ, "VLLM_API_KEY": KEY, "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"}
    log = tmp_path_factory.mktemp("server") / "log"
    with log.open("wb") as output:
        server = subprocess.Popen(
            [*command, "--port", str(port), *arguments],
            env=environment,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        _wait_until_ready(f"http://127.0.0.1:{port}/health", server, log)
        yield ApiOpponent(
            api="tiny",
            base_url=f"http://127.0.0.1:{port}/v1",
            key_variable=KEY_VARIABLE,
            max_tokens=24,
            retries=1,
            backoff_s=0.01,
        )
    finally:
        server.terminate()
        try:
            server.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(server.pid, signal.SIGKILL)
            server.wait()


def _wait_until_ready(url: str, server: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline and server.poll() is None:
        try:
            with urllib.request.urlopen(url, timeout=5):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.5)
    raise TimeoutError(f"the server does not answer: {log.read_text()[-3000:]}")


@pytest.fixture(autouse=True)
def _key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KEY_VARIABLE, KEY)


def game(opponent: ApiOpponent, template: str = "raw", extraction: str = "raw") -> GameSpec:
    """Kuhn Poker, the endpoint on both sides."""
    model = opponent.model_ref()
    sampling = SamplingSpec(max_tokens=opponent.max_tokens)
    agents = tuple(
        AgentSpec(player, Role.OPPONENT, model, template, extraction, sampling=sampling) for player in range(2)
    )
    return GameSpec("run", "game", Mode.EVAL, "KuhnPoker-v0-train", 2, 1, agents)


def answers(spec: GameSpec, observation: str, times: int = 1) -> list[Choice]:
    async def ask() -> list[Choice]:
        agent = make_agent(spec, spec.agents[0], engine=None)
        try:
            return await asyncio.gather(*(agent.act(observation, step) for step in range(times)))
        finally:
            await close_endpoints()

    return asyncio.run(ask())


def played(spec: GameSpec) -> Episode:
    async def play() -> Episode:
        try:
            return await play_game(spec, None)
        finally:
            await close_endpoints()

    return asyncio.run(play())


def test_answers_come_with_the_tokens_that_the_server_counts(opponent: ApiOpponent) -> None:
    for choice in answers(game(opponent), "hi", times=8):
        assert choice.completion is not None
        assert 1 <= choice.generated_tokens <= 24 == choice.token_limit
        assert choice.finish_reason == ("length" if choice.generated_tokens == 24 else choice.finish_reason)
        assert choice.finish_reason in ("length", "stop")


def test_a_prompt_beyond_its_context_is_an_overflow(opponent: ApiOpponent) -> None:
    episode = played(game(opponent))
    assert (episode.status, episode.steps, episode.offender) == (Status.OVERFLOW, (), None)
    assert "'tiny'" in episode.reason
    assert "maximum context length" in episode.reason


def test_the_wrong_key_is_a_refusal_that_names_its_variable(
    opponent: ApiOpponent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(KEY_VARIABLE, "sk-wrong")
    with pytest.raises(OpponentError, match=r"refused the request: HTTP 401: .*the key in SELFPLAY_TEST_KEY") as caught:
        answers(game(opponent), "hi")
    assert "sk-wrong" not in str(caught.value)


def test_a_model_it_does_not_have_is_a_refusal(opponent: ApiOpponent) -> None:
    wrong = ApiOpponent(**{**opponent.model_dump(), "api": "tin"})
    with pytest.raises(OpponentError, match=r"the opponent 'tin' at .* refused the request: HTTP 404: .*tin"):
        answers(game(wrong), "hi")


def test_a_game_is_played_with_what_it_says(opponent: ApiOpponent) -> None:
    episode = played(replace(game(opponent, f"{__name__}:two_words"), error_allowance=0))
    assert episode.status is Status.ILLEGAL_MOVE, episode.reason
    assert all(step.choice.completion for step in episode.steps)


def two_words(observation: str) -> list[dict[str, str]]:
    """A template whose prompt fits a context of a few hundred bytes."""
    return [{"role": "user", "content": " ".join(observation.split()[-2:])}]
