"""Runs the benchmarks one after the other and prints the tables of `README.md`.

`python -m benchmarks.report` takes forty minutes on a machine that does nothing else; `--models` runs those of a real
engine and a real learner instead, about two hours by the sum of its parts. Every table appears as soon as its runs are
done, and the line of every run on stderr before that.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from statistics import median

from benchmarks.measure import Result, medians, repeated, run_alone

ORCHESTRATION = "benchmarks.orchestration"
SHARDS = "benchmarks.shards"
VERIFY = "benchmarks.verify"
ENGINE = "benchmarks.engine_efficiency"
LEARNER = "benchmarks.learner"
FIGURES = {
    "turns_per_s": "turns/s",
    "share_of_256": "of turns at 256",
    "ideal_share": "ideal share",
    "no_dask_share": "no-Dask share",
    "cpu_ms_per_turn": "CPU ms/turn",
    "no_dask_cpu_ms_per_turn": "without Dask",
    "rss_mb": "MB",
}
HEADER = ("in flight", *FIGURES.values(), "asked", "holds")
# By games in flight: the least and the most that is asked of a figure.
LEAST: dict[int, dict[str, float]] = {
    16: {"ideal_share": 0.93},
    64: {"ideal_share": 0.88},
    256: {"no_dask_share": 0.50},
    1024: {"no_dask_share": 0.35, "share_of_256": 0.90},
}
MOST: dict[int, dict[str, float]] = {
    16: {"rss_mb": 600},
    64: {"rss_mb": 600},
    256: {"rss_mb": 700, "cpu_ms_per_turn": 0.6},
    1024: {"rss_mb": 1000},
}


def table(header: Sequence[str], rows: Iterator[Sequence[object]]) -> None:
    """Print a Markdown table, row by row."""
    print(f"\n| {' | '.join(header)} |\n|{'---|' * len(header)}", flush=True)
    for row in rows:
        print(f"| {' | '.join(map(_text, row))} |", flush=True)


def _text(value: object) -> str:
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.2f}" if abs(value) >= 10 else f"{value:.3f}"
    return str(value)


def steady(repeat: int, seconds: float) -> Iterator[Sequence[object]]:
    """The main table: one row per number of games in flight, all of them played once before any is played again.

    So that rows can be compared on a machine whose speed changes; `share_of_256` is the median of the rounds' own.
    """
    rounds = [{n: _steady_run(n, seconds) for n in LEAST} for _ in range(repeat)]
    for in_flight, least in LEAST.items():
        run = medians([one[in_flight] for one in rounds])
        run["share_of_256"] = median(one[in_flight]["turns_per_s"] / one[256]["turns_per_s"] for one in rounds)
        most = MOST[in_flight]
        holds = all(run[name] >= value for name, value in least.items())
        holds &= all(run[name] <= value for name, value in most.items())
        asked = ", ".join(
            [f"{name} ≥ {value}" for name, value in least.items()]
            + [f"{name} ≤ {value}" for name, value in most.items()]
        )
        yield (in_flight, *(run[name] for name in FIGURES), asked, "yes" if holds else "no")


def _steady_run(in_flight: int, seconds: float) -> Result:
    # All games begin at once: the window opens when their ends have spread out.
    warm_up = 5 if in_flight < 1000 else 12
    return run_alone(ORCHESTRATION, [f"--in-flight={in_flight}", f"--seconds={seconds}", f"--warm-up={warm_up}"])


def stub_runs(repeat: int) -> Iterator[tuple[str, Result]]:
    """The other questions that need no model."""
    for module, arguments in (
        (ORCHESTRATION, ["--check=prompts"]),
        (ORCHESTRATION, ["--check=first-game"]),
        (ORCHESTRATION, ["--check=level"]),
        (ORCHESTRATION, ["--check=flat", "--latency-ms=10"]),
        (SHARDS, ["--check=formats", "--steps=20000"]),
        (SHARDS, ["--check=settings", "--steps=2000"]),
        (SHARDS, ["--check=beside-games", "--steps=100000"]),
        (VERIFY, []),
    ):
        yield f"{module} {' '.join(arguments)}", repeated(module, arguments, repeat)


def model_runs(repeat: int) -> Iterator[tuple[str, Result]]:
    """Both models, an adapter off and on; then the learner.

    With an adapter a batch of 16 of the small model takes minutes.
    """
    tiny = ["--model=tiny", "--rounds=4", "--seconds=15"]
    small = ["--model=builtin:smollm2-135m-instruct", "--rounds=1", "--seconds=40", "--warm-up=20"]
    for options in (
        [*tiny, "--engine-cores=1", "--lora=0"],
        [*tiny, "--engine-cores=1", "--lora=1"],
        [*tiny, "--lora=0"],
        [*tiny, "--lora=1"],
        [*small, "--lora=0"],
        [*small, "--lora=1", "--in-flight=16", "--batch=8"],
    ):
        yield f"{ENGINE} {' '.join(options)}", repeated(ENGINE, options, repeat)
    yield LEARNER, run_alone(LEARNER, [f"--repeat={repeat}"])


def main() -> None:
    """Print all tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeat", type=int, default=3, help="runs of each; medians are shown")
    parser.add_argument("--seconds", type=float, default=20.0, help="length of a window")
    parser.add_argument("--models", action="store_true", help="what needs a real engine or learner")
    options = parser.parse_args()
    if options.models:
        runs = model_runs(options.repeat)
    else:
        table(HEADER, steady(options.repeat, options.seconds))
        runs = stub_runs(options.repeat)
    for name, result in runs:
        table((name, ""), iter(result.items()))


if __name__ == "__main__":
    main()
