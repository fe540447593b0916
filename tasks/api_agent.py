"""The agent behind any OpenAI-compatible endpoint: bounded in attempts, in time and in what it asks at once.

What the network does wrong is retried, then raised as `OpponentError`, which fails the game and blames no player; what
the model answers, an empty text too, is its answer. The key is read from the environment where the game is played and
taken out of every text that comes back.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit
from weakref import WeakKeyDictionary

from tasks.contracts import AgentSpec, ApiRef, Choice, SamplingSpec
from tasks.errors import OpponentError, PromptTooLongError
from tasks.prompts import action_extraction, prompt_template

if TYPE_CHECKING:
    import openai

MAX_PAUSE_S = 60.0
MAX_ERROR_LENGTH = 300
RETRIED_STATUSES = frozenset({408, 409, 425, 429})
OPENAI_HOST = "api.openai.com"

_NO_ROOM = re.compile("context_length_exceeded|context length", re.IGNORECASE)


@dataclass(frozen=True)
class ApiReply:
    """What came back: the first choice's text as it was (None where there was none), and what it cost in tokens."""

    text: str | None
    finish_reason: str | None
    generated_tokens: int
    cached_tokens: int


class ApiAgent:
    """Plays with a model behind an endpoint; one request and one completion for each decision."""

    def __init__(self, agent: AgentSpec, api: ApiRef, sampling: SamplingSpec) -> None:
        self._api = api
        self._sampling = sampling
        self._prompt = prompt_template(agent.prompt_template)
        self._extract = action_extraction(agent.action_extraction)

    async def act(self, observation: str, step_index: int) -> Choice:
        """The model's answer; no ids and no log-probabilities, and tokens only as the endpoint counts them.

        Raises:
            OpponentError: no usable answer in all attempts, a refusal, or the key is missing here.
            PromptTooLongError: the endpoint says that the prompt does not fit its model.
        """
        endpoint = await _endpoint(self._api)
        reply = await endpoint.ask(self._prompt(observation), self._sampling)
        parsed = self._extract(reply.text or "")
        return Choice(
            action=parsed.action,
            completion=reply.text,
            format_ok=parsed.format_ok,
            feedback=parsed.feedback,
            finish_reason=reply.finish_reason,
            token_limit=self._sampling.max_tokens,
            generated_tokens=reply.generated_tokens,
            cached_tokens=reply.cached_tokens,
        )


class _RetryableError(Exception):
    """An attempt that came to nothing, and how long the endpoint asks to wait."""

    def __init__(self, reason: str, retry_after_s: float = 0.0) -> None:
        super().__init__(reason)
        self.retry_after_s = retry_after_s


