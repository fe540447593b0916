"""One game from its spec to its episode: the Dask task, and the whole game loop in one screen.

A game that goes wrong is data: it ends with a status and a reason, and keeps the steps it had. Only the death of the
engine is raised, for the driver to play the game again elsewhere.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from distributed import get_worker

from tasks.agents import make_agent
from tasks.calls import EnvironmentCalls
from tasks.contracts import Episode, GameSpec, Status, Step
from tasks.errors import (
    EngineDiedError,
    EngineStartError,
    EnvironmentHungError,
    GameCancelledError,
    PromptTooLongError,
    SelfplayError,
    boundary,
)
from tasks.game import Game, GameResult
from tasks.host import current_host

if TYPE_CHECKING:
    from tasks.host import Engine


@dataclass(frozen=True)
class _End:
    status: Status
    reason: str
    result: GameResult | None = None


async def play_episode(spec: GameSpec) -> Episode:
    """The Dask task: play `spec` beside this worker's engine.

    Raises:
        EngineDiedError, EngineStartError: the engine died or cannot start; play the game's next attempt elsewhere.
    """
    worker = get_worker().address
    try:
        return await current_host().run(lambda engine: play_game(spec, engine, worker), spec.game_id, spec.mode)
    except GameCancelledError as error:
        now = time.time()
        return Episode(spec, Status.CANCELLED, reason=str(error), started_at=now, finished_at=now, worker=worker)


async def play_game(spec: GameSpec, engine: Engine | None, worker: str = "") -> Episode:
    """Play one game to its end, whatever that is.

    A cancelled game returns what it has, too: cancelling its task ends it with the status `cancelled`.

    Args:
        spec: the game.
        engine: what answers for models; None where every player is scripted.
        worker: the address to record.

    Raises:
        EngineDiedError, EngineStartError: from the engine.
    """
    started_at = time.time()
    steps: list[Step] = []
    end = await _end_of(spec, engine, steps)
    return Episode(
        spec=spec,
        status=end.status,
        steps=tuple(steps),
        rewards=None if end.result is None else end.result.rewards,
        offender=None if end.result is None else end.result.offender,
        reason=end.reason,
        player_info=() if end.result is None else end.result.player_info,
        started_at=started_at,
        finished_at=time.time(),
        worker=worker,
    )


async def _take_turns(spec: GameSpec, engine: Engine | None, steps: list[Step]) -> _End:
    """The game loop. Appends each decision to `steps`, so that they are there however the game ends."""
    agents = [make_agent(spec, agent, engine) for agent in spec.agents]
    game = await Game.open(spec)
    calls = EnvironmentCalls(spec.env_id)
    while spec.max_turns is None or len(steps) < spec.max_turns:
        player_id, observation = await calls.run(game.observe)
        asked_at = time.perf_counter()
        choice = await agents[player_id].act(observation, len(steps))
        latency_s = time.perf_counter() - asked_at
        move = await calls.run(partial(game.step, choice.action))
        steps.append(
            Step(len(steps), player_id, observation, choice, illegal=move.illegal, info=move.info, latency_s=latency_s)
        )
        if move.done:
            result = await calls.run(game.close)
            ended_by_illegal_move = result.offender is not None
            return _End(Status.ILLEGAL_MOVE if ended_by_illegal_move else Status.COMPLETED, result.reason, result)
        await asyncio.sleep(0)  # scripted players never wait: without this one game would hold up all others
    return _End(Status.TRUNCATED, f"max_turns={spec.max_turns} reached before the game's end")


async def _end_of(spec: GameSpec, engine: Engine | None, steps: list[Step]) -> _End:
    """Play, and turn everything that can go wrong into a status; only a dead engine is raised."""
    try:
        async with asyncio.timeout(spec.time_limit_s):
            with boundary() as caught:
                end = await _take_turns(spec, engine, steps)
            if caught.error is not None:
                return _End(Status.FAILED, caught.summary)
            return end
    except PromptTooLongError as error:
        return _End(Status.OVERFLOW, str(error))
    except EnvironmentHungError as error:
        return _End(Status.TIMEOUT, str(error))
    except (EngineDiedError, EngineStartError):
        raise
    except SelfplayError as error:
        return _End(Status.FAILED, f"{type(error).__name__}: {error}")
    except TimeoutError:
        return _End(Status.TIMEOUT, f"time_limit_s={spec.time_limit_s:g} passed before the game's end")
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is not None:
            task.uncancel()  # the request is honoured by returning; awaits after it must not fail
        return _End(Status.CANCELLED, "cancelled while it was played")
