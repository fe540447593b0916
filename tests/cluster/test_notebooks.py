"""The notebooks, executed on runs that were really collected."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import nbformat
import pytest
from distributed import Client
from nbclient import NotebookClient

from tasks.shards import read_episodes, read_steps
from tests.cluster.collections import KUHN, SCRIPTED, kuhn, kuhn_eval, scheduler, stub
from tests.unit.played_runs import game_spec, play, store_run

LOOK_AT_A_RUN = Path(__file__).resolve().parents[2] / "notebooks" / "01_look_at_a_run.ipynb"

pytestmark = pytest.mark.cluster


@pytest.fixture
def _own_jupyter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel with neither the settings nor the history of whoever runs the tests."""
    for name in ("IPYTHONDIR", "JUPYTER_CONFIG_DIR", "JUPYTER_RUNTIME_DIR", "JUPYTER_DATA_DIR", "MPLCONFIGDIR"):
        monkeypatch.setenv(name, str(tmp_path / name.lower()))


def executed(path: Path, folder: Path) -> dict[str, list[nbformat.NotebookNode]]:
    """The notebook run from top to bottom in `folder`: what each cell showed, by its id."""
    notebook = nbformat.read(path, as_version=4)
    NotebookClient(
        notebook, timeout=120, kernel_name="python3", resources={"metadata": {"path": str(folder)}}
    ).execute()
    return {cell.id: cell.outputs for cell in notebook.cells if cell.cell_type == "code"}


def shown(outputs: list[nbformat.NotebookNode]) -> str:
    """The text of a cell's outputs."""
    return "".join(output.get("text", "") or output.get("data", {}).get("text/plain", "") for output in outputs)


def table(outputs: list[nbformat.NotebookNode]) -> list[list[str]]:
    """The rows of the one table that a cell showed, without headings."""
    (html,) = (output.data["text/html"] for output in outputs)
    rows = re.findall(r"<tr>(.*?)</tr>", html.partition("<tbody>")[2], flags=re.DOTALL)
    return [re.findall(r"<td>(.*?)</td>", row) for row in rows]


@pytest.mark.parametrize("vllm", [SCRIPTED, stub(latency_s=0.001)], ids=["scripted", "with an engine"])
@pytest.mark.usefixtures("_own_jupyter")
def test_a_look_at_a_run(
    vllm: Mapping[str, Any], client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_dir = tmp_path / "runs" / "mine"
    scheduler(client, run_dir, vllm, episodes=20, train=kuhn(), evaluation=kuhn_eval()).collect(4, 2)
    monkeypatch.setenv("SELFPLAY_RUN", str(run_dir))
    cells = executed(LOOK_AT_A_RUN, tmp_path)
    modes, steps = read_episodes(run_dir)["mode"].to_pylist(), read_steps(run_dir)
    assert shown(cells["run"]) == repr(str(run_dir))
    assert [row[:3] for row in table(cells["played"])] == [
        [mode, KUHN, str(modes.count(mode))] for mode in ("eval", "train")
    ]
    assert table(cells["failures"]) == []
    sides = {tuple(row[:4]) for row in table(cells["results"])}
    assert {("train", KUHN, f"player_{player}", "win") for player in (0, 1)} <= sides
    decided = table(cells["decisions"])
    assert sum(int(row[0]) for row in decided) == steps.num_rows
    with_tokens = [row[-2:] for row in decided if "NaN" not in row[-2:]]
    assert len(with_tokens) == (0 if vllm is SCRIPTED else 2), "training's actors, and evaluation's"
    for plot in ("results-plot", "lengths", "decisions-plot", "tokens"):
        (output,) = cells[plot]
        assert "image/png" in output.data
    assert "saw:\n" in shown(cells["transcript"])
    assert re.search(r"^=== \w+ after \d+ steps", shown(cells["transcript"]), flags=re.MULTILINE)


@pytest.mark.usefixtures("_own_jupyter")
def test_a_run_whose_games_all_failed_before_a_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_dir = store_run(tmp_path / "mine", play(*(game_spec(f"game-{n}", env_kwargs={"no": n}) for n in range(3))))
    monkeypatch.setenv("SELFPLAY_RUN", str(run_dir))
    cells = executed(LOOK_AT_A_RUN, tmp_path)
    assert [row[2] for row in table(cells["failures"])] == ["EnvironmentFault"]
    assert (table(cells["results"]), table(cells["decisions"])) == ([], [])
    for plot in ("results-plot", "lengths", "decisions-plot", "tokens"):
        assert [sorted(output.data) for output in cells[plot]] == [["image/png", "text/plain"]], "no warnings"
    assert shown(cells["transcript"]).startswith("None of the run's 3 games has a step (3 failed): ")


@pytest.mark.usefixtures("_own_jupyter")
def test_without_a_run_named_the_newest_is_looked_at(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SELFPLAY_RUN", raising=False)
    scheduler(client, tmp_path / "runs" / "mine", episodes=5).collect(2)
    (tmp_path / "notebooks").mkdir()
    cells = executed(LOOK_AT_A_RUN, tmp_path / "notebooks")
    assert "runs/mine" in shown(cells["run"])
    assert KUHN in shown(cells["transcript"])
