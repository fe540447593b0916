"""A run read back for people: games and ratings as tables, one game as a transcript: saw, said, parsed, earned."""

from __future__ import annotations

import difflib
import textwrap
import unicodedata
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pipeline.model_registry import ModelRegistry
from tasks.contracts import Episode
from tasks.errors import DatasetError
from tasks.shards import episodes_table, read_episodes, read_steps, steps_table

_Row = Mapping[str, Any]


def list_games(run_dir: str | Path) -> str:
    """One line per game stored so far, in that order, under a line of headings.

    Raises `DatasetError` where there is no run or a shard cannot be read.
    """
    games = read_episodes(run_dir).to_pylist()
    if not games:
        return f"no games stored yet in {run_dir}: the first shard closes at the latest when the run ends"
    headings = ("game", "mode", "environment", "status", "turns", "players", "rewards", "seconds")
    return _aligned([headings, *(_game_line(game) for game in games)])


def _game_line(game: _Row) -> tuple[str, ...]:
    rewards = [_number(reward) for reward in game["rewards"] or ()]
    return (
        game["game_id"],
        game["mode"],
        game["env_id"],
        game["status"],
        str(game["turns"]),
        " ".join(game["model_uid"]),
        " ".join(rewards) or "-",
        _number(game["duration_s"]),
    )


def _aligned(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)
    return "\n".join(line.rstrip() for line in lines)


def list_ratings(run_dir: str | Path) -> str:
    """One line per rated model, the one that is most surely strong first, under a line of headings.

    Raises `DatasetError` where there is no registry, as before the run ends, or it cannot be read.
    """
    ratings = ModelRegistry.load(Path(run_dir) / "registry.json").ratings()
    if not ratings:
        return f"no ratings in {run_dir}: none of its games was between two models or of one against an environment"
    headings = ("model", "mu", "sigma", "mu-3sigma", "games")
    ranked = sorted(ratings, key=lambda rating: rating.conservative, reverse=True)
    lines = (
        (rating.uid, f"{rating.mu:.2f}", f"{rating.sigma:.2f}", f"{rating.conservative:.2f}", str(rating.games))
        for rating in ranked
    )
    return _aligned([headings, *lines])


def render_game(run_dir: str | Path, game_id: str) -> str:
    """One game from its first observation to its rewards, as plain text.

    Control characters that a model or an environment wrote are shown escaped, so they cannot drive the terminal.
    Raises `DatasetError` where there is no run, no such game (names the nearest ids), or a shard cannot be read.
    """
    episodes = read_episodes(run_dir)
    ids: list[Any] = episodes["game_id"].to_pylist()
    if game_id not in ids:
        raise DatasetError(_no_such_game(run_dir, game_id, ids))
    game = episodes.slice(ids.index(game_id), 1).to_pylist()[0]
    steps = read_steps(run_dir, game_id=game_id).sort_by("step_index").to_pylist()
    return _rendered(game, steps)


def render_episode(episode: Episode) -> str:
    """One game as `render_game` shows it, before it is stored.

    Raises `DatasetError` on a value that could not be stored.
    """
    (game,) = episodes_table([episode]).to_pylist()
    return _rendered(game, steps_table([episode]).to_pylist())


def _rendered(game: _Row, steps: Sequence[_Row]) -> str:
    return _printable("\n\n".join([_opening(game), *(_turn(step) for step in steps), _ending(game)]))


def _no_such_game(run_dir: str | Path, game_id: str, ids: Sequence[str]) -> str:
    nearest = ", ".join(difflib.get_close_matches(game_id, ids, n=3) or ids[:3]) or "none yet"
    return (
        f"no game {game_id!r} among the {len(ids)} stored in {run_dir}; nearest: {nearest} "
        f"(`selfplay show {run_dir}` lists all)"
    )


def _opening(game: _Row) -> str:
    lines = [
        f"Game {game['game_id']} of run {game['run_id']}",
        f"{game['env_id']}, {game['mode']}, seed {game['seed']}, attempt {game['attempt']}",
    ]
    for player in range(game["num_players"]):
        version = game["policy_version"][player]
        policy = "" if version is None else f", policy version {version}"
        lines.append(f"player {player}: {game['model_uid'][player]} ({game['role'][player]}{policy})")
    return "\n".join(lines)


def _turn(step: _Row) -> str:
    said = [f"{step['generated_tokens']} tokens", f"{step['latency_s']:.2f} s"]
    if step["finish_reason"] is not None:
        said.insert(0, step["finish_reason"])
    if step["votes"] is not None:
        said.append(f"votes {step['votes']}")
    parsed = ["not in the form asked for"] * (not step["format_ok"]) + ["illegal"] * step["illegal"]
    remarks = f" ({', '.join(parsed)})" if parsed else ""
    return "\n".join(
        [
            f"--- step {step['step_index']}, player {step['player_id']}, {step['model_uid']} ---",
            "saw:",
            _indented(step["observation"]),
            f"said ({', '.join(said)}):",
            _indented(step["completion"]),
            f"parsed{remarks}:",
            _indented(step["action"]),
            f"earned: {_number(step['reward'])}",
        ]
    )


def _ending(game: _Row) -> str:
    reason = f": {game['reason']}" if game["reason"] else ""
    lines = [f"=== {game['status']} after {game['turns']} steps{reason} ==="]
    for player in range(game["num_players"]):
        reward = None if game["rewards"] is None else game["rewards"][player]
        outcome = None if game["outcome"] is None else game["outcome"][player]
        lines.append(f"player {player} earned {_number(reward)}{f', {outcome}' if outcome else ''}")
    return "\n".join(lines)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


def _indented(text: str) -> str:
    return textwrap.indent(text or "(nothing)", "    ", lambda line: True)


def _printable(text: str) -> str:
    return "".join(
        character.encode("unicode_escape").decode()
        if unicodedata.category(character) in ("Cc", "Cf") and character not in "\n\t"
        else character
        for character in text
    )
