"""Clocks and scales: what a tree of processes has used, repeated runs, medians."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import psutil  # type: ignore[import-untyped]  # its stubs are a package of their own

MEGABYTE = 1e6

Result = dict[str, Any]


@dataclass(frozen=True)
class Mark:
    """Totals at one moment: when (monotonic seconds), what was played, CPU seconds and memory of all processes.

    `driver_cpu_s` is of this process alone. `pss_mb` is the proportional set size: shared pages are split between the
    processes that share them, so that the sum counts each once.
    """

    at: float
    games: int
    turns: int
    driver_cpu_s: float
    cpu_s: float
    pss_mb: float


def take_mark(games: int, turns: int) -> Mark:
    """Totals now, of this process and all its children."""
    me = psutil.Process()
    processes = [me, *me.children(recursive=True)]
    at = time.monotonic()
    cpu = [_cpu_s(process) for process in processes]
    pss = sum(process.memory_full_info().pss for process in processes)
    return Mark(at, games, turns, driver_cpu_s=cpu[0], cpu_s=sum(cpu), pss_mb=pss / MEGABYTE)


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def between(start: Mark, end: Mark) -> dict[str, float]:
    """What one window came to: rates per second, CPU per turn, memory at its end."""
    seconds, turns = end.at - start.at, end.turns - start.turns
    return {
        "turns_per_s": turns / seconds,
        "games_per_s": (end.games - start.games) / seconds,
        "cpu_ms_per_turn": 1000 * (end.cpu_s - start.cpu_s) / turns,
        "driver_cpu_ms_per_turn": 1000 * (end.driver_cpu_s - start.driver_cpu_s) / turns,
        "rss_mb": end.pss_mb,
    }


def add_repetition(parser: argparse.ArgumentParser) -> None:
    """The options that all benchmarks share."""
    parser.add_argument("--repeat", type=int, default=1, help="runs, each in processes of its own; medians are shown")
    parser.add_argument("--json", action="store_true", help="one JSON line")


def run_check(
    module: str, checks: Mapping[str, Callable[[argparse.Namespace], Result]], parser: argparse.ArgumentParser
) -> None:
    """The main function of a benchmark: run the check that `--check` names, once or several times, and print it."""
    options = parser.parse_args()
    if options.repeat == 1:
        result = checks[options.check](options)
    else:
        given = {name: value for name, value in vars(options).items() if name not in ("repeat", "json")}
        result = repeated(
            module, [f"--{name.replace('_', '-')}={value}" for name, value in given.items()], options.repeat
        )
    show(result, options.json)


def repeated(module: str, arguments: Sequence[str], times: int) -> Result:
    """Run `python -m module arguments` in a process of its own, `times` over; the median of every figure."""
    return medians([run_alone(module, arguments) for _ in range(times)]) | {"repeats": times}


def medians(runs: Sequence[Result]) -> Result:
    """The median of every figure; what is no number is the first run's."""
    return {name: _median([run[name] for run in runs]) for name in runs[0]}


def run_alone(module: str, arguments: Sequence[str]) -> Result:
    """Run `python -m module arguments` once, in a process of its own; its line goes to stderr, too, as progress."""
    command = [sys.executable, "-m", module, *arguments, "--json"]
    output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    line = output.splitlines()[-1]
    print(f"{module} {' '.join(arguments)}: {line}", file=sys.stderr, flush=True)
    result: Result = json.loads(line)
    return result


def _median(values: Sequence[Any]) -> Any:
    return median(values) if all(isinstance(value, int | float) for value in values) else values[0]


def show(result: Result, as_json: bool) -> None:
    """One JSON line, or a line per figure."""
    rounded = {name: float(f"{value:.6g}") if isinstance(value, float) else value for name, value in result.items()}
    if as_json:
        print(json.dumps(rounded))
    else:
        print("\n".join(f"{name:28} {value}" for name, value in rounded.items()))
