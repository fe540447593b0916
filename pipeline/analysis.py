"""What a stored run comes to, as tables: what was played, who won, how long, how well the form was kept, tokens.

Behind `notebooks/`, which only plot. Figures are those of `pipeline.metric_window`, over the whole run instead of a
window; lanes (`train`, `eval`) and environments are never mixed.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sized
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute

from pipeline.failures import failure_kind
from pipeline.intervals import wilson_interval
from pipeline.transcript import render_game
from tasks.contracts import Role, Status
from tasks.errors import DatasetError
from tasks.outcomes import Outcome, solved
from tasks.schemas import STEP_SCHEMA
from tasks.shards import read_shard, shard_paths

_Row = Mapping[str, Any]
# The type stubs know only some of what its functions take.
_compute: Any = pyarrow.compute

_ENDED_BY_ITSELF = (Status.COMPLETED, Status.ILLEGAL_MOVE, Status.TRUNCATED)
_KEPT = ["mode", "env_id", "role", "format_ok", "illegal"]
_READ = [*_KEPT, "finish_reason", "prompt_ids", "completion_ids", "generated_tokens"]


def _fields(kind: pa.DataType, *names: str) -> list[tuple[str, pa.DataType]]:
    return [(name, kind) for name in names]


_PLACE = _fields(pa.string(), "mode", "env_id")
_GAMES = pa.schema(_PLACE + _fields(pa.int64(), "games", *Status) + _fields(pa.float64(), "mean_turns"))
_FAILURES = pa.schema(
    _PLACE + _fields(pa.string(), "kind") + _fields(pa.int64(), "games") + _fields(pa.string(), "example")
)
_RESULTS = pa.schema(
    _PLACE
    + _fields(pa.string(), "side", "measure")
    + _fields(pa.int64(), "results", "successes", "forfeit_wins", "draws", "losses")
    + _fields(pa.float64(), "rate", "low", "high", "mean_reward")
)


def newest_run(folder: str | Path) -> Path:
    """The run in `folder` that began last.

    Raises:
        DatasetError: no folder in it holds a run.
    """
    runs = [replay.parent for replay in Path(folder).glob("*/replay") if replay.is_dir()]
    if not runs:
        raise DatasetError(
            f"no run in {Path(folder).resolve()}: expected a folder there with replay/ in it. Play one with "
            "`selfplay collect configs/scripted.yaml`, or name a run's folder, for the notebooks in SELFPLAY_RUN"
        )
    return max(runs, key=lambda run: (run / "replay").stat().st_mtime_ns)


def games_played(episodes: pa.Table) -> pa.Table:
    """One row per lane and environment: its games, how many ended in each status, and their mean turns.

    `mean_turns` is over the games that the environment or the turn cap ended, null where there are none.

    Args:
        episodes: as `tasks.shards.read_episodes` gives them; likewise below.
    """
    rows = []
    for place, games in _by_place(episodes, "status", "turns"):
        statuses = Counter(game["status"] for game in games)
        turns = [game["turns"] for game in games if game["status"] in _ENDED_BY_ITSELF]
        counts = {status.value: statuses[status.value] for status in Status}
        rows.append({**place, "games": len(games), **counts, "mean_turns": _mean(turns)})
    return pa.Table.from_pylist(rows, _GAMES)


def failures(episodes: pa.Table) -> pa.Table:
    """One row per lane, environment and kind of failure: the failed games, most first, and what one of them said."""
    rows = []
    for place, games in _by_place(episodes, "status", "reason"):
        reasons = defaultdict(list)
        for game in games:
            if game["status"] == Status.FAILED:
                reasons[failure_kind(game["reason"])].append(game["reason"])
        for kind, said in sorted(reasons.items(), key=lambda item: (-len(item[1]), item[0])):
            rows.append({**place, "kind": kind, "games": len(said), "example": said[0]})
    return pa.Table.from_pylist(rows, _FAILURES)


def game_lengths(episodes: pa.Table) -> dict[str, list[int]]:
    """Turns of each game that the environment or the turn cap ended, by lane and environment (`train KuhnPoker-v0`).

    Lanes and environments without such a game are left out.
    """
    lengths = {
        f"{place['mode']} {place['env_id']}": [game["turns"] for game in games if game["status"] in _ENDED_BY_ITSELF]
        for place, games in _by_place(episodes, "status", "turns")
    }
    return {place: turns for place, turns in lengths.items() if turns}


def typical_game(episodes: pa.Table) -> str | None:
    """The id of a game of median length, among those with a step; None where no game has one."""
    games = sorted((turns, game) for turns, game in zip(*_columns(episodes, "turns", "game_id"), strict=True) if turns)
    return str(games[len(games) // 2][1]) if games else None


def typical_transcript(run_dir: str | Path, episodes: pa.Table) -> str:
    """The transcript of `typical_game`, or a sentence that says why there is none.

    Raises:
        DatasetError: there is no run, or a shard cannot be read.
    """
    game_id = typical_game(episodes)
    if game_id is not None:
        return render_game(run_dir, game_id)
    failed = _columns(episodes, "status")[0].count(Status.FAILED)
    advice = "the table of failures says what they met" if failed else "look again when some are over"
    return f"None of the run's {episodes.num_rows} games has a step ({failed} failed): {advice}."


def said_where_empty(shown: Sized, sentence: str) -> str:
    """A plot's title: `sentence` where there is nothing to show, and otherwise none."""
    return "" if len(shown) else sentence


