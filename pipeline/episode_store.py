"""Every episode to disk: a thread of its own turns episodes into pairs of Parquet shards while the driver goes on.

`RUN/replay/steps/NAME.parquet` is published before `RUN/replay/episodes/NAME.parquet`, so the steps of every episode
that a reader sees are there. `tasks.shards` knows the format; this decides when a shard closes and what an error costs.
"""

from __future__ import annotations

import fcntl
import logging
import os
import secrets
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from tasks.contracts import Episode
from tasks.errors import ConfigError, DatasetError, SelfplayError, boundary
from tasks.shards import episodes_table, steps_table, write_shard

logger = logging.getLogger(__name__)


class BaseEpisodeStore(ABC):
    """Where the driver leaves every episode, whatever its status; used as a context manager that closes it."""

    @abstractmethod
    def add(self, episode: Episode) -> None:
        """Take one episode. Called from the driver's loop for every game, so it must not wait for a disk."""

    @abstractmethod
    def flush(self) -> None:
        """Return once everything added so far can be read back; raise what stands in the way."""

    @abstractmethod
    def close(self) -> None:
        """Flush and let go of resources. Closing twice is no error."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class EpisodeStore(BaseEpisodeStore):
    """Writes `RUN/replay/{episodes,steps}/*.parquet`; thread-safe.

    A shard closes after `episodes_per_shard` episodes, `seconds_per_shard` seconds after its first one, and on `flush`
    and `close`. Episodes that could not be written stay in memory and are tried again: with the next `flush` or
    `close`, after the next `add` (which raises the error first), or after another `seconds_per_shard`.

    Args:
        run_dir: the run's folder; made if missing, refused if it already holds shards or another store writes there.
        episodes_per_shard: at least 1.
        seconds_per_shard: above 0.
        resume: go on in a folder that holds shards of this run; steps whose episodes were never published, as a killed
            run leaves them, are removed.

    Raises:
        ConfigError: a number is out of range.
        DatasetError: the folder holds another run's shards, is being written to by another store, or cannot be made.
    """

    def __init__(
        self,
        run_dir: str | Path,
        episodes_per_shard: int = 256,
        seconds_per_shard: float = 60.0,
        *,
        resume: bool = False,
    ) -> None:
        if episodes_per_shard < 1:
            raise ConfigError(f"episodes_per_shard is {episodes_per_shard}, expected at least 1")
        if not seconds_per_shard > 0:
            raise ConfigError(f"seconds_per_shard is {seconds_per_shard}, expected more than 0")
        self._replay = Path(run_dir) / "replay"
        self._claim = _prepare(self._replay, resume)
        self._episodes_per_shard = episodes_per_shard
        self._seconds_per_shard = seconds_per_shard
        self._name = secrets.token_hex(4)
        self._changed = threading.Condition()
        # All below are guarded by `_changed`.
        self._pending: list[Episode] = []
        self._due_at = 0.0  # when the pending episodes are written even if too few, in `time.monotonic` seconds
        self._added = 0
        self._stored = 0
        self._wanted = 0  # how many stored episodes some `flush` waits for
        self._shards = len(self.shards())
        self._error: Exception | None = None
        self._closed = False
        self._writer = threading.Thread(target=self._write_until_closed, name="episode-store", daemon=True)
        self._writer.start()

    def add(self, episode: Episode) -> None:
        """Keep one episode for the next shard.

        Raises:
            DatasetError: an earlier shard could not be written (this episode is kept all the same), or the store is
                closed.
        """
        with self._changed:
            if self._closed:
                raise DatasetError(
                    f"the store of {self._replay} is closed and takes no more games, got {episode.spec.game_id!r}"
                )
            if not self._pending:
                self._due_at = time.monotonic() + self._seconds_per_shard
            self._pending.append(episode)
            self._added += 1
            # The writer sleeps through the rest: to wake it for every game would cost more than to keep the game.
            if len(self._pending) == 1 or len(self._pending) >= self._episodes_per_shard:
                self._changed.notify_all()
            self._raise_error()

    def shards(self) -> frozenset[str]:
        """The names of the shards that are published, those of earlier lives of the run among them."""
        return frozenset(path.name for path in (self._replay / "episodes").glob("[!.]*.parquet"))

    def flush(self) -> None:
        """Return once everything added so far is on disk.

        Raises:
            DatasetError: it cannot be written; says how many episodes are kept in memory and how to mend it.
        """
        with self._changed:
            target = self._added
            self._wanted = max(self._wanted, target)
            self._error = None  # an error from before is worth one more try
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._stored >= target or self._error is not None)
            self._raise_error()

    def close(self) -> None:
        """Take no more episodes, flush, and end the writer. Where the flush fails: mend the cause and close again."""
        with self._changed:
            self._closed = True
        self.flush()
        self._writer.join()
        self._claim.close()

    def _raise_error(self) -> None:
        """Hand the writer's error to the caller, once. Called with `_changed` held."""
        error, self._error = self._error, None
        if error is not None:
            raise DatasetError(
                f"{len(self._pending)} episodes are not on disk yet: {error}; "
                "they are kept in memory: mend the cause, then flush or close the store once more"
            ) from error

    def _write_until_closed(self) -> None:
        while (batch := self._next_batch()) is not None:
            error = self._try_to_write(batch)
            with self._changed:
                self._due_at = time.monotonic() + self._seconds_per_shard
                self._error = error
                if error is None:
                    del self._pending[: len(batch)]
                    self._stored += len(batch)
                    self._shards += 1
                self._changed.notify_all()

    def _next_batch(self) -> list[Episode] | None:
        """Wait for a shard to be due; its episodes, or None once the store is closed and empty."""
        with self._changed:
            while self._pending or not self._closed:
                late = self._due_at - time.monotonic() if self._pending else None
                full = len(self._pending) >= self._episodes_per_shard or self._stored < self._wanted
                if (full and self._error is None) or (late is not None and late <= 0):
                    return self._pending[: self._episodes_per_shard]
                self._changed.wait(late)
            return None

    def _try_to_write(self, batch: Sequence[Episode]) -> Exception | None:
        """Write one pair of shards. A second try has the same name, so it replaces what the first one left."""
        name = f"{self._shards:05d}-{self._name}.parquet"
        try:
            with boundary() as caught:
                steps, episodes = steps_table(batch), episodes_table(batch)
                write_shard(steps, self._replay / "steps" / name)
                write_shard(episodes, self._replay / "episodes" / name)
            error = caught.error
        except SelfplayError as ours:
            error = ours
        if error is not None:
            logger.warning("shard %s not written, %d episodes kept in memory: %s", name, len(batch), error)
        return error


