"""`docs/dataset.md` says what the schemas say, and its examples run."""

from __future__ import annotations

import re
from pathlib import Path

import pyarrow as pa
import pytest

from pipeline.episode_store import EpisodeStore
from tasks.contracts import Status
from tasks.schemas import EPISODE_SCHEMA, SCHEMA_VERSION, STEP_SCHEMA
from tests.unit.example_episodes import cancelled_episode, full_episode

PAGE = (Path(__file__).parents[2] / "docs" / "dataset.md").read_text(encoding="utf-8")


def section(heading: str) -> str:
    """The page between a heading and the next of the same level."""
    return PAGE.split(f"\n## {heading}\n")[1].split("\n## ")[0]


def documented(schema: pa.Schema) -> list[str]:
    """The table the page must show: a line per column with its type, unit and meaning."""
    lines = ["| column | type | unit | meaning |", "|---|---|---|---|"]
    for field in schema:
        kind = f"`{field.type}`".replace("item: ", "") + (" or null" if field.nullable else "")
        unit, meaning = (field.metadata[key].decode() for key in (b"unit", b"meaning"))
        lines.append(f"| `{field.name}` | {kind} | {unit or '–'} | {meaning} |")
    return lines


@pytest.mark.parametrize(("heading", "schema"), [("Episodes", EPISODE_SCHEMA), ("Steps", STEP_SCHEMA)])
def test_the_page_shows_every_column_as_the_schema_has_it(heading: str, schema: pa.Schema) -> None:
    """After a change of the schema, paste the expected lines into the page."""
    shown = [line for line in section(heading).splitlines() if line.startswith("|")]
    assert shown == documented(schema), "\n".join(documented(schema))


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


def test_the_examples_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with EpisodeStore(tmp_path / "RUN") as store:
        store.add(full_episode())
        store.add(cancelled_episode())
    (tmp_path / "RUN/replay/steps/.00001-aa.parquet.tmp").write_bytes(b"half a shard")
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    examples = re.findall(r"```python\n(.*?)```", section("Reading it"), re.DOTALL)
    for example in examples:
        exec(example, names)
    assert len(examples) == 2
    assert names["actions"] == [{"player_id": 0, "action": "[bet]"}, {"player_id": 1, "action": "[fold]"}]
    assert names["turns"] == {"KuhnPoker-v0-train": 2.0, "Sudoku-v0": 0.0}