def results(episodes: pa.Table) -> pa.Table:
    """One row per lane, environment and side: how often it won, with Wilson's interval of 95 %.

    `side` is a player (`player_0`), and where another model plays an opponent also a role (`actor`, `opponent`): where
    a model plays against itself a role's rate says nothing. `measure` is `win`, or `solved` for a single player.

    `results` counts the games with an outcome (a role's once for each of its players), which are `successes`,
    `forfeit_wins` (won by another's illegal move alone), `draws` and `losses`; `rate` is `successes / results`, in
    [`low`, `high`]. The interval takes results as independent, which those of several players of one game are not: for
    a role of several players it is too narrow. `mean_reward` is of the finite raw rewards, null where there are none.
    """
    rows = []
    columns = ("num_players", "model_uid", "role", "rewards", "outcome", "offender")
    for place, games in _by_place(episodes, *columns):
        tallies: dict[tuple[str, str], _Tally] = defaultdict(_Tally)
        for game in games:
            if game["rewards"] is not None:
                _tally(game, tallies)
        for (side, measure), tally in sorted(tallies.items()):
            rows.append({**place, "side": side, "measure": measure, **tally.figures()})
    return pa.Table.from_pylist(rows, _RESULTS)


@dataclass
class _Tally:
    counts: Counter[str] = field(default_factory=Counter)
    rewards: list[float] = field(default_factory=list)

    def figures(self) -> dict[str, Any]:
        """Counts, the rate of successes with Wilson's interval, mean reward; None where nothing was played."""
        n, successes = self.counts.total(), self.counts["success"]
        low, high = wilson_interval(successes, n)
        return {
            "results": n,
            "successes": successes,
            "forfeit_wins": self.counts["forfeit"],
            "draws": self.counts[Outcome.DRAW],
            "losses": self.counts[Outcome.LOSS],
            "rate": successes / n if n else None,
            "low": low,
            "high": high,
            "mean_reward": _mean(self.rewards),
        }