class _Claim:
    """One writer's hold on a folder. The system lets go of it when the process ends, however it ends."""

    def __init__(self, folder: Path) -> None:
        self._descriptor: int | None = os.open(folder, os.O_RDONLY)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            self.close()
            raise DatasetError(
                f"{folder} is being written to by another run: a run folder holds one run; name another with --run-dir"
            ) from error
        except OSError as error:
            # Some network file systems have no such locks; two writers' shards have different names all the same.
            logger.debug("no lock on %s: %s", folder, error)

    def close(self) -> None:
        """Give the folder up; may be called again."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def _prepare(replay: Path, resume: bool) -> _Claim:
    """Make the folders of a new run, or take those of one that goes on, and claim them; refuse another's."""
    try:
        for table in ("episodes", "steps"):
            (replay / table).mkdir(parents=True, exist_ok=True)
        claim = _Claim(replay)
    except OSError as error:
        raise DatasetError(f"cannot make {replay}: {error}; name a folder that can be written to") from error
    shards = sorted(path.relative_to(replay) for path in replay.glob("*/[!.]*.parquet"))
    if resume:
        for path in [*replay.glob("steps/[!.]*.parquet"), *replay.glob("*/.*.tmp")]:
            if path.name.startswith(".") or not (replay / "episodes" / path.name).exists():
                path.unlink()
    elif shards:
        claim.close()
        raise DatasetError(
            f"{replay} already holds {len(shards)} shards, the first {shards[0]}: a run folder holds one run; "
            "name another with --run-dir, or move this one away"
        )
    return claim
