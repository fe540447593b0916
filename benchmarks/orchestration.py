"""What a turn costs beside the engine: a stub of fixed latency, Kuhn Poker, a local cluster, shards and MLflow on.

`python -m benchmarks.orchestration --in-flight 64 --latency-ms 50 --seconds 20 --repeat 3 --json` prints one JSON line.
`--check` asks another question than the steady rate: whether cost stays flat, whether engines are kept level, how soon
the first game is in, what a prompt costs.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable, Sequence

from benchmarks.measure import Result, add_repetition, between, run_alone, run_check
from benchmarks.stub_games import (
    KeptGames,
    Window,
    after_games,
    collect,
    local_cluster,
    play_without_dask,
    timed,
    vllm_config,
)
from tasks.models import resolve_model
from tasks.prompts import prompt_template

WORKERS_LEVEL = 4


def steady(options: argparse.Namespace) -> Result:
    """Rates in a window after warm-up; then the same games without Dask, on the same stub."""
    n, latency_s = options.in_flight, options.latency_ms / 1000
    vllm = vllm_config(n, latency_s)
    window = timed(options.warm_up, options.seconds)
    with local_cluster(n) as client:
        collect(client, vllm, n, window)
    result = between(*window.marks)
    alone = timed(options.warm_up, options.seconds)
    play_without_dask(vllm, n, alone)
    without = between(*alone.marks)
    return {
        "in_flight": n,
        "latency_ms": options.latency_ms,
        **result,
        "ideal_share": result["turns_per_s"] / (n / latency_s) if latency_s else 0.0,
        "no_dask_share": result["turns_per_s"] / without["turns_per_s"],
        "no_dask_turns_per_s": without["turns_per_s"],
        "no_dask_cpu_ms_per_turn": without["cpu_ms_per_turn"],
    }


def flat(options: argparse.Namespace) -> Result:
    """The last twentieth of many games beside the first one after warm-up: time, CPU and memory, as ratios.

    A machine's speed changes while they are played. So `cpu_ratio` and `time_ratio` are over those same first games of
    a run that begins when this one has ended, and the `_raw` ones over this run's own.
    """
    n, games = options.in_flight, options.games
    piece = games // 20
    window = _marked(options, [piece, 2 * piece, games - piece, games])
    first, last = between(*window.marks[:2]), between(*window.marks[2:])
    settings = [f"--in-flight={n}", f"--latency-ms={options.latency_ms}", f"--games={games}"]
    fresh = run_alone("benchmarks.orchestration", ["--check=opening", *settings])
    return {
        "in_flight": n,
        "games": games,
        "turns_per_s_first": first["turns_per_s"],
        "turns_per_s_last": last["turns_per_s"],
        "turns_per_s_fresh": fresh["turns_per_s"],
        "cpu_ratio": last["cpu_ms_per_turn"] / fresh["cpu_ms_per_turn"],
        "time_ratio": fresh["turns_per_s"] / last["turns_per_s"],
        "cpu_ratio_raw": last["cpu_ms_per_turn"] / first["cpu_ms_per_turn"],
        "time_ratio_raw": first["turns_per_s"] / last["turns_per_s"],
        "rss_mb_first": first["rss_mb"],
        "rss_mb_last": last["rss_mb"],
        "memory_ratio": last["rss_mb"] / first["rss_mb"],
    }


def opening(options: argparse.Namespace) -> Result:
    """The second twentieth of `--games` in a run that ends there: what `flat` compares the last twentieth with."""
    piece = options.games // 20
    window = _marked(options, [piece, 2 * piece])
    return {"in_flight": options.in_flight, "games": 2 * piece, **between(*window.marks)}


def _marked(options: argparse.Namespace, bounds: Sequence[int]) -> Window:
    """Play on a cluster of its own until the last of `bounds`, with a mark at each of these numbers of games."""
    n = options.in_flight
    window = Window([after_games(bound) for bound in bounds])
    with local_cluster(n) as client:
        collect(client, vllm_config(n, options.latency_ms / 1000), n, window)
    return window


def level(options: argparse.Namespace) -> Result:
    """Games by engine over four equal engines, then with one of them four times slower."""
    n, latency_s = options.in_flight, options.latency_ms / 1000
    with local_cluster(n, WORKERS_LEVEL) as client:
        processes = client.run(os.getpid)
        slow = next(iter(processes))
        equal, uneven = timed(options.warm_up, options.seconds), timed(options.warm_up, options.seconds)
        collect(client, vllm_config(n, latency_s), n, equal)
        by_process = {str(processes[slow]): 4 * latency_s}
        reports = collect(client, vllm_config(n, latency_s, by_process), n, uneven).reports
    games, uneven_games = equal.by_worker[1], uneven.by_worker[1]
    others = [uneven_games[worker] for worker in processes if worker != slow]
    return {
        "in_flight": n,
        "latency_ms": options.latency_ms,
        "games_least": min(games.values()),
        "games_most": max(games.values()),
        "spread": max(games.values()) / min(games.values()) - 1,
        "slow_games": uneven_games[slow],
        "others_mean": statistics.fmean(others),
        "others_spread": max(others) / min(others) - 1,
        "speed_ratio": statistics.fmean(others) / uneven_games[slow],
        "fewest_running_games": min((report.running_games for _, report in reports), default=0),
        "share_of_an_engine": n // WORKERS_LEVEL,
    }


def first_game(options: argparse.Namespace) -> Result:
    """From `collect` to the first game's end on a cluster that is up."""
    n, latency_s = options.in_flight, options.latency_ms / 1000
    with local_cluster(n) as client:
        played = collect(client, vllm_config(n, latency_s), n, Window([after_games(1)]))
    return {"in_flight": n, "latency_ms": options.latency_ms, "first_game_s": played.first_game_s}