def _tally(game: _Row, tallies: Mapping[tuple[str, str], _Tally]) -> None:
    """Add one game with rewards to the tallies of its players and, where they say something, of their roles."""
    players = range(game["num_players"])
    alone = len(players) == 1
    actors = {game["model_uid"][player] for player in players if game["role"][player] == Role.ACTOR}
    rivals = any(game["role"][p] == Role.OPPONENT and game["model_uid"][p] not in actors for p in players)
    for player in players:
        sides = [f"player_{player}", game["role"][player]]
        for side in sides if rivals else sides[:1]:
            tally = tallies[side, "solved" if alone else "win"]
            reward, outcome = game["rewards"][player], game["outcome"][player]
            if reward is not None and math.isfinite(reward):
                tally.rewards.append(reward)
            if alone and reward is not None:
                tally.counts["success" if solved(reward) else "unsolved"] += 1
            elif outcome == Outcome.WIN:
                tally.counts["success" if game["offender"] is None else "forfeit"] += 1
            elif outcome is not None:
                tally.counts[outcome] += 1


def step_figures(run_dir: str | Path) -> pa.Table:
    """The numbers of every decision of a run, without its texts and ids, so that a long run fits into memory.

    Columns: `mode`, `env_id`, `role`, `format_ok`, `illegal`, `length_stop` (null where nothing said why the answer
    ended), `observation_tokens` and `response_tokens` (null where nobody counted them).

    Raises:
        DatasetError: there is no run, or a shard cannot be read.
    """
    shards = shard_paths(Path(run_dir) / "replay" / "steps")
    tables = (read_shard(path, STEP_SCHEMA, columns=_READ) for path in shards)
    nothing = STEP_SCHEMA.empty_table().select(_READ)
    return pa.concat_tables([_figures(nothing), *map(_figures, tables)])


def _figures(steps: pa.Table) -> pa.Table:
    answered = _compute.list_value_length(steps["completion_ids"])
    counted = _compute.if_else(_compute.equal(answered, 0), steps["generated_tokens"], answered)
    figures = {
        "length_stop": _compute.equal(steps["finish_reason"], "length"),
        "observation_tokens": _null_for_zero(_compute.list_value_length(steps["prompt_ids"])),
        "response_tokens": _null_for_zero(counted),
    }
    return pa.table({**{name: steps[name] for name in _KEPT}, **figures})


def decisions(figures: pa.Table) -> pa.Table:
    """One row per lane, environment and role: its decisions, and how they came out.

    `format_success`, `illegal_rate`: shares of the decisions; `illegal_moves` their number. `length_stop_rate`,
    `observation_tokens`, `response_tokens`: means over the decisions that have one, null where none has.

    Args:
        figures: as `step_figures` gives them.
    """
    keys = ["mode", "env_id", "role"]
    grouped = figures.group_by(keys).aggregate(
        [
            ("format_ok", "count"),
            ("format_ok", "mean"),
            ("illegal", "sum"),
            ("illegal", "mean"),
            ("length_stop", "mean"),
            ("observation_tokens", "mean"),
            ("response_tokens", "mean"),
        ]
    )
    names = {
        "format_ok_count": "decisions",
        "format_ok_mean": "format_success",
        "illegal_sum": "illegal_moves",
        "illegal_mean": "illegal_rate",
        "length_stop_mean": "length_stop_rate",
        "observation_tokens_mean": "observation_tokens",
        "response_tokens_mean": "response_tokens",
    }
    columns = {name: grouped[name] for name in keys} | {new: grouped[old] for old, new in names.items()}
    return pa.table(columns).sort_by([(name, "ascending") for name in keys])


def _null_for_zero(counts: Any) -> Any:
    return _compute.if_else(_compute.equal(counts, 0), pa.scalar(None, pa.int32()), counts)


def _by_place(episodes: pa.Table, *columns: str) -> Iterator[tuple[dict[str, str], list[dict[str, Any]]]]:
    """Each lane and environment with its games' rows, in order of their names."""
    places: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    for row in episodes.select(["mode", "env_id", *columns]).to_pylist():
        places[row["mode"], row["env_id"]].append(row)
    for (mode, env_id), rows in sorted(places.items()):
        yield {"mode": mode, "env_id": env_id}, rows


def _columns(table: pa.Table, *names: str) -> list[list[Any]]:
    return [table[name].to_pylist() for name in names]


def _mean(values: list[Any]) -> float | None:
    return sum(values) / len(values) if values else None
