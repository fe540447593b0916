"""`docs/dataset.md` says what the schemas say; `test_readers` runs its examples."""

from __future__ import annotations

import re
from pathlib import Path

import pyarrow as pa
import pytest

from pipeline.dataset_card import column_table
from tasks.contracts import Status
from tasks.schemas import EPISODE_SCHEMA, SCHEMA_VERSION, STEP_SCHEMA

PAGE = (Path(__file__).parents[2] / "docs" / "dataset.md").read_text(encoding="utf-8")


def section(heading: str) -> str:
    """The page between a heading and the next of the same level."""
    return PAGE.split(f"\n## {heading}\n")[1].split("\n## ")[0]


@pytest.mark.parametrize(("heading", "schema"), [("Episodes", EPISODE_SCHEMA), ("Steps", STEP_SCHEMA)])
def test_the_page_shows_every_column_as_the_schema_has_it(heading: str, schema: pa.Schema) -> None:
    """After a change of the schema, paste the expected lines into the page."""
    shown = [line for line in section(heading).splitlines() if line.startswith("|")]
    assert shown == column_table(schema), "\n".join(column_table(schema))


@pytest.mark.parametrize("schema", [EPISODE_SCHEMA, STEP_SCHEMA])
def test_every_column_has_a_meaning_and_says_when_it_is_null(schema: pa.Schema) -> None:
    for field in schema:
        meaning = field.metadata[b"meaning"].decode()
        assert meaning
        assert "null: " in meaning or not field.nullable, field.name


def test_the_page_explains_every_status() -> None:
    assert re.findall(r"^- `(\w+)`: ", section("Statuses"), re.MULTILINE) == [status.value for status in Status]


def test_the_page_names_the_version_that_is_written() -> None:
    assert f"version is {SCHEMA_VERSION}." in section("Versions")
