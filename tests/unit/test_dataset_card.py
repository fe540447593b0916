"""`RUN/README.md`: what its front matter tells the Hub, and what it tells people."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import DatasetCard

from pipeline.dataset_card import dataset_card, write_card
from pipeline.ledger import Ledger
from tasks.schemas import EPISODE_SCHEMA, STEP_SCHEMA
from tests.unit.played_runs import kuhn_games, shards, store_run


def summary_of(run_dir: Path) -> dict[str, Any]:
    summary: dict[str, Any] = json.loads((run_dir / "summary.json").read_text())
    return summary


def test_the_front_matter_names_the_tables_that_are_there(tmp_path: Path) -> None:
    store_run(tmp_path, kuhn_games(4), episodes_per_shard=2)
    data = DatasetCard.load(write_card(tmp_path, summary_of(tmp_path))).data.to_dict()
    assert data["license"] == "unknown"
    assert "self-play" in data["tags"]
    assert data["size_categories"] == ["n<1K"]
    assert [config["config_name"] for config in data["configs"]] == ["episodes", "steps"]
    assert [config.get("default", False) for config in data["configs"]] == [True, False]
    for config in data["configs"]:
        assert sorted(tmp_path.glob(config["data_files"])) == shards(tmp_path, config["config_name"])


def test_the_card_says_what_was_played_and_explains_every_column(tmp_path: Path) -> None:
    games = kuhn_games(4)
    run_dir = store_run(tmp_path, games)
    text = dataset_card(summary_of(run_dir))
    turns = sum(len(game.steps) for game in games)
    assert f"| `KuhnPoker-v0-train` | train | 4 | {turns} | 0 |" in text
    assert "4 games were submitted: 4 completed." in text
    for field in (*EPISODE_SCHEMA, *STEP_SCHEMA):
        assert f"| `{field.name}` | " in text


def test_a_run_that_ended_before_its_first_game_has_a_card(tmp_path: Path) -> None:
    card = DatasetCard.load(write_card(tmp_path, Ledger("run-1").summary()))
    assert "0 games were submitted: none ended." in card.content
    assert [path.name for path in tmp_path.iterdir()] == ["README.md"]


@pytest.mark.parametrize(
    ("turns", "size"), [(999, "n<1K"), (1_000, "1K<n<10K"), (999_999, "100K<n<1M"), (5_000_000, "1M<n<10M")]
)
def test_the_size_is_that_of_the_steps(turns: int, size: str) -> None:
    tally = {"env_id": "a", "mode": "train", "games": 1, "turns": turns, "illegal_moves": 0}
    assert f"size_categories:\n- {size}\n" in dataset_card({**Ledger("run-1").summary(), "environments": [tally]})
