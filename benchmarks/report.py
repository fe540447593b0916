"""Runs the benchmarks of orchestration and shards one after the other and prints the tables of `README.md`.

`python -m benchmarks.report` takes half an hour on a machine that does nothing else; `--engine` adds the real engine's,
which takes longer still. Every table appears as soon as its runs are done.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence

from benchmarks.measure import Result, repeated

ORCHESTRATION = "benchmarks.orchestration"
SHARDS = "benchmarks.shards"
ENGINE = "benchmarks.engine_efficiency"
# Games in flight and what is asked of them: a share and its floor, and the most memory in MB.
FLOORS = {
    16: ("ideal_share", 0.93, 600),
    64: ("ideal_share", 0.88, 600),
    256: ("no_dask_share", 0.50, 700),
    1024: ("no_dask_share", 0.35, 1000),
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
    """The main table: one row per number of games in flight."""
    for in_flight, (share, floor, most_mb) in FLOORS.items():
        # All games begin at once: the window opens when their ends have spread out.
        options = [f"--in-flight={in_flight}", f"--seconds={seconds}", f"--warm-up={5 if in_flight < 1000 else 12}"]
        run = repeated(ORCHESTRATION, options, repeat)
        holds = run[share] >= floor and run["rss_mb"] <= most_mb
        asked = f"{share} ≥ {floor}, MB ≤ {most_mb}"
        names = ("turns_per_s", "ideal_share", "no_dask_share", "cpu_ms_per_turn", "no_dask_cpu_ms_per_turn", "rss_mb")
        yield (in_flight, *(run[name] for name in names), asked, "yes" if holds else "no")


def engine_runs(repeat: int) -> Iterator[Result]:
    """Both models, LoRA off and on. A turn of the small model takes seconds."""
    for model, seconds, prompts in (("tiny", 30, 1000), ("builtin:smollm2-135m-instruct", 240, 100)):
        for lora in (0, 1):
            options = [f"--model={model}", f"--lora={lora}", f"--seconds={seconds}", f"--prompts={prompts}"]
            yield repeated(ENGINE, options, repeat)


def main() -> None:
    """Print all tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeat", type=int, default=3, help="runs of each; medians are shown")
    parser.add_argument("--seconds", type=float, default=20.0, help="length of a window")
    parser.add_argument("--engine", action="store_true", help="the real engine, too")
    options = parser.parse_args()
    repeat = options.repeat
    header = (
        "in flight",
        "turns/s",
        "ideal share",
        "no-Dask share",
        "CPU ms/turn",
        "without Dask",
        "MB",
        "asked",
        "holds",
    )
    table(header, steady(repeat, options.seconds))
    for module, arguments, runs in (
        (ORCHESTRATION, ["--check=prompts"], repeat),
        (ORCHESTRATION, ["--check=first-game"], repeat),
        (ORCHESTRATION, ["--check=level"], repeat),
        (ORCHESTRATION, ["--check=flat", "--latency-ms=10"], 1),
        (SHARDS, ["--check=formats", "--steps=20000"], repeat),
        (SHARDS, ["--check=settings", "--steps=2000"], repeat),
        (SHARDS, ["--check=beside-games", "--steps=100000"], 1),
    ):
        table((" ".join(arguments), ""), iter(repeated(module, arguments, runs).items()))
    if options.engine:
        for run in engine_runs(repeat):
            table(("engine", ""), iter(run.items()))


if __name__ == "__main__":
    main()
