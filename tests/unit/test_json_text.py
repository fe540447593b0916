"""Any value has a JSON form, the same for equal values, and nothing is an error."""

from __future__ import annotations

import json
import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.contracts import Mode
from tasks.json_text import to_json


class Opaque:
    pass


class Broken:
    def __str__(self) -> str:
        raise RuntimeError("no text")


ODD: list[tuple[object, object]] = [
    ({"a": float("nan"), "b": float("inf"), "c": 1.5}, {"a": None, "b": None, "c": 1.5}),
    ({2: "two", None: 0, (1, 2): 1}, {"(1, 2)": 1, "2": "two", "None": 0}),
    ({"b", "a"}, ["a", "b"]),
    ((1, [2, (3,)]), [1, [2, [3]]]),
    (Mode.TRAIN, "train"),
    (np.array([[1, 2]]), [[1, 2]]),
    (
        {"r": np.float32(0.5), "n": np.int64(3), "ok": np.bool_(True), "x": np.float64("nan")},
        {"r": 0.5, "n": 3, "ok": True, "x": None},
    ),
    (Opaque(), f"<{__name__}.Opaque object>"),
    (b"x", "b'x'"),
    ({"a": "\ud800é"}, {"a": "\ud800é"}),
    (Broken(), "<Broken: RuntimeError>"),
    (10**5000, "<int: ValueError>"),
]


@pytest.mark.parametrize(("value", "expected"), ODD, ids=[type(value).__name__ for value, _ in ODD])
def test_to_json_has_a_form_for_every_value(value: object, expected: object) -> None:
    text = to_json(value)
    assert text.isascii()
    assert json.loads(text) == expected


def test_to_json_ends_on_a_value_that_contains_itself() -> None:
    loop: dict[str, Any] = {}
    loop["self"] = loop
    assert json.loads(to_json(loop)) == "<dict: RecursionError>"


def test_to_json_gives_equal_values_equal_text() -> None:
    items = [(f"k{i}", {f"s{j}" for j in range(20)}) for i in range(20)]
    shuffled = random.Random(0).sample(items, len(items))
    assert to_json(dict(items)) == to_json(dict(shuffled))


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=50)
@given(JSON)
def test_to_json_keeps_what_json_can_hold(value: object) -> None:
    assert json.loads(to_json(value)) == value
