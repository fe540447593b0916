"""What a model is shown and what is taken from its answer: pure functions, found by name.

A prompt template makes chat messages from an observation; an action extraction makes an action from an answer. Both can
be the user's own, named `package.module:function`. Extractions are given the answer without its thinking, so that
think-tags never reach the environment.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from tasks.names import look_up

Messages = list[dict[str, str]]
Template = Callable[[str], Messages]

_THINK_TAG = re.compile(r"(</?think>)", re.IGNORECASE)
_BRACE = re.compile(r"(\\boxed\s*)?\{|\}")
_BRACKETED = re.compile(r"\[[^\[\]]*\]")

_BOXED_HINT = (
    "It is your turn. Think it through if you need to, then end your reply with your move inside \\boxed{}, "
    "written the way the game asks for it, square brackets included. Only the last \\boxed{} is played."
)
_BRACKET_HINT = (
    "It is your turn. Think it through if you need to, then end your reply with your move in square brackets, "
    "written the way the game asks for it. Only the last pair of brackets is played."
)


@dataclass(frozen=True)
class Parsed:
    """The action found in one answer. `feedback` says what was wrong with the form when `format_ok` is false."""

    action: str
    format_ok: bool
    feedback: str = ""


Extraction = Callable[[str], Parsed]


def prompt_template(name: str) -> Template:
    """The template of that name: observation in, chat messages (`role`, `content`) out.

    Raises:
        ConfigError: no such template; names the nearest.
    """
    return look_up("prompt_template", name, _TEMPLATES)


def action_extraction(name: str) -> Extraction:
    """The extraction of that name: a model's whole completion in, its action out; thinking is removed first.

    Raises:
        ConfigError: no such extraction; names the nearest.
    """
    extract = look_up("action_extraction", name, _EXTRACTIONS)
    return lambda completion: extract(strip_thinking(completion))


def strip_thinking(text: str) -> str:
    """The text outside `<think>…</think>`; never contains either tag.

    An unclosed `<think>` hides all that follows. A closing tag alone hides all that precedes: chat templates may open
    the thinking in the prompt.
    """
    kept: list[str] = []
    thinking = False
    for part in _THINK_TAG.split(text):
        tag = part.lower()
        if tag == "<think>":
            thinking = True
        elif tag == "</think>":
            if not thinking:
                kept.clear()
            thinking = False
        elif not thinking:
            kept.append(part)
    # A line break, so that two halves around a thought cannot join into a new tag.
    return "\n".join(part.strip() for part in kept).strip()


def _default_template(observation: str) -> Messages:
    return [{"role": "user", "content": f"{observation}\n\n{_BOXED_HINT}"}]


def _bracket_template(observation: str) -> Messages:
    return [{"role": "user", "content": f"{observation}\n\n{_BRACKET_HINT}"}]


def _raw_template(observation: str) -> Messages:
    return [{"role": "user", "content": observation}]


def _boxed(answer: str) -> Parsed:
    r"""The last complete `\boxed{...}` that holds something, in square brackets if it has no pair of its own.

    TextArena's games read their moves from square brackets, and models often leave them out of the box.
    """
    boxes = _boxes(answer)
    contents = [box for box in boxes if box]
    if contents:
        content = contents[-1]
        return Parsed(content if _BRACKETED.search(content) else f"[{content}]", format_ok=True)
    if boxes:
        return Parsed(answer, False, "\\boxed{} is empty; expected the move inside it.")
    if "\\boxed" in answer:
        return Parsed(answer, False, "\\boxed{ is not closed; expected \\boxed{move}.")
    return Parsed(answer, False, _missing(answer, "\\boxed{move}"))


def _boxes(answer: str) -> list[str]:
    r"""The contents of all complete `\boxed{...}`, stripped, in the order they open; braces inside may nest."""
    found: list[tuple[int, str]] = []
    open_braces: list[int | None] = []  # where a box's content starts, None for a brace that opens no box
    for match in _BRACE.finditer(answer):
        if match[0] != "}":
            open_braces.append(match.end() if match[1] else None)
        elif open_braces and (start := open_braces.pop()) is not None:
            found.append((start, answer[start : match.start()].strip()))
    return [content for _, content in sorted(found)]


def _bracket(answer: str) -> Parsed:
    """The last `[...]` that holds something."""
    for bracketed in reversed(_BRACKETED.findall(answer)):
        if bracketed[1:-1].strip():
            return Parsed(bracketed, format_ok=True)
    return Parsed(answer, False, _missing(answer, "[move]"))


def _raw(answer: str) -> Parsed:
    """The whole answer."""
    return Parsed(answer, True) if answer else Parsed(answer, False, _missing(answer, "the move"))


def _missing(answer: str, expected: str) -> str:
    return f"no move found; expected {expected}." if answer else f"nothing but thinking; expected {expected} after it."


_TEMPLATES: dict[str, Template] = {"default": _default_template, "bracket": _bracket_template, "raw": _raw_template}
_EXTRACTIONS: dict[str, Extraction] = {"boxed": _boxed, "bracket": _bracket, "raw": _raw}