class Endpoint:
    """One endpoint as one event loop uses it: a client, its connections, and a place for each decision under way."""

    def __init__(self, api: ApiRef, key: str | None) -> None:
        self._openai: Any = importlib.import_module("openai")
        self._api = api
        self._key = key
        self._slots = asyncio.Semaphore(api.max_concurrency)
        self._rng = random.Random()
        self._client: openai.AsyncOpenAI = self._openai.AsyncOpenAI(
            # Without one the client would take the key of another service from OPENAI_API_KEY.
            api_key=key or "none",
            base_url=api.base_url,
            timeout=api.timeout_s,
            max_retries=0,
        )

    async def ask(self, messages: Sequence[Mapping[str, str]], sampling: SamplingSpec) -> ApiReply:
        """One answer. The place is kept through the pauses, so that an endpoint that is busy is asked less.

        Raises:
            OpponentError, PromptTooLongError: as `ApiAgent.act`.
        """
        request = self._request(messages, sampling)
        async with self._slots:
            for attempt in range(self._api.retries + 1):
                try:
                    return await self._attempt(request)
                except _RetryableError as error:
                    reason, wanted_s = str(error), error.retry_after_s
                if attempt < self._api.retries:
                    await asyncio.sleep(self._pause_s(attempt, wanted_s))
        raise OpponentError(
            f"{self._who} gave no usable answer in {self._api.retries + 1} attempts; the last time: {reason}. Look at "
            "the endpoint and its limits; the opponent's max_concurrency, timeout_s, retries and backoff_s are settings"
        )

    async def close(self) -> None:
        """Close the connections."""
        await self._client.close()

    @property
    def _who(self) -> str:
        return f"the opponent {self._api.model!r} at {self._api.base_url}"

    def _request(self, messages: Sequence[Mapping[str, str]], sampling: SamplingSpec) -> dict[str, Any]:
        # OpenAI's own reasoning models refuse the name that every other endpoint knows.
        limit = "max_completion_tokens" if urlsplit(self._api.base_url).hostname == OPENAI_HOST else "max_tokens"
        request: dict[str, Any] = {
            "model": self._api.model,
            "messages": list(messages),
            "temperature": sampling.temperature,
            limit: sampling.max_tokens,
        }
        if sampling.top_p != 1:
            request["top_p"] = sampling.top_p
        if sampling.stop:
            request["stop"] = list(sampling.stop)
        return request

    def _pause_s(self, attempt: int, wanted_s: float) -> float:
        """Exponential back-off with jitter of up to a half; at least what the endpoint asks for, at most the cap."""
        backoff_s = self._api.backoff_s * 2.0**attempt * self._rng.uniform(0.5, 1.0)
        return min(max(backoff_s, wanted_s), MAX_PAUSE_S)

    async def _attempt(self, request: Mapping[str, Any]) -> ApiReply:
        failure: Exception
        try:
            # The client's own time-out begins anew with each byte, so a slow drip would pass it for ever.
            async with asyncio.timeout(self._api.timeout_s):
                response = await self._client.chat.completions.with_raw_response.create(**request)
        except (TimeoutError, self._openai.APITimeoutError):
            failure = _RetryableError(f"no whole answer within timeout_s={self._api.timeout_s:g}")
        except self._openai.APIStatusError as error:
            failure = self._refusal(error)
        except self._openai.APIConnectionError as error:
            failure = _RetryableError(self._readable(f"no connection ({error.__cause__ or error})"))
        else:
            return self._parse(response.text)
        # Out here it has no context: the client's own errors carry the request, and the key in its headers.
        raise failure

    def _refusal(self, error: openai.APIStatusError) -> Exception:
        """What an HTTP error means: try again, the prompt is too long, or there is no point."""
        body = error.response.text
        said = self._readable(f"HTTP {error.status_code}: {body}")
        if error.status_code in RETRIED_STATUSES or error.status_code >= 500:
            return _RetryableError(said, _seconds(error.response.headers.get("retry-after")))
        if error.status_code == 400 and _NO_ROOM.search(body):
            return PromptTooLongError(f"{self._who} takes no prompt of this length: {said}")
        return OpponentError(
            f"{self._who} refused the request: {said}. Check the opponent's model, base_url and max_tokens, and the "
            f"key in {self._api.key_variable or 'key_variable, which is not set'}"
        )

    def _parse(self, body: str) -> ApiReply:
        """The answer in a body of the chat completions API; `usage` is optional."""
        try:
            answer = json.loads(body)
        except (ValueError, RecursionError) as error:
            raise _RetryableError(self._readable(f"not whole JSON ({error}): {body}")) from None
        match answer:
            case {"choices": [{"message": {"content": str() | None as text}} as choice, *_]}:
                pass
            case _:
                # Some endpoints report errors with the status 200.
                raise _RetryableError(self._readable(f"an answer without choices: {body}"))
        reason = choice.get("finish_reason")
        usage = answer.get("usage")
        return ApiReply(
            text=None if text is None else self._without_key(text),
            finish_reason=self._without_key(reason) if isinstance(reason, str) else None,
            generated_tokens=_count(usage, "completion_tokens"),
            cached_tokens=_count(usage, "prompt_tokens_details", "cached_tokens"),
        )

    def _readable(self, text: str) -> str:
        """Foreign text for an error: without the key, and cut where it is long."""
        safe = self._without_key(text)
        return safe if len(safe) <= MAX_ERROR_LENGTH else f"{safe[:MAX_ERROR_LENGTH]}..."

    def _without_key(self, text: str) -> str:
        return text.replace(self._key, "***") if self._key else text


_endpoints: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[ApiRef, Endpoint]] = WeakKeyDictionary()


async def _endpoint(api: ApiRef) -> Endpoint:
    """The endpoint as this event loop uses it, made when it is first asked."""
    endpoints = _endpoints.setdefault(asyncio.get_running_loop(), {})
    if api not in endpoints:
        key = None if api.key_variable is None else os.environ.get(api.key_variable, "").strip()
        if key == "":
            raise OpponentError(
                f"the opponent {api.model!r} needs a key, but the environment variable {api.key_variable} is not set "
                "where the game is played; set it before the workers start"
            )
        await asyncio.to_thread(importlib.import_module, "openai")  # takes a second, in which other games play on
        if api not in endpoints:
            endpoints[api] = Endpoint(api, key)
    return endpoints[api]


async def close_endpoints() -> None:
    """Close what the games of this event loop have opened."""
    for endpoint in _endpoints.pop(asyncio.get_running_loop(), {}).values():
        await endpoint.close()


def _seconds(retry_after: str | None) -> float:
    """The header in seconds; its other form, a date, is answered by the back-off alone."""
    try:
        return max(0.0, float(retry_after or 0))
    except ValueError:
        return 0.0


def _count(usage: object, *path: str) -> int:
    """A number of tokens from `usage`; 0 where the endpoint does not say, or nothing that can be."""
    for name in path:
        usage = usage.get(name) if isinstance(usage, dict) else None
    return usage if isinstance(usage, int) and 0 < usage < 2**31 else 0
