"""The store under faults that are real: a disk that is full, a writer that is killed, a second writer."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline.episode_store import EpisodeStore
from pipeline.verify import verify_run
from tasks.errors import DatasetError
from tasks.shards import read_episodes, read_steps
from tests.unit.example_episodes import full_episode
from tests.unit.played_runs import shards

# Forks a writer for each folder named and kills it once it has published shards; to start each anew would take seconds.
KILLED_WRITERS = """
import dataclasses, os, random, signal, sys, time
from pathlib import Path
from pipeline.episode_store import EpisodeStore
from tests.unit.played_runs import kuhn_games

games = kuhn_games(8)
for folder in map(Path, sys.argv[1:]):
    child = os.fork()
    if child == 0:
        store = EpisodeStore(folder, episodes_per_shard=3)
        for number in range(100_000):
            game = games[number % len(games)]
            spec = dataclasses.replace(game.spec, game_id=f"game-{number}")
            store.add(dataclasses.replace(game, spec=spec))
            time.sleep(0.0002)
        os._exit(1)
    while len(list((folder / "replay/episodes").glob("*.parquet"))) < 2:
        time.sleep(0.001)
    time.sleep(random.random() * 0.02)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
"""


def test_of_a_writer_that_is_killed_the_reader_sees_whole_shards(tmp_path: Path) -> None:
    folders = [tmp_path / str(number) for number in range(6)]
    subprocess.run([sys.executable, "-c", KILLED_WRITERS, *map(str, folders)], check=True, timeout=60)
    for folder in folders:
        episodes = read_episodes(folder)["game_id"].to_pylist()
        assert len(episodes) >= 6
        assert episodes == [f"game-{number}" for number in range(len(episodes))]
        assert set(episodes) <= set(read_steps(folder)["game_id"].to_pylist())
        assert verify_run(folder).problems == []


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 256 KiB in memory."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(folder)], capture_output=True, text=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"a small file system cannot be mounted here: {mounted.stderr.strip()}")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def fill(folder: Path, leave: int) -> Path:
    """A file that takes all room but `leave` bytes."""
    filler = folder / "filler"
    with filler.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError:
            file.truncate(file.tell() - leave)
    return filler


@pytest.mark.parametrize("leave", [0, 4096, 3 * 4096])
def test_a_full_disk_is_reported_and_leaves_nothing_half_written(small_disk: Path, leave: int) -> None:
    store = EpisodeStore(small_disk / "RUN", seconds_per_shard=3600.0)
    store.add(full_episode("before"))
    store.flush()
    filler = fill(small_disk, leave)
    for number in range(50):
        store.add(full_episode(f"game-{number}", reason="".join(map(str, range(number, number + 1000)))))
    with pytest.raises(DatasetError) as caught:
        store.flush()
    for part in ("50 episodes are not on disk yet", "cannot write shard", "the disk is full: free space on it",
                 "they are kept in memory: mend the cause, then flush or close"):  # fmt: skip
        assert part in str(caught.value)
    assert read_episodes(small_disk / "RUN")["game_id"].to_pylist() == ["before"]
    assert [path.name for path in (small_disk / "RUN").rglob(".*")] == []
    filler.unlink()
    store.close()
    assert read_episodes(small_disk / "RUN").num_rows == 51
    assert read_steps(small_disk / "RUN").num_rows == 102
    assert len(shards(small_disk / "RUN", "steps")) == 2


def test_a_second_writer_is_refused_while_the_first_is_there(tmp_path: Path) -> None:
    first = EpisodeStore(tmp_path)
    with pytest.raises(DatasetError, match=r"replay is being written to by another run: a run folder holds one run"):
        EpisodeStore(tmp_path)
    first.add(full_episode("a"))
    first.close()
    assert read_episodes(tmp_path).num_rows == 1
    with pytest.raises(DatasetError, match="already holds 2 shards, the first episodes/00000"):
        EpisodeStore(tmp_path)


def test_a_second_process_is_refused_while_the_first_is_there(tmp_path: Path) -> None:
    command = "import sys; from pipeline.episode_store import EpisodeStore; EpisodeStore(sys.argv[1])"
    with EpisodeStore(tmp_path):
        second = subprocess.run(
            [sys.executable, "-c", command, str(tmp_path)], capture_output=True, text=True, timeout=60, check=False
        )
    assert second.returncode == 1
    assert "is being written to by another run" in second.stderr
    EpisodeStore(tmp_path).close()


def test_two_writers_without_locks_write_distinct_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unsupported(descriptor: int, operation: int) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr("pipeline.episode_store.fcntl.flock", unsupported)
    with EpisodeStore(tmp_path) as first, EpisodeStore(tmp_path) as second:
        first.add(full_episode("a"))
        second.add(full_episode("b"))
    assert sorted(read_episodes(tmp_path)["game_id"].to_pylist()) == ["a", "b"]
    assert len(shards(tmp_path, "episodes")) == 2
