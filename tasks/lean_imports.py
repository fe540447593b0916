"""Imports without what a package would take along only because it happens to be installed."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without(*packages: str) -> Iterator[None]:
    """Inside the block, importing these packages fails as if they were not installed; one imported before stays."""
    hidden = [package for package in packages if package not in sys.modules]
    for package in hidden:
        sys.modules[package] = None  # type: ignore[assignment]  # the import system's mark for what is not there
    try:
        yield
    finally:
        for package in hidden:
            del sys.modules[package]
