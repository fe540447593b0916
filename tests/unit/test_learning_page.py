"""The page on learning says what its numbers say, and the numbers are those of a policy that learned."""

from __future__ import annotations

import json
from typing import Any

from tests.learning_page import NUMBERS, VARIANTS, page
from tests.processes import REPOSITORY

DOCS = REPOSITORY / "docs"


def numbers() -> dict[str, Any]:
    content: dict[str, Any] = json.loads((DOCS / "learning.json").read_text())
    return content


def test_the_page_is_made_of_the_numbers() -> None:
    assert (DOCS / "learning.md").read_text() == page(numbers()["variants"])
    assert (DOCS / "learning.svg").read_text().startswith("<?xml")


def test_every_run_did_what_is_said_of_it() -> None:
    found = numbers()
    assert all(name in found for name in NUMBERS)
    assert found["updates"] <= 60 and found["minutes"] <= 5
    assert found["start_reward"] < 0.5 and found["final_reward"] >= 0.9
    assert found["mean_abs_logprob_diff"] < 1e-4
    runs = found["variants"]
    assert set(runs) == {variant.name for variant in VARIANTS} == set(found["curves"])
    assert runs["lag_0"]["final_reward"] >= 0.9 and runs["lag_4"]["final_reward"] >= 0.9
    assert runs["flipped"]["final_reward"] > runs["flipped"]["start_reward"] + 0.1
    assert runs["unpublished"]["final_reward"] < 0.5
