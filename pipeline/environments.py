"""Which environments there are, which of them can be played here, and which settings fit none: before anything starts.

The registry is TextArena's; `players.json` holds for how many players each of its games was found to play. Environments
are tried out in processes of their own, so that one that hangs or crashes costs nothing but its row.
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from queue import SimpleQueue
from typing import Protocol

from pipeline.env_trials import PATIENCE_S, Ending, TrialProcess, find_out
from tasks.calls import call_with_limit
from tasks.env_check import MOST_PLAYERS, Trial
from tasks.errors import ConfigError, EnvironmentFault, EnvironmentHungError
from tasks.game import check_env, check_env_id, registered_games
from tasks.names import nearest
from tasks.prompts import action_extraction, prompt_template

PLAYERS_FILE = Path(__file__).with_name("players.json")
FIRST_LOOK_S = 2.0
OK = "ok"


class EnvironmentSpec(Protocol):
    """What is checked of an environment's settings; `TrainEnvSpec` and `EvalEnvSpec` have it."""

    @property
    def env_id(self) -> str:
        """The registered id, or `package.module:EnvClass`."""
        ...

    @property
    def num_players(self) -> int:
        """How many play."""
        ...

    @property
    def env_kwargs(self) -> dict[str, object]:
        """Arguments for the environment."""
        ...

    @property
    def error_allowance(self) -> int | None:
        """Illegal moves in a row that a player may make; None: as the environment has it."""
        ...

    @property
    def prompt_template(self) -> str:
        """The name of the template that makes a prompt of an observation."""
        ...

    @property
    def action_extraction(self) -> str:
        """The name of the parser that makes an action of a completion."""
        ...


@dataclass(frozen=True)
class GameEntry:
    """One game of the registry. `players` are the numbers it plays with, up to `MOST_PLAYERS`; empty where unknown."""

    game: str
    env_id: str
    variants: tuple[str, ...]
    players: tuple[int, ...]


@dataclass(frozen=True)
class CheckedEnvironment:
    """What came of trying one environment. `status` is `ok` or the reason; `remedy` is empty when it is ok."""

    game: str
    env_id: str
    players: tuple[int, ...]
    status: str
    remedy: str


def list_games() -> list[GameEntry]:
    """Every game of the registry with its default id and its variants, by name."""
    known = _known_players()
    entries = []
    for game, ids in registered_games().items():
        default = next((env_id for env_id in ids if env_id == f"{game}-v0"), ids[0])
        entries.append(GameEntry(game, default, tuple(ids), known.get(game, ())))
    return sorted(entries, key=lambda entry: entry.game.lower())


def listing() -> str:
    """All games for people: default id, players, and its other ids."""
    rows = [("DEFAULT ID", "PLAYERS", "OTHER IDS")]
    for entry in list_games():
        others = [env_id for env_id in entry.variants if env_id != entry.env_id]
        rows.append((entry.env_id, players_text(entry.players), " ".join(others)))
    return "\n".join(f"{env_id:<30} {players:<16} {others}".rstrip() for env_id, players, others in rows)


def verdict(checked: CheckedEnvironment) -> str:
    """What came of one check, on one line for people."""
    if checked.status == OK:
        return f"ok   {checked.env_id}, {players_text(checked.players)} players"
    return f"no   {checked.env_id}: {checked.status}; {checked.remedy}"


def players_text(players: Sequence[int]) -> str:
    """`2`, `2–4`, `4 or more` (nothing was refused up to `MOST_PLAYERS`), `4–16, even`, or `?`."""
    if not players:
        return "?"
    first, last = players[0], players[-1]
    step = players[1] - first if len(players) > 1 else 1
    if tuple(players) != tuple(range(first, last + 1, step)) or step > 2:
        return ", ".join(map(str, players))
    if first == last:
        return str(first)
    span = f"{first} or more" if last + step > MOST_PLAYERS else f"{first}–{last}"
    return span if step == 1 else f"{span}, {'odd' if first % 2 else 'even'}"


def check_environments(
    pattern: str | None = None,
    *,
    time_limit_s: float = PATIENCE_S,
    processes: int = 2,
    on_checked: Callable[[CheckedEnvironment], None] = lambda checked: None,
) -> list[CheckedEnvironment]:
    """Make, reset and play environments with the scripted random agent.

    Args:
        pattern: ids to try, `*` and `?` allowed, or the user's own `package.module:EnvClass`; None tries the default
            variant of every game.
        time_limit_s: for each attempt; an environment is tried with several numbers of players.
        processes: how many to try at a time.
        on_checked: told of each as it is done.

    Raises:
        ConfigError: no environment has such an id.
    """
    chosen = _chosen(pattern)
    free: SimpleQueue[TrialProcess] = SimpleQueue()

    def check(of: tuple[str, str]) -> CheckedEnvironment:
        """One environment, given with its game's name, in whichever process is free."""
        game, env_id = of
        process = free.get()
        found = find_out(process, env_id)
        free.put(process)
        checked = CheckedEnvironment(game, env_id, found.players, found.reason or OK, found.remedy)
        on_checked(checked)
        return checked

    with ExitStack() as stack:
        for _ in range(min(processes, len(chosen))):
            free.put(stack.enter_context(TrialProcess(time_limit_s)))
        pool = stack.enter_context(ThreadPoolExecutor(processes))
        return list(pool.map(check, chosen))


