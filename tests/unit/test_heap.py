"""What is loaded is set aside once, and given back."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from tasks.heap import YOUNG, LoadedHeap


@pytest.fixture(autouse=True)
def _nothing_set_aside() -> Iterator[None]:
    gc.unfreeze()
    yield
    gc.unfreeze()


def test_what_is_there_is_set_aside_once_and_taken_back() -> None:
    before = gc.get_threshold()
    heap = LoadedHeap()
    heap.set_aside()
    assert gc.get_threshold() == (YOUNG, *before[1:])
    set_aside = gc.get_freeze_count()
    later = [[number] for number in range(1000)]
    heap.set_aside()
    assert len(later) == 1000
    assert 0 < gc.get_freeze_count() <= set_aside
    heap.take_back()
    assert (gc.get_freeze_count(), gc.get_threshold()) == (0, before)


def test_taking_back_what_was_never_set_aside_changes_nothing() -> None:
    gc.freeze()
    LoadedHeap().take_back()
    assert gc.get_freeze_count() > 0
