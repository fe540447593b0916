"""Settings of opponents: scripted players and adapters by name, models behind an endpoint by name or with settings."""

from __future__ import annotations

import re
from typing import Annotated, Any
from urllib.parse import urlsplit

from pydantic import BeforeValidator, Field, field_validator

from pipeline.config_errors import Settings, shown
from pipeline.config_vllm import SCRIPTED_MODELS
from tasks.contracts import ApiRef, ModelKind, ModelRef, SamplingSpec
from tasks.names import nearest

OPENROUTER_URL = "https://openrouter.ai/api/v1"
OPENROUTER_KEY = "OPENROUTER_API_KEY"

_OPENROUTER_MODEL = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.:-]*")
_VARIABLE = re.compile(r"[A-Z_][A-Z0-9_]*")


class ApiOpponent(Settings):
    """A model behind an OpenAI-compatible endpoint, OpenRouter unless `base_url` names another.

    `api` is the endpoint's name for the model, `name` that of this opponent in the run's results. `key_variable` is the
    environment variable with the key, on the machines where games are played; None where no key is needed.
    `max_concurrency` bounds the answers under way in one worker process. An answer may take `timeout_s`; after a fault
    of the network or the endpoint it is asked for up to `retries` times again, after pauses that double from
    `backoff_s`.
    """

    api: str = Field(min_length=1)
    name: str | None = Field(default=None, min_length=1)
    base_url: str = OPENROUTER_URL
    key_variable: str | None = Field(
        default_factory=lambda data: OPENROUTER_KEY if data.get("base_url") == OPENROUTER_URL else None
    )
    temperature: float = Field(default=1.0, ge=0)
    top_p: float = Field(default=1.0, gt=0, le=1)
    max_tokens: int = Field(default=1024, ge=1)
    max_concurrency: int = Field(default=8, ge=1)
    timeout_s: float = Field(default=60.0, gt=0)
    retries: int = Field(default=5, ge=0)
    backoff_s: float = Field(default=1.0, gt=0)

    @field_validator("base_url")
    @classmethod
    def _no_secret(cls, url: str) -> str:
        parts = urlsplit(url)
        if parts.username is not None or parts.query or parts.fragment:
            raise ValueError("holds a login, a query or a fragment, any of which may be secret: name key_variable")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"got {url!r}, expected an address such as http://127.0.0.1:8000/v1")
        return url

    @field_validator("key_variable")
    @classmethod
    def _is_a_variable(cls, name: str | None) -> str | None:
        # Never shown: what is no variable's name is most likely the key itself.
        if name is not None and not _VARIABLE.fullmatch(name):
            raise ValueError(
                f"expected the name of an environment variable in capitals, such as {OPENROUTER_KEY}, never the key"
            )
        return name

    def model_ref(self) -> ModelRef:
        """The model as games know it. Without a `name` its uid is the model's, with the host where not OpenRouter."""
        place = "" if self.base_url == OPENROUTER_URL else f"@{urlsplit(self.base_url).netloc}"
        api = ApiRef(
            model=self.api,
            base_url=self.base_url,
            key_variable=self.key_variable,
            sampling=SamplingSpec(temperature=self.temperature, top_p=self.top_p, max_tokens=self.max_tokens),
            max_concurrency=self.max_concurrency,
            timeout_s=self.timeout_s,
            retries=self.retries,
            backoff_s=self.backoff_s,
        )
        return ModelRef(self.name or f"{self.api}{place}", ModelKind.API, api=api)


def openrouter_opponent(name: str) -> ApiOpponent | None:
    """The opponent that `vendor/model` names; None where `name` has another form."""
    return ApiOpponent(api=name) if _OPENROUTER_MODEL.fullmatch(name) else None


def _opponent(entry: Any) -> str | ApiOpponent:
    """An opponent's form; whether an adapter's folder is there, and a key, is seen when the run starts."""
    if isinstance(entry, ApiOpponent):
        return entry
    if isinstance(entry, dict):
        return ApiOpponent(**{str(key): value for key, value in entry.items()})
    if not isinstance(entry, str):
        raise ValueError(f"got {shown(entry)}, expected a name, or a mapping such as {{api: model, base_url: ...}}")
    is_adapter = entry.startswith("adapter:") and entry != "adapter:"
    if entry in SCRIPTED_MODELS or is_adapter or openrouter_opponent(entry) is not None:
        return entry
    raise ValueError(
        f"got {entry!r}, expected {', '.join(SCRIPTED_MODELS)}, adapter:/path/to/folder, vendor/model of OpenRouter or "
        f"a mapping such as {{api: model, base_url: ...}}.{nearest(entry, SCRIPTED_MODELS)}"
    )


Opponent = Annotated[str | ApiOpponent, BeforeValidator(_opponent)]
"""An opponent in a configuration."""
