"""A run's dataset proves itself: its shards are whole, its tables agree, its games play again, its summary adds up.

`pipeline.reenact` plays the games; this reads shard by shard, checks what the tables say of each other, and collects
what is wrong. One damaged shard or game never hides what is wrong with the next. `pipeline.row_checks` looks at rows.
"""

from __future__ import annotations

import json
import math
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.ledger import SUMMARY_VERSION, Ledger
from pipeline.reenact import first_difference
from pipeline.row_checks import check_rows, first_inconsistency, unknown_extractions
from tasks.contracts import Episode
from tasks.errors import DatasetError, EnvironmentHungError
from tasks.rows import episode_from_rows
from tasks.schemas import EPISODE_SCHEMA, STEP_SCHEMA
from tasks.shards import episodes_table, read_shard, shard_paths, steps_table

MAX_HUNG = 2
_SHOWN = 20
_FROM_ROWS = ("run_id", "submitted", "statuses", "lanes", "generated_tokens", "environments")
_ONLY_THERE = {"env_kwargs", "sampling", "votes"}  # nothing else in the dataset says the same


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong: `where` names the file, `what` the game, step and field, and both values."""

    where: str
    what: str

    def __str__(self) -> str:
        return f"{self.where}: {self.what}"


@dataclass
class Report:
    """What `verify_run` looked at and what it found. Games without a step count as replayed.

    `notes` are not wrong, but good to know, such as what a killed run left behind.
    """

    run_dir: Path
    shards: int = 0
    episodes: int = 0
    steps: int = 0
    replayed_episodes: int = 0
    replayed_steps: int = 0
    seconds: float = 0.0
    problems: list[Problem] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return not self.problems

    def __str__(self) -> str:
        lines = [f"{problem}" for problem in self.problems[:_SHOWN]]
        if len(self.problems) > _SHOWN:
            lines.append(f"and {len(self.problems) - _SHOWN} more")
        lines += [f"note: {note}" for note in self.notes]
        lines.append(
            f"{self.run_dir}: {self.shards} shards with {self.episodes} episodes and {self.steps} steps; "
            f"replayed alike: {self.replayed_episodes} episodes, {self.replayed_steps} steps, in {self.seconds:.1f} s"
        )
        lines.append("verified" if self.ok else f"not verified: {len(self.problems)} problems, the first on top")
        return "\n".join(lines)


def verify_run(run_dir: str | Path) -> Report:
    """Check a run's dataset and play every stored game again.

    Of each shard: readable, of a known schema version, with the shard of the other table beside it. Of each game: one
    row, with one step row for each turn, all columns in agreement, a log-probability for each token, the action of its
    completion in each step, a place of its own in its group. Then the replay, and `summary.json` against the rows. An
    environment that hangs in `MAX_HUNG` games is not played again.

    Raises:
        DatasetError: there is no run at `run_dir`.
    """
    verification = _Verification(Path(run_dir))
    verification.check()
    return verification.report


class _Verification:
    """One pass over a run, with what has to be remembered from shard to shard."""

    def __init__(self, run_dir: Path) -> None:
        self.report = Report(run_dir)
        self._replay = run_dir / "replay"
        self._summary_path = run_dir / "summary.json"
        self._shard_of: dict[str, str] = {}
        self._place_of: dict[tuple[str, int], str] = {}  # game by group and index
        self._hung: Counter[str] = Counter()  # by environment
        self._ledger: Ledger | None = None
        self._uncounted = False  # a game could not be read, so that the summary has nothing to be compared with

    def check(self) -> None:
        """Check every shard and the summary; what is found is in `report`."""
        started = time.perf_counter()
        names = {table: {path.name for path in shard_paths(self._replay / table)} for table in ("episodes", "steps")}
        for name in sorted(names["episodes"] | names["steps"]):
            if name not in names["steps"]:
                self._lost(f"steps/{name}", "is missing; episodes/ has a shard of this name, and its games had steps")
            elif name in names["episodes"]:
                self._check_pair(name)
            elif self._summary_path.exists():
                self._lost(f"episodes/{name}", "is missing; steps/ has a shard of this name, with steps of its games")
            else:
                self.report.notes.append(f"steps/{name} has no episodes yet, as a run leaves it that is killed")
        self._check_summary()
        self.report.seconds = time.perf_counter() - started

    def _problem(self, where: str, what: str) -> None:
        self.report.problems.append(Problem(where, what))

    def _lost(self, where: str, what: str) -> None:
        self._uncounted = True
        self._problem(where, what)

    def _check_pair(self, name: str) -> None:
        tables: dict[str, pa.Table] = {}
        for table, schema in (("episodes", EPISODE_SCHEMA), ("steps", STEP_SCHEMA)):
            try:
                tables[table] = read_shard(self._replay / table / name, schema)
                self.report.shards += 1
            except DatasetError as error:
                self._lost(f"{table}/{name}", str(error))
        if len(tables) == 2:
            self._check_games(name, tables["episodes"], tables["steps"])

    def _check_games(self, name: str, games: pa.Table, steps: pa.Table) -> None:
        """Every game of one pair of shards; of each the first thing that is wrong."""
        places_of, step_rows = defaultdict(list), steps.to_pylist()
        for place, step in enumerate(step_rows):
            places_of[step["game_id"]].append(place)
        same, places, step_places = [], [], []
        for place, game in enumerate(games.to_pylist()):
            mine = sorted(places_of.pop(game["game_id"], []), key=lambda place: step_rows[place]["step_index"])
            self.report.episodes += 1
            self.report.steps += len(mine)
            episode = self._episode(name, game, [step_rows[place] for place in mine])
            if episode is not None and self._replays(name, episode) and self._adds_up(name, episode):
                same.append(episode)
                places.append(place)
                step_places += mine
        for game_id, lost in places_of.items():
            self._lost(f"steps/{name}", f"game {game_id}: {len(lost)} steps, and no row in episodes/{name}")
        self._compare(f"episodes/{name}", games.take(pa.array(places, pa.int64())), episodes_table(same))
        self._compare(f"steps/{name}", steps.take(pa.array(step_places, pa.int64())), steps_table(same))

    def _episode(self, name: str, game: Mapping[str, Any], steps: Sequence[Mapping[str, Any]]) -> Episode | None:
        """The stored episode, counted for the summary; None where its rows do not make one."""
        game_id = game["game_id"]
        if game_id in self._shard_of:
            self._lost(f"episodes/{name}", f"game {game_id}: a second row, the first is in {self._shard_of[game_id]}")
            return None
        self._shard_of[game_id] = f"episodes/{name}"
        if self._ledger is None:
            self._ledger = Ledger(game["run_id"])
        try:
            check_rows(game, steps, self._ledger.run_id)
            episode = episode_from_rows(game, steps)
        except DatasetError as error:
            self._lost(f"episodes/{name}", f"game {game_id}: {error}")
            return None
        self._ledger.submit([episode.spec])
        self._ledger.finish(episode)
        return episode

    def _replays(self, name: str, episode: Episode) -> bool:
        env_id, game_id = episode.spec.env_id, episode.spec.game_id
        if self._hung[env_id] >= MAX_HUNG:
            self._problem(f"steps/{name}", f"game {game_id}: not replayed, {MAX_HUNG} games of {env_id} hung before it")
            return False
        try:
            difference = first_difference(episode)
        except EnvironmentHungError as hung:
            self._hung[env_id] += 1
            self._problem(f"steps/{name}", f"game {game_id}, environment: stored played on, replayed: {hung}")
            return False
        if difference is not None:
            self._problem(f"steps/{name}" if difference.step_index is not None else f"episodes/{name}", str(difference))
            return False
        self.report.replayed_episodes += 1
        self.report.replayed_steps += len(episode.steps)
        return True

    def _adds_up(self, name: str, episode: Episode) -> bool:
        """Whether its answers hold together, and its place in its group is its own."""
        spec = episode.spec
        for extraction in unknown_extractions(episode):
            note = f"actions were not read from completions again with {extraction}, which is not to be had here"
            if note not in self.report.notes:
                self.report.notes.append(note)
        wrong = first_inconsistency(episode)
        if wrong is not None:
            self._problem(f"steps/{name}", f"game {spec.game_id}, {wrong}")
            return False
        place = spec.group_id, spec.group_index
        first = self._place_of.setdefault(place, spec.game_id) if spec.group_id else spec.game_id
        if first != spec.game_id:
            self._problem(
                f"episodes/{name}",
                f"game {spec.game_id}, group_index: stored {spec.group_index}, expected a place that {first} of group "
                f"{spec.group_id!r} has not",
            )
        return first == spec.game_id

    def _compare(self, where: str, stored: pa.Table, expected: pa.Table) -> None:
        """What a row repeats of another must be what the writer would have put there."""
        found: dict[str, str] = {}
        there = set(pq.read_schema(self._replay / where).names) - _ONLY_THERE  # an older shard may lack some
        for column in expected.column_names:
            if column not in there or stored[column].equals(expected[column]):
                continue
            pairs = zip(stored[column].to_pylist(), expected[column].to_pylist(), strict=True)
            for place, (one, other) in enumerate(pairs):
                if not _alike(column, one, other):
                    row = stored.slice(place, 1).to_pylist()[0]
                    at = f", step {row['step_index']}" if "step_index" in row else ""
                    what = f"game {row['game_id']}{at}, {column}: stored {one!r}, expected {other!r}"
                    found.setdefault(row["game_id"], what)
        for what in found.values():
            self._problem(where, what)

    def _check_summary(self) -> None:
        path = self._summary_path
        if not path.exists():
            self.report.notes.append("there is no summary.json: the run goes on, or was killed")
            return
        try:
            summary = json.loads(path.read_text(encoding="utf-8"))
            version = summary["summary_version"]
        except (OSError, ValueError, LookupError, TypeError) as error:
            self._problem(path.name, f"cannot be read: {type(error).__name__}: {error}")
            return
        if version != SUMMARY_VERSION:
            self._problem(path.name, f"has summary_version {version!r}, this release reads {SUMMARY_VERSION}")
        elif self._uncounted:
            self.report.notes.append("summary.json was not compared, because games are missing or damaged")
        else:
            counted = (self._ledger or Ledger(summary.get("run_id", ""))).summary()
            for what in _differences(summary, {key: counted[key] for key in _FROM_ROWS}):
                self._problem(path.name, what)


def _alike(column: str, stored: Any, expected: Any) -> bool:
    """NaN is like NaN; a duration is like that of its times, which are kept to the microsecond."""
    if column == "duration_s" and None not in (stored, expected):
        return math.isclose(stored, expected, rel_tol=0.0, abs_tol=2e-6)
    return repr(stored) == repr(expected)


def _differences(stored: Any, expected: Any, path: str = "") -> Iterator[str]:
    """Where the summary is not what the rows give; sums of floats may differ in their last digits."""
    if isinstance(expected, dict) and isinstance(stored, dict):
        for key, value in expected.items():
            yield from _differences(stored.get(key), value, f"{path}.{key}" if path else key)
    elif isinstance(expected, list) and isinstance(stored, list) and len(expected) == len(stored):
        for place, value in enumerate(expected):
            yield from _differences(stored[place], value, f"{path}[{place}]")
    elif isinstance(expected, float) and isinstance(stored, float) and math.isclose(stored, expected, rel_tol=1e-9):
        return
    elif stored != expected and repr(stored) != repr(expected):
        yield f"{path}: stored {stored!r}, the rows give {expected!r}"
