"""How chats become token ids, with a stand-in for vLLM and its tokenizer."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tasks.contracts import EngineSpec, SamplingSpec
from tasks.engine import VLLMEngine, _prompt_ids, plain_transcript
from tasks.errors import EngineDiedError, PromptTooLongError

CHAT = [{"role": "system", "content": "Play."}, {"role": "user", "content": "Your move"}]
PLAIN = "System: Play.\n\nUser: Your move\n\nAssistant:"


class Tokenizer:
    """One token per character."""

    def __init__(self, chat_template: str | None) -> None:
        self.chat_template = chat_template

    def encode(self, text: str) -> list[int]:
        return [ord(character) for character in text]

    def apply_chat_template(self, chat: list[dict[str, str]], **how: Any) -> list[int]:
        assert how == {"add_generation_prompt": True, "return_dict": False}
        return self.encode("|".join(message["content"] for message in chat))


def llm(chat_template: str | None, max_model_len: int = 100) -> Any:
    return SimpleNamespace(
        get_tokenizer=lambda: Tokenizer(chat_template), model_config=SimpleNamespace(max_model_len=max_model_len)
    )


def text(ids: list[int]) -> str:
    return "".join(map(chr, ids))


def test_the_models_own_template_is_applied() -> None:
    assert text(_prompt_ids(llm("{{ messages }}"), CHAT)) == "Play.|Your move"


def test_a_base_model_gets_a_plain_transcript() -> None:
    assert text(_prompt_ids(llm(None), CHAT)) == plain_transcript(CHAT) == PLAIN


def test_the_context_must_hold_the_prompt_and_one_token() -> None:
    assert len(_prompt_ids(llm(None, len(PLAIN) + 1), CHAT)) == len(PLAIN)
    message = rf"has {len(PLAIN)} tokens, expected at most {len(PLAIN) - 1}, .*Raise vllm\.max_model_len"
    with pytest.raises(PromptTooLongError, match=message):
        _prompt_ids(llm(None, len(PLAIN)), CHAT)


def test_an_engine_that_was_not_started_answers_nothing() -> None:
    import asyncio

    request = VLLMEngine(EngineSpec("a/model")).generate(CHAT, SamplingSpec(), n=1, seed=0, adapter=None)
    with pytest.raises(EngineDiedError, match="'a/model' is not running"):
        asyncio.run(request)
