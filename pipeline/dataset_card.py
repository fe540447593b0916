"""The dataset card of a run, `RUN/README.md`: what the folder holds, for people and for the Hugging Face Hub.

Its front matter names the two tables, so the folder loads with `datasets.load_dataset` where it is, and once pushed.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import yaml

from tasks.schemas import EPISODE_SCHEMA, SCHEMA_VERSION, STEP_SCHEMA

_SIZES = ((1_000, "n<1K"), (10_000, "1K<n<10K"), (100_000, "10K<n<100K"), (1_000_000, "100K<n<1M"))
_LARGEST = "1M<n<10M"

_PAGE = """\
---
{front_matter}---

# Games of {run_id}

Language models, or scripted players, on the text games of [TextArena](https://github.com/LeonGuertler/TextArena): every
game of one self-play run, whatever became of it.

| environment | lane | games | turns | illegal moves |
|---|---|---|---|---|
{environments}

{submitted} games were submitted: {statuses}.

## Reading it

```python
from datasets import load_dataset

episodes = load_dataset("path/to/this/folder", "episodes", split="train")
steps = load_dataset("path/to/this/folder", "steps", split="train")
```

Any Parquet reader takes `replay/episodes/` and `replay/steps/` as they are; `game_id` joins them. Rewards are the
environments' own. Free-form values are JSON text. Columns marked "by player" are lists, one element for each player.

## Episodes: one row for each game

{episode_columns}

## Steps: one row for each decision

{step_columns}

Schema version {version}; the project's `docs/dataset.md` explains statuses, escaped text and what is promised. Whoever
publishes the games chooses their license, in this card's front matter.
"""


def write_card(run_dir: Path, summary: Mapping[str, Any]) -> Path:
    """Write `README.md` into a run's folder, atomically; one that is there is replaced.

    Args:
        run_dir: the run's folder.
        summary: what `summary.json` holds.

    Returns:
        The card's path.

    Raises:
        OSError: the folder cannot be written.
    """
    path = run_dir / "README.md"
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.write_text(dataset_card(summary), encoding="utf-8")
    os.replace(temporary, path)
    return path


def dataset_card(summary: Mapping[str, Any]) -> str:
    """The card's text, from what `summary.json` holds."""
    told = [f"{count} {status}" for status, count in summary["statuses"].items() if count]
    counts = ("games", "turns", "illegal_moves")
    rows = [
        (f"`{tally['env_id']}`", tally["mode"], *(tally[name] for name in counts)) for tally in summary["environments"]
    ]
    return _PAGE.format(
        front_matter=yaml.safe_dump(_front_matter(summary), sort_keys=False),
        run_id=summary["run_id"],
        environments="\n".join(f"| {' | '.join(map(str, row))} |" for row in rows),
        submitted=summary["submitted"],
        statuses=", ".join(told) or "none ended",
        episode_columns="\n".join(column_table(EPISODE_SCHEMA)),
        step_columns="\n".join(column_table(STEP_SCHEMA)),
        version=SCHEMA_VERSION,
    )


def _front_matter(summary: Mapping[str, Any]) -> dict[str, Any]:
    """What the Hub and `datasets` read; its keys are those of the Hub's dataset cards."""
    turns = sum(tally["turns"] for tally in summary["environments"])
    return {
        "license": "unknown",
        "pretty_name": f"Self-play games of {summary['run_id']}",
        "tags": ["self-play", "text-games", "textarena", "reinforcement-learning"],
        "size_categories": [next((name for limit, name in _SIZES if turns < limit), _LARGEST)],
        "configs": [
            {"config_name": "episodes", "data_files": "replay/episodes/*.parquet", "default": True},
            {"config_name": "steps", "data_files": "replay/steps/*.parquet"},
        ],
    }


def column_table(schema: pa.Schema) -> list[str]:
    """The lines of a Markdown table of a schema's columns: type, unit and meaning."""
    lines = ["| column | type | unit | meaning |", "|---|---|---|---|"]
    for field in schema:
        kind = f"`{field.type}`".replace("item: ", "") + (" or null" if field.nullable else "")
        unit, meaning = ((field.metadata or {})[key].decode() for key in (b"unit", b"meaning"))
        lines.append(f"| `{field.name}` | {kind} | {unit or '–'} | {meaning} |")
    return lines
