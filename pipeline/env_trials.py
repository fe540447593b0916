"""Tries one environment out in a process of its own, and says in plain words what is in its way and how to mend it."""

from __future__ import annotations

import json
import os
import re
import select
import signal
import subprocess
import sys
from collections import Counter
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import IO

from tasks.env_check import MOST_PLAYERS, Trial
from tasks.errors import EnvironmentFault
from tasks.game import source_of

PATIENCE_S = 60.0
START_S = 60.0
MAX_HANGS = 2
_UNPLAYABLE = re.compile(r"could not be (imported|made)")

# What a failure's text looks like, the reason to give, and the remedy; \1 is the pattern's first group.
_DIAGNOSES = (
    (r"Resource '?(\w+)'? not found", r"needs NLTK's data `\1`", r"`python -m nltk.downloader \1` on every worker"),
    (
        r"OPENROUTER_API_KEY",
        "needs an OpenRouter key",
        "set `OPENROUTER_API_KEY` where games are played: a model judges or answers there, which costs money",
    ),
    (
        r"No module named 'textarena\.([\w.]+)'",
        r"TextArena's package lacks its module `textarena.\1`",
        "leave it out; TextArena's repository may have it",
    ),
    (r"No module named '([\w.]+)'", r"needs the module `\1`", r"install `\1` on every worker"),
    (
        r"FileNotFoundError.*textarena[/\\]envs[/\\]([\w./\\-]*\w)",
        r"TextArena's package lacks its file `\1`",
        "take the file from TextArena's repository, or leave it out",
    ),
)


class Ending(StrEnum):
    """What became of one attempt. `FAULT`: it was answered with the reason of a failure."""

    FINE = "fine"
    FAULT = "fault"
    HUNG = "hung"
    CRASHED = "crashed"


@dataclass(frozen=True)
class Attempt:
    """How one attempt ended. `reason` is empty where it is fine."""

    ending: Ending
    reason: str = ""


@dataclass(frozen=True)
class Findings:
    """For how many players an environment can be played, or why not. `reason` and `remedy` are empty when it can."""

    players: tuple[int, ...]
    reason: str = ""
    remedy: str = ""


class TrialProcess:
    """A process that tries environments, started when it is needed and again when it had to be ended.

    Args:
        limit_s: how long one attempt may take.
    """

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> TrialProcess:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._end()

    def attempt(self, task: str, trial: Trial) -> Attempt:
        """Try a first `look`, some `moves` or a whole `game`.

        Raises:
            EnvironmentFault: no process could be started.
        """
        requests, answers = self._pipes()
        requests.write(json.dumps({"task": task, "trial": asdict(trial)}) + "\n")
        requests.flush()
        line = self._line(answers, self._limit_s)
        if line is None:
            self._end()
            return Attempt(Ending.HUNG, f"did not come back within {self._limit_s:g} s")
        if not line:
            return Attempt(Ending.CRASHED, f"brought its process down ({_in_words(self._end())})")
        reason: str = json.loads(line)
        return Attempt(Ending.FAULT if reason else Ending.FINE, reason)

    def _line(self, answers: IO[str], limit_s: float) -> str | None:
        """The next line, empty at the process's end; None when there is none in time."""
        return answers.readline() if select.select([answers], [], [], limit_s)[0] else None

    def _pipes(self) -> tuple[IO[str], IO[str]]:
        if self._process is None:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tasks.env_check"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)},
            )
            if self._process.stdout is None or not self._line(self._process.stdout, START_S):
                raise EnvironmentFault(f"`{sys.executable} -m tasks.env_check` did not start within {START_S:g} s")
        stdin, stdout = self._process.stdin, self._process.stdout
        if stdin is None or stdout is None:
            raise RuntimeError("the process was started without pipes")
        return stdin, stdout

    def _end(self) -> int:
        process, self._process = self._process, None
        if process is None:
            return 0
        process.kill()
        with process:
            return process.wait()


def find_out(process: TrialProcess, env_id: str) -> Findings:
    """Try all numbers of players for a few moves, then the fewest and the most for a whole game.

    After `MAX_HANGS` attempts that hang, higher numbers are not tried: each would take as long.
    """
    failures: dict[int, str] = {}
    hangs = 0
    for count in range(1, MOST_PLAYERS + 1):
        attempt = process.attempt("moves", Trial(env_id, count))
        failures[count] = attempt.reason
        if _UNPLAYABLE.search(attempt.reason):
            return Findings(players_in_source(env_id), *diagnosis(attempt.reason))
        hangs += attempt.ending is Ending.HUNG
        if hangs == MAX_HANGS:
            break
    players = tuple(count for count, reason in failures.items() if not reason)
    if not players:
        return Findings(players_in_source(env_id), *diagnosis(Counter(failures.values()).most_common(1)[0][0]))
    for count in dict.fromkeys((players[0], players[-1])):
        reason = process.attempt("game", Trial(env_id, count)).reason
        if reason:
            return Findings(players, *diagnosis(reason))
    return Findings(players)


def diagnosis(failure: str) -> tuple[str, str]:
    """Reason and remedy, each on one line and without paths of this machine."""
    if "SyntaxError" in failure and sys.version_info < (3, 12):
        return "needs Python 3.12", "use Python 3.12 or newer on workers and driver"
    for pattern, reason, remedy in _DIAGNOSES:
        match = re.search(pattern, failure)
        if match:
            return match.expand(reason), match.expand(remedy)
    return _one_line(failure), "leave it out; the fault is the environment's own"


def players_in_source(env_id: str) -> tuple[int, ...]:
    """What the environment's source says of the number of players, for one that cannot be made here; () if nothing."""
    source = source_of(env_id)
    bounds = re.search(r"(\d+)\s*<=\s*num_players\s*<=\s*(\d+)", source)
    if bounds:
        return tuple(range(int(bounds[1]), int(bounds[2]) + 1))
    exactly = re.search(r"num_players\s*==\s*(\d+)", source)
    if exactly:
        return (int(exactly[1]),)
    return (1,) if "SinglePlayerState(" in source else (2,) if "TwoPlayerState(" in source else ()


def _in_words(exit_code: int) -> str:
    """`exit status 3`, or `exit status -11, SIGSEGV` for a process that a signal ended."""
    name = f", {signal.Signals(-exit_code).name}" if exit_code < 0 else ""
    return f"exit status {exit_code}{name}"


def _one_line(text: str) -> str:
    without_paths = re.sub(r"(?:/[\w.@+-]+){2,}/", "…/", text)
    return " ".join(without_paths.split()).replace("|", "/")[:200]
