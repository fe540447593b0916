"""Notebooks as they are in git: nothing they once showed, and nothing that belongs into the library."""

from __future__ import annotations

import ast
from pathlib import Path

import nbformat
import pytest

NOTEBOOKS = sorted((Path(__file__).resolve().parents[2] / "notebooks").glob("*.ipynb"))
PLOTTING = {"os", "matplotlib", "pipeline", "tasks"}
LOGIC = (ast.FunctionDef, ast.Lambda, ast.ClassDef, ast.For, ast.While, ast.If, ast.IfExp, ast.Try, ast.comprehension)


def read(path: Path) -> nbformat.NotebookNode:
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    return notebook


def test_there_is_one() -> None:
    assert NOTEBOOKS[0].name == "01_look_at_a_run.ipynb"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_outputs_are_stripped(path: Path) -> None:
    notebook = read(path)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.id for cell in code if cell.outputs or cell.execution_count is not None] == []
    assert [cell.id for cell in notebook.cells if cell.metadata] == []
    assert set(notebook.metadata) == {"kernelspec", "language_info"}
    assert dict(notebook.metadata.language_info) == {"name": "python"}, "a version here changes with every machine"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_plots_and_leaves_the_rest_to_the_library(path: Path) -> None:
    source = "\n".join(cell.source for cell in read(path).cells if cell.cell_type == "code")
    nodes = list(ast.walk(ast.parse(source)))
    assert [ast.unparse(node) for node in nodes if isinstance(node, LOGIC)] == []
    imported = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    imported |= {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)}
    assert {name.partition(".")[0] for name in imported} <= PLOTTING
