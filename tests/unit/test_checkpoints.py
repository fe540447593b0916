"""Checkpoints are whole or not there, are checked when they are read, and the old ones go."""

from __future__ import annotations

from pathlib import Path

import pytest

from tasks.checkpoints import load_checkpoint, save_checkpoint, saved_versions
from tasks.errors import LearnerError

FILES = {"weights": b"abc", "moments": b""}
ABOUT = {"model_name": "tiny", "number": 4}


def test_files_come_back(tmp_path: Path) -> None:
    save_checkpoint(tmp_path / "new", 3, FILES, ABOUT, keep=2)
    assert load_checkpoint(tmp_path / "new", 3, {"model_name": "tiny"}) == FILES
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["version-00000003"]


def test_a_version_saved_again_replaces_the_first(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, 3, FILES, ABOUT, keep=2)
    save_checkpoint(tmp_path, 3, {"weights": b"other"}, ABOUT, keep=2)
    assert load_checkpoint(tmp_path, 3, {}) == {"weights": b"other"}


def test_only_the_newest_stay(tmp_path: Path) -> None:
    for version in range(1, 6):
        save_checkpoint(tmp_path, version, FILES, ABOUT, keep=2)
    assert saved_versions(tmp_path) == [4, 5]


def test_a_missing_version_names_those_that_are_there(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, 7, FILES, ABOUT, keep=1)
    with pytest.raises(LearnerError, match=r"no checkpoint of policy version 6 in .*; there are versions \[7\]"):
        load_checkpoint(tmp_path, 6, {})


def test_a_folder_without_its_manifest_is_no_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "version-00000002").mkdir()
    with pytest.raises(LearnerError, match="no checkpoint of policy version 2"):
        load_checkpoint(tmp_path, 2, {})


def test_other_settings_are_named(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, 1, FILES, ABOUT, keep=1)
    with pytest.raises(LearnerError, match="was made with model_name 'tiny', expected 'large': go on with"):
        load_checkpoint(tmp_path, 1, {"model_name": "large"})


def test_damage_is_seen(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, 1, FILES, ABOUT, keep=1)
    (tmp_path / "version-00000001" / "weights").write_bytes(b"abd")
    with pytest.raises(LearnerError, match=r"weights is not what was saved: its SHA-256 differs"):
        load_checkpoint(tmp_path, 1, {})
