"""The store: when shards close, what a failing disk costs, what is refused."""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from pipeline.episode_store import EpisodeStore
from tasks.errors import ConfigError, DatasetError
from tasks.shards import read_episodes, read_steps
from tests.unit.example_episodes import full_episode

NEVER_S = 3600.0


def names(run_dir: Path, table: str) -> list[str]:
    return sorted(path.name for path in (run_dir / "replay" / table).iterdir())


def rows(run_dir: Path) -> list[int]:
    return [pq.read_metadata(run_dir / "replay/episodes" / name).num_rows for name in names(run_dir, "episodes")]


class Disk:
    """Lets shards through, or refuses them; `tried` counts what was refused and wakes who waits for it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.full = False
        self.published: list[Path] = []
        self.attempted = threading.Semaphore(0)
        self._replace: Callable[[Path, Path], None] = os.replace
        monkeypatch.setattr("tasks.shards.os.replace", self.replace)

    def replace(self, source: Path, target: Path) -> None:
        if self.full:
            self.attempted.release()
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(target))
        self._replace(source, target)
        self.published.append(target)
        self.attempted.release()

    def wait(self, attempts: int = 1) -> None:
        for _ in range(attempts):
            assert self.attempted.acquire(timeout=30)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[Disk]:
    yield Disk(monkeypatch)


def test_a_shard_closes_after_so_many_episodes_and_the_rest_on_close(tmp_path: Path) -> None:
    with EpisodeStore(tmp_path, episodes_per_shard=3, seconds_per_shard=NEVER_S) as store:
        for number in range(7):
            store.add(full_episode(f"game-{number}"))
    assert rows(tmp_path) == [3, 3, 1]
    assert read_episodes(tmp_path)["game_id"].to_pylist() == [f"game-{number}" for number in range(7)]
    assert read_steps(tmp_path).num_rows == 14


def test_a_full_shard_is_published_without_being_asked(tmp_path: Path, disk: Disk) -> None:
    with EpisodeStore(tmp_path, episodes_per_shard=2, seconds_per_shard=NEVER_S) as store:
        store.add(full_episode("a"))
        store.add(full_episode("b"))
        disk.wait(attempts=2)
        assert read_episodes(tmp_path).num_rows == 2


def test_a_shard_closes_in_time_although_no_episode_follows(tmp_path: Path, disk: Disk) -> None:
    with EpisodeStore(tmp_path, episodes_per_shard=100, seconds_per_shard=0.02) as store:
        store.add(full_episode("a"))
        disk.wait(attempts=2)
        assert read_episodes(tmp_path).num_rows == 1


def test_flush_returns_once_everything_is_on_disk(tmp_path: Path) -> None:
    with EpisodeStore(tmp_path, episodes_per_shard=2, seconds_per_shard=NEVER_S) as store:
        store.flush()
        assert rows(tmp_path) == []
        for number in range(5):
            store.add(full_episode(f"game-{number}"))
        store.flush()
        assert sum(rows(tmp_path)) == 5
    assert sum(rows(tmp_path)) == 5


def test_both_folders_have_the_same_names_in_the_order_written(tmp_path: Path, disk: Disk) -> None:
    with EpisodeStore(tmp_path, episodes_per_shard=1, seconds_per_shard=NEVER_S) as store:
        for number in range(3):
            store.add(full_episode(f"game-{number}"))
    episodes = names(tmp_path, "episodes")
    assert episodes == names(tmp_path, "steps")
    assert [name.split("-")[0] for name in episodes] == ["00000", "00001", "00002"]
    assert [path.parent.name for path in disk.published] == ["steps", "episodes"] * 3


def test_two_writers_never_choose_the_same_name(tmp_path: Path) -> None:
    for run in ("a", "b"):
        with EpisodeStore(tmp_path / run) as store:
            store.add(full_episode())
    assert names(tmp_path / "a", "episodes") != names(tmp_path / "b", "episodes")


def test_threads_can_add_at_the_same_time(tmp_path: Path) -> None:
    with EpisodeStore(tmp_path, episodes_per_shard=7, seconds_per_shard=NEVER_S) as store:

        def add(thread: int) -> None:
            for number in range(25):
                store.add(full_episode(f"game-{thread}-{number}"))

        threads = [threading.Thread(target=add, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    expected = {f"game-{thread}-{number}" for thread in range(4) for number in range(25)}
    stored = read_episodes(tmp_path)["game_id"].to_pylist()
    assert (len(stored), set(stored)) == (100, expected)


def test_episodes_are_stored_when_the_body_raises(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), EpisodeStore(tmp_path) as store:
        store.add(full_episode())
        raise KeyboardInterrupt
    assert rows(tmp_path) == [1]


def test_a_full_disk_is_reported_by_flush_and_nothing_is_lost(tmp_path: Path, disk: Disk) -> None:
    with EpisodeStore(tmp_path, episodes_per_shard=100, seconds_per_shard=NEVER_S) as store:
        store.add(full_episode("a"))
        store.add(full_episode("b"))
        disk.full = True
        with pytest.raises(DatasetError) as caught:
            store.flush()
        for part in ("2 episodes are not on disk yet", "replay/steps/00000-", "[Errno 28]", "the disk is full", "mend"):
            assert part in str(caught.value)
        assert names(tmp_path, "steps") == []
        disk.full = False
        store.flush()
        assert read_episodes(tmp_path)["game_id"].to_pylist() == ["a", "b"]


def test_a_full_disk_is_reported_by_the_next_add_which_still_keeps_its_episode(tmp_path: Path, disk: Disk) -> None:
    disk.full = True
    with EpisodeStore(tmp_path, episodes_per_shard=1, seconds_per_shard=NEVER_S) as store:
        store.add(full_episode("a"))
        disk.wait()
        with pytest.raises(DatasetError, match="episodes are not on disk yet: cannot write shard"):
            while True:  # the writer records the error a moment after the attempt
                store.add(full_episode("b"))
                time.sleep(0.01)
        disk.full = False
    stored = read_episodes(tmp_path)["game_id"].to_pylist()
    assert (stored[0], set(stored[1:])) == ("a", {"b"})


def test_a_close_that_fails_can_be_repeated(tmp_path: Path, disk: Disk) -> None:
    store = EpisodeStore(tmp_path)
    store.add(full_episode())
    disk.full = True
    with pytest.raises(DatasetError, match="1 episodes are not on disk yet"):
        store.close()
    disk.full = False
    store.close()
    store.close()
    assert rows(tmp_path) == [1]


def test_a_second_try_leaves_no_step_twice(tmp_path: Path, disk: Disk) -> None:
    """The steps shard is out, the episodes shard is not: the retry replaces the first by one of the same name."""
    with EpisodeStore(tmp_path, seconds_per_shard=NEVER_S) as store:
        store.add(full_episode("a"))
        (tmp_path / "replay/episodes").rmdir()
        with pytest.raises(DatasetError, match="replay/episodes/00000-"):
            store.flush()
        assert read_steps(tmp_path).num_rows == 2
        (tmp_path / "replay/episodes").mkdir()
        store.add(full_episode("b"))
    assert read_steps(tmp_path)["game_id"].to_pylist() == ["a", "a", "b", "b"]
    assert read_episodes(tmp_path).num_rows == 2


def test_an_episode_that_no_column_takes_is_reported(tmp_path: Path) -> None:
    store = EpisodeStore(tmp_path, seconds_per_shard=NEVER_S)
    store.add(full_episode(worker=5))
    with pytest.raises(DatasetError, match="1 episodes are not on disk yet: column 'worker' takes string"):
        store.flush()


def test_an_unforeseen_error_is_reported_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(episodes: object) -> None:
        raise ZeroDivisionError("unforeseen")

    monkeypatch.setattr("pipeline.episode_store.steps_table", fail)
    store = EpisodeStore(tmp_path, seconds_per_shard=NEVER_S)
    store.add(full_episode())
    with pytest.raises(DatasetError, match="unforeseen") as caught:
        store.flush()
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_a_closed_store_takes_no_more(tmp_path: Path) -> None:
    store = EpisodeStore(tmp_path)
    store.close()
    with pytest.raises(DatasetError, match=r"the store of .*replay is closed and takes no more games, got 'game-full'"):
        store.add(full_episode())


def test_a_folder_that_holds_a_run_is_refused(tmp_path: Path) -> None:
    with EpisodeStore(tmp_path) as store:
        store.add(full_episode())
    with pytest.raises(
        DatasetError, match=r"already holds 2 shards, the first episodes/00000-.*; name another with --run-dir"
    ):
        EpisodeStore(tmp_path)


def test_what_a_killed_writer_left_is_no_run(tmp_path: Path) -> None:
    (tmp_path / "replay/episodes").mkdir(parents=True)
    (tmp_path / "replay/episodes/.00000-aa.parquet.tmp").touch()
    with EpisodeStore(tmp_path) as store:
        store.add(full_episode())
    assert read_episodes(tmp_path).num_rows == 1


def test_a_folder_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "run").touch()
    with pytest.raises(DatasetError, match=r"cannot make .*run/replay: .*; name a folder that can be written to"):
        EpisodeStore(tmp_path / "run")


def test_sizes_out_of_range_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="episodes_per_shard is 0, expected at least 1"):
        EpisodeStore(tmp_path, episodes_per_shard=0)
    with pytest.raises(ConfigError, match="seconds_per_shard is nan, expected more than 0"):
        EpisodeStore(tmp_path, seconds_per_shard=float("nan"))
