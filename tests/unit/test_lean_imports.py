"""Packages hidden from an import are there again after it, and those imported before are never hidden."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest

from tasks.lean_imports import without

LOADED = "import sys, tasks.game; print(*sorted({'nltk', 'scipy', 'sklearn'} & sys.modules.keys()))"


def test_a_hidden_package_is_missing_inside_the_block_alone() -> None:
    sys.modules.pop("wave", None)
    with without("wave"), pytest.raises(ModuleNotFoundError):
        importlib.import_module("wave")
    assert importlib.import_module("wave").__name__ == "wave"


def test_a_package_imported_before_stays() -> None:
    with without("json"):
        assert importlib.import_module("json") is sys.modules["json"]
    assert "json" in sys.modules


def test_games_load_neither_scipy_nor_scikit_learn() -> None:
    loaded = subprocess.run([sys.executable, "-c", LOADED], check=True, capture_output=True, text=True).stdout
    assert loaded.split() == ["nltk"]
