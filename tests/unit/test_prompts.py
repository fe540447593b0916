"""Templates and extractions: what the model sees, and what is taken from its answer."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.errors import ConfigError
from tasks.prompts import Parsed, action_extraction, prompt_template, strip_thinking

boxed, bracket, answer_tag, raw = (action_extraction(name) for name in ("boxed", "bracket", "answer", "raw"))

# Pieces that matter to the parsers, mixed with anything: plain random text hardly ever holds a tag or a box.
answers = st.lists(
    st.sampled_from(
        [
            "<think>",
            "</think>",
            "<THINK>",
            "<answer>",
            "</answer>",
            "\\boxed{",
            "\\boxed ",
            "{",
            "}",
            "[",
            "]",
            "<thi",
            "nk>",
            "bet",
            " ",
        ]
    )
    | st.text(max_size=5),
    max_size=20,
).map("".join)

MODELS = ("qwen3", "gemma3", "llama-instruct")


def shout(observation: str) -> list[dict[str, str]]:
    """A user's own template."""
    return [{"role": "user", "content": observation.upper()}]


def last_word(answer: str) -> Parsed:
    """A user's own extraction."""
    return Parsed(answer.split()[-1], True)


NOT_A_FUNCTION = 7


@pytest.mark.parametrize(
    ("answer", "action"),
    [
        ("I bet. \\boxed{[bet]}", "[bet]"),
        ("\\boxed{bet}", "[bet]"),
        ("\\boxed{ bet } ", "[bet]"),
        ("\\boxed {bet}", "[bet]"),
        ("\\boxed{[check]} no, \\boxed{[bet]}", "[bet]"),
        ("\\boxed{[bet]} then \\boxed{[ca", "[bet]"),
        ("I answer in \\boxed{}: \\boxed{[bet]}. In \\boxed{ } as you asked.", "[bet]"),
        ("\\boxed{\\frac{1}{2}}", "[\\frac{1}{2}]"),
        ("\\boxed{a {b {c}} d}", "[a {b {c}} d]"),
        ("\\boxed{\\boxed{bet}}", "[bet]"),
        ("a stray { and \\boxed{bet}", "[bet]"),
        ("a stray } and \\boxed{bet}}", "[bet]"),
        ("\\boxed{I offer [3 wood]}", "I offer [3 wood]"),
        ("<think>\\boxed{fold}</think>\\boxed{bet}", "[bet]"),
        ("\\boxed{bet}<think>or \\boxed{fold}?", "[bet]"),
    ],
)
def test_boxed_takes_the_last_complete_box(answer: str, action: str) -> None:
    assert boxed(answer) == Parsed(action, format_ok=True)


@pytest.mark.parametrize(
    ("answer", "action", "feedback"),
    [
        ("[bet]", "[bet]", "no move found; expected \\boxed{move}."),
        ("\\boxed{}", "\\boxed{}", "\\boxed{} is empty; expected the move inside it."),
        ("so \\boxed{bet", "so \\boxed{bet", "\\boxed{ is not closed; expected \\boxed{move}."),
        ("<think>hm</think>[bet]", "[bet]", "no move found; expected \\boxed{move}."),
        ("<think>\\boxed{bet}", "", "nothing but thinking, if that; expected \\boxed{move}."),
    ],
)
def test_without_a_box_the_answer_itself_is_played_and_the_feedback_says_what_is_wrong(
    answer: str, action: str, feedback: str
) -> None:
    assert boxed(answer) == Parsed(action, False, feedback)


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("[check] or [bet] now", Parsed("[bet]", True)),
        ("[bet] []", Parsed("[bet]", True)),
        ("[[1, 2]]", Parsed("[1, 2]", True)),
        ("<think>[fold]</think>[bet]<think>[call]", Parsed("[bet]", True)),
        ("bet", Parsed("bet", False, "no move found; expected [move].")),
    ],
)
def test_bracket_takes_the_last_pair_outside_thinking(answer: str, expected: Parsed) -> None:
    assert bracket(answer) == expected


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("<answer>[bet]</answer>", Parsed("[bet]", True)),
        ("so <Answer> bet </ANSWER>.", Parsed("[bet]", True)),
        ("<answer>[fold]</answer> no, <answer>[bet]</answer>", Parsed("[bet]", True)),
        ("<answer>a <answer>[bet]</answer></answer>", Parsed("[bet]", True)),
        ("<answer>[bet]</answer><answer> </answer>", Parsed("[bet]", True)),
        ("<answer>[bet]</answer><answer>[fo", Parsed("[bet]", True)),
        ("<think><answer>[fold]</answer></think><answer>I say [bet]</answer>", Parsed("I say [bet]", True)),
        ("</answer>[bet]", Parsed("</answer>[bet]", False, "no move found; expected <answer>move</answer>.")),
        ("<answer>[bet", Parsed("<answer>[bet", False, "<answer> is not closed; expected <answer>move</answer>.")),
        (
            "<answer></answer>",
            Parsed("<answer></answer>", False, "<answer></answer> is empty; expected the move inside it."),
        ),
    ],
)
def test_answer_takes_the_last_complete_pair_of_tags(answer: str, expected: Parsed) -> None:
    assert answer_tag(answer) == expected