def prompts(options: argparse.Namespace) -> Result:
    """Milliseconds to make token ids of one prompt: prompt template, then chat template and tokenizer of a real model.

    The stub engine leaves this out; a real one does it on the loop that the games run on.
    """
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(resolve_model(options.model))
    kept = KeptGames([after_games(50)])
    play_without_dask(vllm_config(8, 0.0), 8, kept)
    observations = [step.observation for episode in kept.episodes[0] for step in episode.steps]
    template = prompt_template("default")
    started = time.process_time()
    chats = [template(observation) for observation in observations]
    templated = time.process_time()
    texts = [tokenizer.apply_chat_template(chat, add_generation_prompt=True, tokenize=False) for chat in chats]
    rendered = time.process_time()
    ids = [tokenizer.encode(text, add_special_tokens=False) for text in texts]
    encoded = time.process_time()
    each = 1000 / len(observations)
    return {
        "model": options.model,
        "tokens": statistics.fmean(map(len, ids)),
        "prompt_template_ms": (templated - started) * each,
        "chat_template_ms": (rendered - templated) * each,
        "tokenizer_ms": (encoded - rendered) * each,
        "cpu_ms_per_turn": (encoded - started) * each,
    }


CHECKS: dict[str, Callable[[argparse.Namespace], Result]] = {
    "steady": steady,
    "flat": flat,
    "opening": opening,
    "level": level,
    "first-game": first_game,
    "prompts": prompts,
}


def arguments() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", choices=CHECKS, default="steady")
    parser.add_argument("--in-flight", type=int, default=64, help="games executing at once")
    parser.add_argument("--latency-ms", type=float, default=50.0, help="the stub engine's time for a request")
    parser.add_argument("--seconds", type=float, default=20.0, help="length of the window")
    parser.add_argument("--warm-up", type=float, default=5.0, help="seconds of games before the window opens")
    parser.add_argument("--games", type=int, default=20_000, help="games of the checks `flat` and `opening`")
    parser.add_argument("--model", default="builtin:smollm2-135m-instruct", help="whose tokenizer `prompts` uses")
    add_repetition(parser)
    return parser


if __name__ == "__main__":
    run_check("benchmarks.orchestration", CHECKS, arguments())
