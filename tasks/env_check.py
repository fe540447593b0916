"""Tries environments out: can one be made, for how many players, does a scripted game get through.

As a program it answers requests on its standard input, one line of JSON each, so that whoever asks can end it when an
environment hangs or brings the process down.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from tasks.agents import readable_moves
from tasks.contracts import AgentSpec, GameSpec, Mode, ModelKind, ModelRef, Role, Status
from tasks.errors import SelfplayError, boundary
from tasks.game import Game, check_env
from tasks.play import play_game

MOST_PLAYERS = 16
SOME_MOVES = 20
MAX_TURNS = 200
READY = "ready"


@dataclass(frozen=True)
class Trial:
    """What to try: one environment for one number of players. The fields are `GameSpec`'s of the same name."""

    env_id: str
    num_players: int
    env_kwargs: Mapping[str, Any] = field(default_factory=dict)
    error_allowance: int | None = None


def some_moves(trial: Trial) -> None:
    """Make and reset the environment and play a few scripted moves.

    Raises:
        EnvironmentFault: it cannot be made or reset for so many players, or fails within those moves.
    """
    rng = random.Random(0)
    game = Game(trial, seed=0)
    for _ in range(SOME_MOVES):
        _, observation = game.observe()
        if game.step(rng.choice(readable_moves(observation))).done:
            return


def whole_game(trial: Trial) -> str:
    """Play one game with the scripted random agent, of at most `MAX_TURNS` turns.

    Returns:
        Why it failed; empty when it did not.
    """
    scripted = ModelRef("scripted:random", ModelKind.SCRIPTED)
    agents = tuple(AgentSpec(player, Role.ACTOR, scripted) for player in range(trial.num_players))
    spec = GameSpec("check", "check", Mode.EVAL, seed=0, agents=agents, max_turns=MAX_TURNS, **asdict(trial))
    episode = asyncio.run(play_game(spec, None))
    return episode.reason if episode.status in (Status.FAILED, Status.TIMEOUT) else ""


def answer(request: str) -> str:
    """One line for one line: `{"task": "look" | "moves" | "game", "trial": {...}}` to why it failed, as JSON text."""
    asked = json.loads(request)
    trial = Trial(**asked["trial"])
    if asked["task"] == "game":
        return json.dumps(whole_game(trial))
    try:
        with boundary() as caught:
            (check_env if asked["task"] == "look" else some_moves)(trial)
    except SelfplayError as error:
        return json.dumps(str(error))
    return json.dumps(caught.summary)


def main() -> None:
    """Say `READY`, then answer until the input ends. What environments print goes nowhere."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), sys.stdout.fileno())
    print(json.dumps(READY), file=answers, flush=True)
    for request in sys.stdin:
        print(answer(request), file=answers, flush=True)


if __name__ == "__main__":
    main()
