"""One TextArena game: make, seed in isolation, observe, step, close. The only TextArena import.

Everything foreign runs inside `_foreign`, which gives it the game's own random numbers and turns what it raises into
`EnvironmentFault`.
"""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import re
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from numbers import Real
from pathlib import Path
from typing import Any, Protocol

from tasks.calls import EnvironmentCalls, held
from tasks.contracts import GameSpec
from tasks.errors import EnvironmentFault, boundary
from tasks.json_text import to_json
from tasks.lean_imports import without
from tasks.names import nearest
from tasks.randomness import GameGenerators, isolate

# TextArena loads NLTK for its lists of words, and NLTK these where they are: 60 MB and a second in every process.
with without("scipy", "sklearn"):
    import textarena
    from textarena.envs.registration import ENV_REGISTRY
    from textarena.wrappers import LLMObservationWrapper

_making: dict[str, threading.Lock] = {}  # by environment package, once it is isolated
MAX_FAULT_LENGTH = 1000
_ADVICE = "The game ends as failed; if it keeps happening, leave this environment out."


@dataclass(frozen=True)
class Move:
    """What the environment made of one action. `info` is its step info as JSON text."""

    done: bool
    illegal: bool
    info: str


@dataclass(frozen=True)
class GameResult:
    """How a game ended; the fields are `Episode`'s of the same name."""

    rewards: tuple[float | None, ...]
    offender: int | None
    reason: str
    player_info: tuple[str, ...]


class EnvironmentSettings(Protocol):
    """What it takes to make one environment; a `GameSpec` and the driver's environment specs have it."""

    @property
    def env_id(self) -> str:
        """The registered id, or `package.module:EnvClass`."""
        ...

    @property
    def num_players(self) -> int:
        """How many play."""
        ...

    @property
    def env_kwargs(self) -> Mapping[str, Any]:
        """Arguments for the environment."""
        ...

    @property
    def error_allowance(self) -> int | None:
        """Illegal moves in a row that a player may make; None: as the environment has it."""
        ...


def known_env_ids() -> tuple[str, ...]:
    """All registered environment ids, sorted."""
    return tuple(sorted(ENV_REGISTRY))


def registered_games() -> dict[str, list[str]]:
    """The registered ids by game, in TextArena's order. Ids of one game share their class and begin with its name."""
    by_class: dict[Any, list[str]] = {}
    for env_id, entry in ENV_REGISTRY.items():
        by_class.setdefault(entry.entry_point, []).append(env_id)
    return {re.split(r"-v\d", ids[0])[0]: ids for ids in by_class.values()}


def source_of(env_id: str) -> str:
    """The source of an environment's module, whether or not it can be imported; empty where there is none."""
    package, _, module = str(_entry_point(env_id)).partition(":")[0].partition(".")
    found = importlib.util.find_spec(package)
    for folder in (found.submodule_search_locations if found is not None else None) or ():
        file = Path(folder, *module.split(".")).with_suffix(".py")
        if file.is_file():
            return file.read_text(encoding="utf-8")
    return ""


def check_env_id(env_id: str) -> None:
    """See that an id is registered, or has the form of a user's own class, `package.module:EnvClass`.

    Raises:
        EnvironmentFault: it is neither; names the nearest.
    """
    if env_id not in ENV_REGISTRY and not all(env_id.partition(":")):
        raise EnvironmentFault(
            f"unknown env_id {env_id!r}: not among TextArena's {len(ENV_REGISTRY)} registered environments, nor of the "
            f"form package.module:EnvClass.{nearest(env_id, ENV_REGISTRY)}"
        )


def check_env(settings: EnvironmentSettings) -> None:
    """Make and reset the environment once, as its games would; takes as long as that does (some take seconds).

    Raises:
        EnvironmentFault: unknown id (names the nearest), cannot be made or reset, or has no `error_allowance` to set.
    """
    Game(settings, seed=0).observe()