def test_raw_plays_the_whole_answer_without_its_thinking() -> None:
    assert raw("<think>x</think> I check.") == Parsed("I check.", True)
    assert raw("<think>x") == Parsed("", False, "nothing but thinking, if that; expected the move.")


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("plain", "plain"),
        ("<think>a</think>b", "b"),
        ("a<think>b</think>c", "a\nc"),
        ("a<think>b", "a"),
        ("a</think>b", "b"),
        ("a</think>b</think>c", "c"),
        ("<think>a<think>b</think>c</think>d", "d"),
        ("<Think>a</THINK>b", "b"),
        ("<thi<think>x</think>nk>b", "<thi\nnk>b"),
    ],
)
def test_thinking_is_removed(text: str, kept: str) -> None:
    assert strip_thinking(text) == kept


@given(answers)
def test_no_think_tag_reaches_the_environment(answer: str) -> None:
    for extract in (boxed, bracket, answer_tag, raw):
        parsed = extract(answer)
        assert "<think>" not in parsed.action.lower()
        assert "</think>" not in parsed.action.lower()
        assert parsed.format_ok == (parsed.feedback == "")


@given(answers)
def test_a_well_formed_action_has_a_pair_of_brackets(answer: str) -> None:
    for extract in (boxed, bracket, answer_tag):
        parsed = extract(answer)
        if parsed.format_ok:
            assert parsed.action.index("[") < parsed.action.rindex("]")


balanced = st.recursive(
    st.text(st.characters(exclude_characters="{}[]<>\\"), min_size=1, max_size=8),
    lambda inner: st.lists(inner | inner.map(lambda text: f"{{{text}}}"), max_size=4).map("".join),
    max_leaves=8,
).filter(str.strip)


@given(before=answers, content=balanced)
def test_a_box_is_found_behind_anything_and_with_nested_braces(before: str, content: str) -> None:
    # A closing tag ends whatever thinking `before` left open; nothing after the box competes with it.
    assert boxed(f"{before}</think>\\boxed{{{content}}}").action == f"[{content.strip()}]"


TEMPLATES = ("default", "bracket", "answer", "raw", *(f"{model}-{kind}" for model in MODELS for kind in ("zs", "sp")))


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_template_ends_in_a_user_message_that_shows_the_observation(name: str) -> None:
    *before, last = prompt_template(name)("You hold a K.")
    assert [message["role"] for message in before] == (["system"] if name.startswith("llama") else [])
    assert last["role"] == "user"
    assert "You hold a K." in last["content"]


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_template_asks_for_the_form_that_an_extraction_reads(name: str) -> None:
    asked_for = {"raw": "", "bracket": "square brackets", "answer": "<answer>"}.get(name, "\\boxed{}")
    assert asked_for in prompt_template(name)("")[-1]["content"]


@pytest.mark.parametrize("model", MODELS)
def test_zero_sum_and_single_player_templates_say_what_kind_of_game_it_is(model: str) -> None:
    zero_sum, single = ("".join(m["content"] for m in prompt_template(f"{model}-{kind}")("")) for kind in ("zs", "sp"))
    assert "your opponents lose" in zero_sum
    assert "for one player" in single
    assert "opponent" not in single


def test_raw_shows_the_observation_alone() -> None:
    assert prompt_template("raw")("as it is") == [{"role": "user", "content": "as it is"}]


@given(st.text(st.characters(codec=None)))
def test_every_prompt_can_be_encoded_and_whole_characters_stay(observation: str) -> None:
    (message,) = prompt_template("raw")(observation)
    assert message["content"].encode().decode() == "".join(
        "\ufffd" if "\ud800" <= character <= "\udfff" else character for character in observation
    )


def test_the_users_own_functions_are_found_by_path() -> None:
    assert prompt_template(f"{__name__}:shout")("hi") == [{"role": "user", "content": "HI"}]
    assert action_extraction(f"{__name__}:last_word")("<think>no</think>I say bet") == Parsed("bet", True)


def test_unknown_names_are_refused_with_the_nearest_valid_one() -> None:
    with pytest.raises(
        ConfigError, match=r"unknown action_extraction 'boxd'; valid are answer, boxed, .*Did you mean 'boxed'\?"
    ):
        action_extraction("boxd")
    with pytest.raises(ConfigError, match=r"unknown prompt_template 'defalt'.*Did you mean 'default'\?"):
        prompt_template("defalt")


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("no_such_module:f", r"'no_such_module:f' cannot be imported \(No module named 'no_such_module'\)"),
        (
            f"{__name__}:missing",
            r"cannot be imported \(module .* has no attribute 'missing'\); expected package.module",
        ),
        (f"{__name__}:NOT_A_FUNCTION", r"is a int; expected a function"),
        (":f", r"':f' cannot be imported \(Empty module name\)"),
    ],
)
def test_a_path_that_leads_nowhere_is_refused(path: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        prompt_template(path)
