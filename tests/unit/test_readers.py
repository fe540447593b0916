"""What other people read the dataset with: each example of `docs/dataset.md`, on shards that would trip it up.

Ids look like numbers, one shard has nothing in the columns that the other fills, a writer's temporary file lies about,
and one shard has damaged pages under sound statistics: a reader that does not push its filter down fails on them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import datasets
import pandas as pd
import pyarrow.parquet as pq
import pytest

from pipeline.dataset_card import write_card
from pipeline.ledger import Ledger
from tasks.contracts import Episode
from tests.unit.example_episodes import ANSWERED, full_episode
from tests.unit.played_runs import shards, store_run
from tests.unit.test_dataset_doc import section

COLUMNS = ("game_id", "step_index", "prompt_ids", "logprobs", "stop", "policy_version", "reward", "final_reward")
EXPECTED = [
    dict(zip(COLUMNS, values, strict=True))
    for values in (
        ("007", 0, [1, 2, 3], [-0.5, -0.25], ["\n\n"], 3, 0.5, 1.0),
        ("007", 1, [], [], None, None, None, -1.0),
    )
]
EXAMPLES = re.findall(r"```python\n(.*?)```", section("Reading it"), re.DOTALL)

Records = list[dict[str, Any]]


def sparse_episode(game_id: str) -> Episode:
    """A game whose optional columns are null everywhere, with the odd dictionaries beside them."""
    silent = replace(ANSWERED, info='{"reason": null}')
    return full_episode(game_id, steps=(silent,), rewards=None, offender=None, player_info=("{}", "{}"))


@pytest.fixture
def run_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """`RUN`, in the current folder: shards of two games each, game `007` in the second."""
    odd = full_episode("008", player_info=('{"0": [1], "reason": "x"}', "{}"))
    episodes = [sparse_episode("001"), sparse_episode("002"), full_episode("007"), odd]
    store_run(tmp_path / "RUN", episodes, episodes_per_shard=2)
    write_card(tmp_path / "RUN", Ledger("run-1").summary())
    (tmp_path / "RUN/replay/steps/.00002-aa.parquet.tmp").write_bytes(b"half a shard")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    datasets.disable_progress_bars()
    yield tmp_path / "RUN"
    datasets.enable_progress_bars()


def damage(path: Path) -> None:
    """Overwrite a shard's pages and leave its footer, which has the statistics, as it is."""
    footer = pq.read_metadata(path).serialized_size + 8
    content = path.read_bytes()
    path.write_bytes(content[:4] + bytes(len(content) - footer - 4) + content[-footer:])


def records(steps: Any) -> Records:
    """What an example read, as plain values."""
    convert: dict[str, Callable[[], Records]] = {
        "pandas": lambda: [{name: plain(steps[name].iloc[i]) for name in COLUMNS} for i in range(len(steps))],
        "polars": lambda: steps.select(COLUMNS).to_dicts(),
        "duckdb": lambda: steps.select(*COLUMNS).to_arrow_table().to_pylist(),
        "dask": lambda: records(steps.compute()),
        "pyarrow": lambda: steps.select(COLUMNS).to_pylist(),
        "datasets": lambda: steps.select_columns(list(COLUMNS)).to_list(),
    }
    return convert[type(steps).__module__.split(".")[0].strip("_")]()


def plain(value: Any) -> Any:
    """A cell of a data frame: an array as a list, what stands for null as None."""
    value = value.tolist() if hasattr(value, "tolist") else value
    return value if isinstance(value, list) or not pd.isna(value) else None


def test_the_page_has_an_example_for_each_reader() -> None:
    names = ("pandas", "polars", "duckdb", "dask.dataframe", "pyarrow.dataset", "datasets", "datasets")
    assert len(EXAMPLES) == len(names)
    for example, name in zip(EXAMPLES, names, strict=True):
        assert re.search(rf"^(import|from) {re.escape(name)}\b", example)


# What Dask itself calls of pandas.
@pytest.mark.filterwarnings("ignore:The inplace keyword in DataFrame.reset_index is deprecated")
@pytest.mark.parametrize("example", EXAMPLES[:-1])
def test_each_example_reads_one_game_and_opens_no_other_shard(run_dir: Path, example: str) -> None:
    damage(shards(run_dir, "steps")[0])
    names: dict[str, Any] = {}
    exec(example, names)
    assert records(names["steps"]) == EXPECTED


def test_the_run_folder_loads_by_its_card(run_dir: Path) -> None:
    names: dict[str, Any] = {}
    exec(EXAMPLES[-1], names)
    assert [row for row in records(names["steps"]) if row["game_id"] == "007"] == EXPECTED
    episodes = names["load_dataset"]("RUN", split="train")
    assert episodes["game_id"] == ["001", "002", "007", "008"]
    assert episodes["seed"] == [2**63 - 1] * 4
    assert episodes["player_info"][2:] == [['{"turns": 1}'] * 2, ['{"0": [1], "reason": "x"}', "{}"]]


# What Dask itself calls of pandas.
@pytest.mark.filterwarnings("ignore:The inplace keyword in DataFrame.reset_index is deprecated")
@pytest.mark.parametrize("example", EXAMPLES[:-1])
def test_columns_that_are_null_in_one_shard_keep_the_type_of_the_next(run_dir: Path, example: str) -> None:
    for one, all_games in (
        ('("game_id", "==", "007")', '("game_id", "!=", "")'),
        ('== "007"', '!= ""'),
        ("= '007'", "<> ''"),
    ):
        example = example.replace(one, all_games)
    names: dict[str, Any] = {}
    exec(example, names)
    found = records(names["steps"])
    assert found[2:4] == EXPECTED
    nothing = {"prompt_ids": [], "logprobs": [], "stop": None, "policy_version": None, "reward": None}
    for row, game_id in zip(found[:2], ("001", "002"), strict=True):
        assert row == {"game_id": game_id, "step_index": 1, **nothing, "final_reward": None}