class Game:
    """One game on a fresh environment. Not shared between threads at a time; opened with `await Game.open(spec)`."""

    def __init__(self, settings: EnvironmentSettings, seed: int, may_wait: bool = True) -> None:
        """Make and reset; may take seconds, see `open`. `MustWaitError` where it would have to wait and may not."""
        self._env_id = settings.env_id
        self._num_players = settings.num_players
        self._generators = GameGenerators(seed)
        self._offence: int | None = None
        self._illegal = False
        self._offender: int | None = None
        self._make(settings, seed, may_wait)
        self._state: Any = getattr(self._env, "state", None)  # TextArena's interface asks for none
        self._refuse_one_among_many()
        self._allow_errors(settings.error_allowance)
        self._watch_illegal_moves()

    @classmethod
    async def open(cls, spec: GameSpec) -> Game:
        """Make and reset the environment of `spec`, in a thread unless that is known to be quick: some take seconds.

        Raises:
            EnvironmentFault: unknown id, cannot be made or reset, or has no `error_allowance` to set.
            EnvironmentHungError: making it did not come back in time.
        """
        return await EnvironmentCalls(spec.env_id).make(lambda may_wait: cls(spec, spec.seed, may_wait))

    def observe(self) -> tuple[int, str]:
        """Whose turn it is, and what that player sees: all so far or what is new, as the environment's id has it.

        Raises:
            EnvironmentFault: the environment raised, or names a player the game does not have.
        """
        with self._foreign("observed", _ADVICE):
            player_id, observation = self._env.get_observation()
        if player_id not in range(self._num_players):
            raise EnvironmentFault(
                f"{self._env_id} asks player {player_id!r} to move; expected 0 to {self._num_players - 1}. {_ADVICE}"
            )
        return int(player_id), _text(observation)

    def step(self, action: str) -> Move:
        """Play one action for the player whose turn it is.

        Raises:
            EnvironmentFault: the environment raised.
        """
        self._illegal, self._offence = False, None
        with self._foreign("stepped", _ADVICE):
            done, info = self._env.step(action)
        if done:
            self._offender = self._offence
        return Move(bool(done), self._illegal, to_json(info))

    def close(self) -> GameResult:
        """Rewards and closing information of a game that is done.

        A reward that is no number is None, like one that is missing: some games pay their reason for an illegal move.
        Information on a player that is no mapping is kept under `info`, and names no reason.

        Raises:
            EnvironmentFault: the environment raised, or gives no rewards and information by player.
        """
        players = range(self._num_players)
        with self._foreign("closed", _ADVICE):
            rewards, game_info = self._env.close()
            by_player = [(rewards or {}).get(player) for player in players]
            if rewards and not any(player in rewards for player in players):
                raise LookupError(f"it pays {list(rewards)}, expected players of 0 to {players[-1]}")
            raw = tuple(float(reward) if isinstance(reward, Real) else None for reward in by_player)
            about = [_as_mapping((game_info or {}).get(player)) for player in players]
            reasons = [info["reason"] for info in about if info.get("reason")]
        return GameResult(
            rewards=raw,
            offender=self._offender,
            reason=str(reasons[0]) if reasons else "",
            player_info=tuple(to_json(info) for info in about),
        )

    def _make(self, settings: EnvironmentSettings, seed: int, may_wait: bool) -> None:
        check_env_id(settings.env_id)
        with self._foreign("imported", "Install what it needs where the games are played, or leave it out."):
            making = _ready_to_make(_entry_point(settings.env_id))
        with held(making, may_wait):
            with self._foreign("made", "Check env_kwargs, and that what it needs is there where the games are played."):
                self._env = _new_env(settings)
            with self._foreign("reset", f"Check num_players={self._num_players} against its rules, and env_kwargs."):
                self._env.reset(num_players=self._num_players, seed=seed)

    def _refuse_one_among_many(self) -> None:
        """A free-for-all with one player would look for the next one for ever, once that one is out."""
        if self._num_players < 2 and isinstance(self._state, textarena.FFAMultiPlayerState):
            raise EnvironmentFault(f"{self._env_id} is a game of several players; got num_players={self._num_players}.")

    def _allow_errors(self, error_allowance: int | None) -> None:
        """Set how many illegal moves in a row a player may make; environments reset theirs in `reset`."""
        if error_allowance is None:
            return
        if not hasattr(self._state, "error_allowance"):
            raise EnvironmentFault(
                f"{self._env_id} has no error_allowance to set to {error_allowance}; leave it unset for this game."
            )
        self._state.error_allowance = error_allowance

    def _watch_illegal_moves(self) -> None:
        """Note every illegal move the environment's state is told of, and the one that spends the allowance.

        Two-player and single-player states end the game then; others flag or eliminate the player, return True, and
        leave the rest to the environment.
        """
        state = self._state
        if not hasattr(state, "set_invalid_move"):
            return
        told = state.set_invalid_move

        def watched(*args: Any, **kwargs: Any) -> Any:
            """What the state does when told, noted."""
            player_id = state.current_player_id
            answer = told(*args, **kwargs)
            self._illegal = True
            if answer is not False and state.game_info.get(player_id, {}).get("invalid_move"):
                self._offence = player_id
            return answer

        state.set_invalid_move = watched

    @contextmanager
    def _foreign(self, done: str, advice: str) -> Iterator[None]:
        """Run environment code with this game's random numbers; what it raises becomes `EnvironmentFault`."""
        with boundary() as caught, self._generators.bound():
            try:
                yield
            except (SystemExit, StopIteration, GeneratorExit, asyncio.CancelledError) as odd:
                # They would end the thread or the loop that plays, be lost on their way out of a generator, or pass for
                # the game's own cancellation, which never arrives within a synchronous call.
                raise RuntimeError(f"it raised {odd!r}") from None
        if caught.error is not None:
            # One line: some environments raise paragraphs.
            said = " ".join(caught.summary.split())
            if len(said) > MAX_FAULT_LENGTH:
                said = f"{said[:MAX_FAULT_LENGTH]}..."
            raise EnvironmentFault(f"{self._env_id} could not be {done}: {said}. {advice}") from caught.error


