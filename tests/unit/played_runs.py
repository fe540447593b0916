"""Runs for tests of what is stored: real games of scripted players, in real shards, with their summary."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.episode_store import EpisodeStore
from pipeline.ledger import Ledger
from tasks.contracts import (
    AgentSpec,
    Completion,
    EngineReply,
    Episode,
    GameSpec,
    Mode,
    ModelKind,
    ModelRef,
    Role,
    SamplingSpec,
)
from tasks.play import play_game

KUHN = "KuhnPoker-v0-train"


RANDOM = ModelRef("scripted:random", ModelKind.SCRIPTED)
POLICY = ModelRef("policy@0", ModelKind.ENGINE, 0)


def game_spec(
    game_id: str, env_id: str = KUHN, *, players: int = 2, seed: int = 1, model: ModelRef = RANDOM, **changes: Any
) -> GameSpec:
    """A game of `model` against itself; the first player is learned from."""
    sampling = SamplingSpec() if model.kind is ModelKind.ENGINE else None
    agents = tuple(
        AgentSpec(player, Role.OPPONENT if player else Role.ACTOR, model, sampling=sampling)
        for player in range(players)
    )
    return GameSpec("run-1", game_id, Mode.TRAIN, env_id, players, seed, agents, **changes)


class SaysAlways:
    """An engine that answers every request with one text, its ids and log-probabilities."""

    def __init__(self, text: str) -> None:
        self._text = text

    async def generate(self, messages: object, sampling: object, *, n: int, seed: int, adapter: object) -> EngineReply:
        return EngineReply((1, 2), (Completion(self._text, (3, 4), (-0.5, -0.25), "stop"),) * n, token_limit=9)


def play(*specs: GameSpec, engine: Any = None) -> list[Episode]:
    """The games played, one after the other."""

    async def all_of_them() -> list[Episode]:
        return [await play_game(spec, engine) for spec in specs]

    return asyncio.run(all_of_them())


def kuhn_games(number: int) -> list[Episode]:
    """Games of Kuhn Poker, `train-000000` and on, each with a seed of its own."""
    return play(*(game_spec(f"train-{index:06d}", seed=index) for index in range(number)))


def store_run(run_dir: Path, episodes: Sequence[Episode], episodes_per_shard: int = 256) -> Path:
    """A finished run with these episodes: shards and summary."""
    ledger = Ledger("run-1")
    with EpisodeStore(run_dir, episodes_per_shard, seconds_per_shard=3600.0) as store:
        for episode in episodes:
            ledger.submit([episode.spec])
            ledger.finish(episode)
            store.add(episode)
    ledger.write(run_dir / "summary.json")
    return run_dir


def shards(run_dir: Path, table: str) -> list[Path]:
    """The shards of `episodes` or `steps`, in order."""
    return sorted((run_dir / "replay" / table).glob("*.parquet"))


def rewrite(path: Path, change: Callable[[list[dict[str, Any]]], None]) -> None:
    """Change the rows of a shard behind the project's back."""
    table = pq.read_table(path)
    rows = table.to_pylist()
    change(rows)
    pq.write_table(pa.Table.from_pylist(rows, schema=table.schema), path)