def check_environments_of(specs: Iterable[EnvironmentSpec], *, played_here: bool = False) -> None:
    """Refuse settings that no game could be played with, in milliseconds for most environments.

    What is slow to make is looked at for `FIRST_LOOK_S` seconds and then left to the games. The user's own classes are
    looked at in a process of its own, whose start takes a second or two; their modules may be on the workers only, and
    are then left to them.

    Args:
        specs: the environments of a run.
        played_here: games are played on this machine, so that what is missing here is missing there.

    Raises:
        ConfigError: unknown id, prompt template or action extraction (names the nearest), a number of players that the
            environment refuses, an `error_allowance` where there is none, a user's environment that ends its process;
            with `played_here`, an environment that cannot be made.
    """
    seen: set[str] = set()
    with TrialProcess(FIRST_LOOK_S) as process:
        for spec in specs:
            for name, look_up in ((spec.prompt_template, prompt_template), (spec.action_extraction, action_extraction)):
                if _is_here(name):
                    look_up(name)
            try:
                check_env_id(spec.env_id)
            except EnvironmentFault as fault:
                raise ConfigError(str(fault)) from None
            trial = Trial(spec.env_id, spec.num_players, dict(spec.env_kwargs), spec.error_allowance)
            if repr(trial) not in seen and _is_here(spec.env_id):
                seen.add(repr(trial))
                _check_playable(trial, played_here, process)


def _check_playable(trial: Trial, played_here: bool, process: TrialProcess) -> None:
    """Refuse by what is known of the game, then by making it once."""
    known = _known_for(trial)
    if known and trial.num_players <= MOST_PLAYERS and trial.num_players not in known:
        raise ConfigError(_wrong_count(trial, known))
    fault = _first_look(trial, process)
    if fault is None:
        return
    if trial.error_allowance is not None and _first_look(replace(trial, error_allowance=None), process) is None:
        raise ConfigError(fault)
    others = [count for count in range(1, MOST_PLAYERS + 1) if count != trial.num_players]
    allowed = tuple(count for count in others if _first_look(replace(trial, num_players=count), process) is None)
    if allowed:
        raise ConfigError(_wrong_count(trial, allowed))
    if played_here:
        raise ConfigError(fault)


def _first_look(trial: Trial, process: TrialProcess) -> str | None:
    """What is wrong with it, None when nothing is or when it takes too long to tell.

    The user's own class is looked at in `process`, which it may bring down: this one has a run to set up.

    Raises:
        ConfigError: it brought the process down.
    """
    if ":" in trial.env_id:
        attempt = process.attempt("look", trial)
        if attempt.ending is Ending.CRASHED:
            raise ConfigError(
                f"{trial.env_id} {attempt.reason} when it was made and reset for {trial.num_players} players; expected "
                "exceptions for what goes wrong: it would end workers likewise, and all their games. Mend or remove it."
            )
        return attempt.reason if attempt.ending is Ending.FAULT else None
    try:
        call_with_limit(lambda: check_env(trial), trial.env_id, FIRST_LOOK_S)
    except EnvironmentHungError:
        return None
    except EnvironmentFault as fault:
        return str(fault)
    return None


def _wrong_count(trial: Trial, allowed: Sequence[int]) -> str:
    return f"num_players is {trial.num_players}, but {trial.env_id} is played with {players_text(allowed)}; set it so."


def _is_here(name: str) -> bool:
    """Whether the module of `package.module:Name` may be looked for here; true for short names."""
    return ":" not in name or importlib.util.find_spec(name.partition(".")[0].partition(":")[0]) is not None


def _known_for(trial: Trial) -> tuple[int, ...]:
    """The numbers of players for the default variant of a game as it is; () for others, which may have their own."""
    for entry in list_games():
        if trial.env_id in (entry.env_id, f"{entry.env_id}-train", f"{entry.env_id}-raw") and not trial.env_kwargs:
            return entry.players
    return ()


def _chosen(pattern: str | None) -> list[tuple[str, str]]:
    """Game and id of each environment to check."""
    games = list_games()
    if pattern is None:
        return [(entry.game, entry.env_id) for entry in games]
    if ":" in pattern:
        return [(pattern.partition(":")[2], pattern)]
    ids = [(entry.game, env_id) for entry in games for env_id in entry.variants]
    chosen = [(game, env_id) for game, env_id in ids if fnmatchcase(env_id, pattern)]
    if not chosen:
        raise ConfigError(
            f"no environment's id matches {pattern!r}; `selfplay envs` lists them."
            f"{nearest(pattern, [env_id for _, env_id in ids])}"
        )
    return chosen


@cache
def _known_players() -> dict[str, tuple[int, ...]]:
    return {game: tuple(players) for game, players in json.loads(PLAYERS_FILE.read_text(encoding="utf-8")).items()}