def _entry_point(env_id: str) -> Any:
    return ENV_REGISTRY[env_id].entry_point if env_id in ENV_REGISTRY else env_id


def _new_env(settings: EnvironmentSettings) -> Any:
    """A registered environment as its id has it, or an object of the user's own class."""
    if settings.env_id in ENV_REGISTRY:
        return textarena.make(settings.env_id, **settings.env_kwargs)
    module_name, _, class_name = settings.env_id.partition(":")
    env = getattr(importlib.import_module(module_name), class_name)(**settings.env_kwargs)
    return env if isinstance(env, textarena.Wrapper) else _AllSoFar(env)


class _AllSoFar(LLMObservationWrapper):  # type: ignore[misc]
    """Shows a player all messages so far, like TextArena's default; an observation that is text already stays."""

    def observation(self, player_id: int, observation: Any) -> Any:
        """The observation as text."""
        if isinstance(observation, str):
            return observation
        return super().observation(player_id, observation)


def _silence(package: str) -> None:
    """Let TextArena's own environments print to nowhere: some draw their boards on every move.

    Their modules get a `print` of their own, since redirecting the output would take everybody's.
    """
    for name, module in list(sys.modules.items()):
        if name.startswith("textarena.envs.") and name.startswith(package):
            vars(module).setdefault("print", lambda *args, **kwargs: None)


def _ready_to_make(entry_point: Any) -> threading.Lock:
    """Import and isolate the environment's package, the folder its module lies in; the lock to make and reset it under.

    Some environments work on module globals while they are reset (Sokoban's search), so one at a time per package.
    """
    module_name = entry_point.partition(":")[0] if isinstance(entry_point, str) else entry_point.__module__
    package = importlib.import_module(module_name).__package__ or module_name
    if package not in _making:
        isolate(package)
        _silence(package)
    return _making.setdefault(package, threading.Lock())


def _as_mapping(info: Any) -> Mapping[str, Any]:
    if isinstance(info, Mapping):
        return info
    return {} if info is None else {"info": info}


def _text(observation: Any) -> str:
    """The observation as text. Raw environments give (sender, message, kind) for each new message."""
    if isinstance(observation, list):
        return "\n".join(_line(message) for message in observation)
    return str(observation)


def _line(message: Any) -> str:
    if not (isinstance(message, tuple) and len(message) == 3):
        return str(message)
    sender, text, _ = message
    return f"[{'GAME' if sender == textarena.GAME_ID else f'Player {sender}'}] {text}"


def _let_old_calls_pass() -> None:
    """Give messages a type where a game names none: CharacterConclave calls `add_observation` as it once was."""
    add_observation = textarena.State.add_observation
    if add_observation.__defaults__ == (textarena.GAME_ID, -1):
        add_observation.__defaults__ = (textarena.ObservationType.GAME_MESSAGE, textarena.GAME_ID, -1)


isolate("textarena")
_let_old_calls_pass()
