"""What it costs to verify a run: its steps checked and replayed per second, and beside playing them for the first time.

`python -m benchmarks.verify --games 300 --json` plays and stores games of Kuhn Poker by scripted players, verifies the
run `--passes` times, and prints one JSON line.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from pathlib import Path

from benchmarks.measure import Result, add_repetition, run_check
from pipeline.episode_store import EpisodeStore
from pipeline.ledger import Ledger
from pipeline.verify import verify_run
from tasks.contracts import AgentSpec, Episode, GameSpec, Mode, ModelKind, ModelRef, Role
from tasks.errors import DatasetError
from tasks.play import play_game

RUN_ID = "benchmark"
ENV_ID = "KuhnPoker-v0-train"
EPISODES_PER_SHARD = 256


def verified(options: argparse.Namespace) -> Result:
    """Steps per second of CPU time and of time on the clock, of the fastest pass; `times_play` is CPU over CPU.

    Raises:
        DatasetError: the run does not verify, so that its pace means nothing.
    """
    asyncio.run(_played(5))  # imports, and calls in threads until the environment has proven quick
    with tempfile.TemporaryDirectory(prefix="benchmark-") as folder:
        started = time.process_time()
        episodes = asyncio.run(_played(options.games))
        play_cpu_s = time.process_time() - started
        _store(Path(folder), episodes)
        steps = sum(len(episode.steps) for episode in episodes)
        passes = [_one_pass(Path(folder), steps) for _ in range(options.passes)]
    cpu_s, wall_s = (min(seconds) for seconds in zip(*passes, strict=True))
    return {
        "games": options.games,
        "steps": steps,
        "steps_per_cpu_s": steps / cpu_s,
        "steps_per_s": steps / wall_s,
        "times_play": cpu_s / play_cpu_s,
    }


async def _played(games: int) -> list[Episode]:
    model = ModelRef("scripted:random", ModelKind.SCRIPTED)
    agents = (AgentSpec(0, Role.ACTOR, model), AgentSpec(1, Role.OPPONENT, model))
    specs = (GameSpec(RUN_ID, f"train-{index:06d}", Mode.TRAIN, ENV_ID, 2, index, agents) for index in range(games))
    return [await play_game(spec, None) for spec in specs]


def _store(run_dir: Path, episodes: list[Episode]) -> None:
    """A finished run with these episodes."""
    ledger = Ledger(RUN_ID)
    with EpisodeStore(run_dir, EPISODES_PER_SHARD) as store:
        for episode in episodes:
            ledger.submit([episode.spec])
            ledger.finish(episode)
            store.add(episode)
    ledger.write(run_dir / "summary.json")


def _one_pass(run_dir: Path, steps: int) -> tuple[float, float]:
    """CPU seconds of this process and seconds on the clock that one verification took."""
    started = time.process_time(), time.perf_counter()
    report = verify_run(run_dir)
    ended = time.process_time(), time.perf_counter()
    if not report.ok or report.replayed_steps != steps:
        raise DatasetError(f"{report.replayed_steps} of {steps} steps replayed, expected all: {report}")
    return ended[0] - started[0], ended[1] - started[1]


CHECKS = {"kuhn": verified}


def arguments() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", choices=CHECKS, default="kuhn")
    parser.add_argument("--games", type=int, default=300, help="games to play, store and verify")
    parser.add_argument("--passes", type=int, default=5, help="verifications, of which the fastest counts")
    add_repetition(parser)
    return parser


if __name__ == "__main__":
    run_check("benchmarks.verify", CHECKS, arguments())
