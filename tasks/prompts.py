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
_ANSWER_TAG = re.compile(r"<(/)?answer>", re.IGNORECASE)
_BRACKETED = re.compile(r"\[[^\[\]]*\]")

_LONE_SURROGATE = re.compile("[\ud800-\udfff]")

_BOXED_HINT = (
    "It is your turn. Think it through if you need to, then end your reply with your move inside \\boxed{}, "
    "written the way the game asks for it, square brackets included. Only the last \\boxed{} is played."
)
_BRACKET_HINT = (
    "It is your turn. Think it through if you need to, then end your reply with your move in square brackets, "
    "written the way the game asks for it. Only the last pair of brackets is played."
)
_ANSWER_HINT = (
    "It is your turn. Think it through if you need to, then end your reply with your move between <answer> and "
    "</answer>, written the way the game asks for it, square brackets included. Only the last <answer> is played."
)
_ZERO_SUM = (
    "This is a competitive game: whatever you gain, your opponents lose. Play to win, and make only moves that the "
    "rules allow, since an illegal one can cost you the game."
)
_SINGLE_PLAYER = (
    "This is a game for one player. Work towards its goal, and make only moves that the rules allow, since an illegal "
    "one can end the game."
)
_REASON_FIRST = "Reason step by step, and put your final move, as the game writes it, within \\boxed{}."


@dataclass(frozen=True)
class Parsed:
    """The action found in one answer. `feedback` says what was wrong with the form when `format_ok` is false."""

    action: str
    format_ok: bool
    feedback: str = ""


Extraction = Callable[[str], Parsed]


def prompt_template(name: str) -> Template:
    """The template of that name: observation in, chat messages (`role`, `content`) out.

    Half of a surrogate pair, which neither a tokenizer nor JSON in UTF-8 takes, is shown to the model as U+FFFD.

    Raises:
        ConfigError: no such template; names the nearest.
    """
    template = look_up("prompt_template", name, _TEMPLATES)
    return lambda observation: [
        {key: _LONE_SURROGATE.sub("\ufffd", text) for key, text in message.items()} for message in template(observation)
    ]


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


def _answer_template(observation: str) -> Messages:
    return [{"role": "user", "content": f"{observation}\n\n{_ANSWER_HINT}"}]


def _raw_template(observation: str) -> Messages:
    return [{"role": "user", "content": observation}]


def _in_chat(goal: str, *, system: bool) -> Template:
    """The field's usual prompt: the goal, what is seen, and to reason first; for models with or without a system role.

    The tokens around the messages are the chat template's, which the model brings itself.
    """

    def template(observation: str) -> Messages:
        """One message, or the goal apart as the system's."""
        task = f"Observation:\n{observation}\n\n{_REASON_FIRST}"
        if not system:
            return [{"role": "user", "content": f"{goal}\n\n{task}"}]
        return [{"role": "system", "content": goal}, {"role": "user", "content": task}]

    return template


def _boxed(answer: str) -> Parsed:
    r"""The last complete `\boxed{...}` that holds something, in square brackets if it has no pair of its own.

    TextArena's games read their moves from square brackets, and models often leave them out of the box.
    """
    boxes = _boxes(answer)
    for start, end in reversed(boxes):
        if content := answer[start:end].strip():
            return Parsed(_in_brackets(content), format_ok=True)
    if boxes:
        return Parsed(answer, False, "\\boxed{} is empty; expected the move inside it.")
    if "\\boxed" in answer:
        return Parsed(answer, False, "\\boxed{ is not closed; expected \\boxed{move}.")
    return Parsed(answer, False, _missing(answer, "\\boxed{move}"))


def _boxes(answer: str) -> list[tuple[int, int]]:
    r"""Where the contents of all complete `\boxed{...}` are, in the order they open; braces inside may nest."""
    found: list[tuple[int, int]] = []
    open_braces: list[int | None] = []  # where a box's content starts, None for a brace that opens no box
    for match in _BRACE.finditer(answer):
        if match[0] != "}":
            open_braces.append(match.end() if match[1] else None)
        elif open_braces and (start := open_braces.pop()) is not None:
            found.append((start, match.start()))
    return sorted(found)


def _answer(answer: str) -> Parsed:
    """The last complete `<answer>...</answer>` that holds something, in brackets as a box is.

    What opens last counts: `<answer>` inside another begins anew.
    """
    contents: list[str] = []
    start: int | None = None
    for tag in _ANSWER_TAG.finditer(answer):
        if tag[1]:
            if start is not None:
                contents.append(answer[start : tag.start()].strip())
            start = None
        else:
            start = tag.end()
    for content in reversed(contents):
        if content:
            return Parsed(_in_brackets(content), format_ok=True)
    if contents:
        return Parsed(answer, False, "<answer></answer> is empty; expected the move inside it.")
    if start is not None:
        return Parsed(answer, False, "<answer> is not closed; expected <answer>move</answer>.")
    return Parsed(answer, False, _missing(answer, "<answer>move</answer>"))


def _in_brackets(move: str) -> str:
    return move if _BRACKETED.search(move) else f"[{move}]"


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
    return f"no move found; expected {expected}." if answer else f"nothing but thinking, if that; expected {expected}."


_TEMPLATES: dict[str, Template] = {
    "default": _default_template,
    "bracket": _bracket_template,
    "answer": _answer_template,
    "raw": _raw_template,
    # Only Llama's chat template gives a system message a place of its own; Gemma's has none at all.
    "qwen3-zs": _in_chat(_ZERO_SUM, system=False),
    "qwen3-sp": _in_chat(_SINGLE_PLAYER, system=False),
    "gemma3-zs": _in_chat(_ZERO_SUM, system=False),
    "gemma3-sp": _in_chat(_SINGLE_PLAYER, system=False),
    "llama-instruct-zs": _in_chat(_ZERO_SUM, system=True),
    "llama-instruct-sp": _in_chat(_SINGLE_PLAYER, system=True),
}
_EXTRACTIONS: dict[str, Extraction] = {"boxed": _boxed, "bracket": _bracket, "answer": _answer, "raw": _raw}
