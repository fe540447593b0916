"""Slow and stuck environments: threads for the slow ones, an end for the stuck ones, a free loop throughout."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from tasks import calls
from tasks.calls import EnvironmentCalls, call_with_limit
from tasks.contracts import AgentSpec, Episode, GameSpec, Mode, ModelKind, ModelRef, Role, Status
from tasks.errors import EnvironmentFault, EnvironmentHungError
from tasks.game import _making
from tasks.play import play_game
from tests.environments.slow import SLOW, SlowEnv

LOOP = threading.main_thread().name


@pytest.fixture(autouse=True)
def _clean_records(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(EnvironmentCalls, "_standing", Counter())
    monkeypatch.setattr(EnvironmentCalls, "_making_standing", Counter())
    monkeypatch.setattr(EnvironmentCalls, "_hung", set())
    SlowEnv.threads.clear()
    yield
    deadline = time.monotonic() + 20
    while any(thread.is_alive() for stuck in calls._abandoned.values() for thread in stuck):
        assert time.monotonic() < deadline, "an abandoned thread was not interrupted"
        time.sleep(0.01)
    calls._abandoned.clear()


def spec(time_limit_s: float | None = None, **env_kwargs: Any) -> GameSpec:
    scripted = ModelRef("scripted:first", ModelKind.SCRIPTED)
    agents = tuple(AgentSpec(player, Role.ACTOR, scripted) for player in range(2))
    return GameSpec("run", "game", Mode.TRAIN, SLOW, 2, 1, agents, env_kwargs=env_kwargs, time_limit_s=time_limit_s)


def played(game: GameSpec) -> Episode:
    return asyncio.run(play_game(game, None))


def on_the_loop() -> list[bool]:
    """For each observation and step so far, whether it ran on the loop."""
    return [thread == LOOP for name, thread in SlowEnv.threads if name in ("observed", "stepped")]


def test_quick_calls_move_to_the_loop_once_the_environment_has_proved_itself() -> None:
    assert played(spec()).status is Status.COMPLETED
    # A busy machine may make a quick call look slow, once or twice.
    for _ in range(5):
        SlowEnv.threads.clear()
        played(spec())
        if all(on_the_loop()):
            break
    assert all(on_the_loop())
    assert ("made", LOOP) not in SlowEnv.threads
    assert ("reset", LOOP) not in SlowEnv.threads


def test_an_environment_that_was_made_quickly_often_enough_is_made_on_the_loop() -> None:
    for _ in range(calls.PROOF_CALLS):
        played(spec(turns=2))
    assert ("made", LOOP) not in SlowEnv.threads
    # A busy machine may make a quick call look slow, once or twice.
    for _ in range(3 * calls.PROOF_CALLS):
        played(spec(turns=2))
        if ("made", LOOP) in SlowEnv.threads:
            break
    assert SlowEnv.threads.count(("made", LOOP)) == SlowEnv.threads.count(("reset", LOOP)) == 1


def test_slow_making_counts_against_making_alone() -> None:
    EnvironmentCalls._standing[SLOW] = EnvironmentCalls._making_standing[SLOW] = calls.PROOF_CALLS
    played(spec(where="reset", pause_s=0.02, turns=2))
    assert ("reset", LOOP) in SlowEnv.threads
    assert EnvironmentCalls._making_standing[SLOW] < calls.PROOF_CALLS <= EnvironmentCalls._standing[SLOW]
    SlowEnv.threads.clear()
    played(spec(where="reset", pause_s=0.02, turns=2))
    assert ("reset", LOOP) not in SlowEnv.threads


def test_the_loop_does_not_wait_while_another_environment_of_the_package_is_made() -> None:
    EnvironmentCalls._making_standing[SLOW] = 1000
    package = SLOW.partition(":")[0].rpartition(".")[0]

    async def both() -> Episode:
        with _making.setdefault(package, threading.Lock()):
            second = asyncio.create_task(play_game(spec(turns=2), None))
            await asyncio.sleep(0.1)
            assert SlowEnv.threads == []
        return await second

    assert asyncio.run(both()).status is Status.COMPLETED
    assert SlowEnv.threads[0][0] == "made"
    assert SlowEnv.threads[0][1] != LOOP


def test_an_environment_unknown_to_the_process_starts_in_a_thread() -> None:
    played(spec())
    assert not any(on_the_loop()[: calls.PROOF_CALLS])


def test_a_slow_call_moves_its_games_later_calls_to_a_thread() -> None:
    EnvironmentCalls._standing[SLOW] = 1000
    assert played(spec(first=5, pause_s=0.02)).status is Status.COMPLETED
    first_slow_call = 2 * 5  # observations and steps take turns
    assert not any(on_the_loop()[first_slow_call:])
    assert EnvironmentCalls._standing[SLOW] < calls.PROOF_CALLS


def test_a_single_stall_costs_only_its_own_game_the_loop() -> None:
    EnvironmentCalls._standing[SLOW] = 1000
    played(spec(first=30, pause_s=0.02))  # the last of its steps
    assert EnvironmentCalls._standing[SLOW] >= calls.PROOF_CALLS


@pytest.mark.parametrize("where", ["made", "reset", "observed", "stepped", "closed"])
def test_a_slow_environment_leaves_the_loop_to_others(where: str) -> None:
    async def beats() -> list[float]:
        game = asyncio.create_task(play_game(spec(where=where, pause_s=0.5, turns=2), None))
        seen = [time.monotonic()]
        while not game.done():
            await asyncio.sleep(0.01)
            seen.append(time.monotonic())
        assert (await game).status is Status.COMPLETED
        return seen

    seen = asyncio.run(beats())
    assert len(seen) > 10  # a call that held the loop would have left one or two


@pytest.mark.parametrize("where", ["made", "reset", "observed", "stepped", "closed"])
def test_an_environment_that_never_returns_ends_by_the_games_time_limit(where: str) -> None:
    episode = played(spec(0.3, where=where, hang=True, turns=3))
    assert (episode.status, episode.rewards) == (Status.TIMEOUT, None)
    assert episode.reason == "time_limit_s=0.3 passed before the game's end"
    assert len(episode.steps) == (3 if where == "closed" else 0)


def test_without_a_time_limit_a_call_has_one_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "CALL_LIMIT_S", 0.2)
    episode = played(spec(first=3, hang=True))
    assert (episode.status, len(episode.steps)) == (Status.TIMEOUT, 2)
    assert episode.reason == (
        f"a call of {SLOW} did not come back within 0.2 s; if it keeps happening, leave this environment out."
    )


def test_one_that_hangs_after_it_was_trusted_is_interrupted_on_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "INLINE_LIMIT_S", 0.3)
    monkeypatch.setattr(calls, "_WATCHDOG", calls._Watchdog())
    EnvironmentCalls._standing[SLOW] = 1000
    episode = played(spec(first=3, hang=True))
    assert (episode.status, len(episode.steps)) == (Status.TIMEOUT, 2)
    assert "did not come back within 0.3 s" in episode.reason
    SlowEnv.threads.clear()
    assert played(spec()).status is Status.COMPLETED
    assert not any(on_the_loop())  # never trusted again


@pytest.mark.parametrize("where", ["made", "reset"])
def test_one_that_hangs_while_it_is_made_on_the_loop_frees_the_loop_and_its_package(
    where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calls, "INLINE_LIMIT_S", 0.3)
    monkeypatch.setattr(calls, "_WATCHDOG", calls._Watchdog())
    EnvironmentCalls._making_standing[SLOW] = 1000
    episode = played(spec(where=where, hang=True))
    assert (episode.status, len(episode.steps)) == (Status.TIMEOUT, 0)
    assert "did not come back within 0.3 s" in episode.reason
    SlowEnv.threads.clear()
    assert played(spec(turns=2)).status is Status.COMPLETED
    assert ("made", LOOP) not in SlowEnv.threads


def test_a_call_that_ends_just_as_it_is_interrupted_hits_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "INLINE_LIMIT_S", 0.05)
    watchdog = calls._Watchdog()
    monkeypatch.setattr(calls, "_WATCHDOG", watchdog)

    def sleep_past_the_limit() -> str:
        time.sleep(0.2)  # compiled code: the interruption arrives after it, or not before `leave` waits for it
        return "done"

    async def interrupted() -> None:
        EnvironmentCalls._standing[SLOW] = 1000
        with pytest.raises(EnvironmentHungError):
            await EnvironmentCalls(SLOW).run(sleep_past_the_limit)
        await asyncio.sleep(0.2)

    asyncio.run(interrupted())
    assert watchdog._since == {}


def test_an_environment_that_sticks_too_often_is_not_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    released = threading.Event()
    monkeypatch.setattr(calls, "MAKING_LIMIT_S", 0.05)

    async def stick() -> None:
        for _ in range(calls.MAX_STUCK):
            with pytest.raises(EnvironmentHungError):
                await EnvironmentCalls("Sticky").make(lambda _: released.wait())  # compiled code cannot be interrupted
        with pytest.raises(EnvironmentFault, match=f"Sticky has {calls.MAX_STUCK} calls in this process that never"):
            await EnvironmentCalls("Sticky").make(lambda _: released.wait())

    asyncio.run(stick())
    released.set()


def test_threads_of_many_calls_at_once_do_not_stay() -> None:
    at_once = 3 * calls.MAX_IDLE_THREADS
    together = threading.Barrier(at_once)

    async def many() -> None:
        await asyncio.gather(*(EnvironmentCalls(f"{SLOW}-{i}").run(together.wait) for i in range(at_once)))

    asyncio.run(many())
    deadline = time.monotonic() + 10
    while sum(isinstance(thread, calls._CallThread) for thread in threading.enumerate()) > calls.MAX_IDLE_THREADS:
        assert time.monotonic() < deadline, "threads stayed that nobody needs"
        time.sleep(0.01)


def test_a_call_without_a_loop_has_a_limit_too() -> None:
    assert call_with_limit(lambda: 7, "Sticky", 5.0) == 7
    with pytest.raises(ZeroDivisionError):
        call_with_limit(lambda: 1 // 0, "Sticky", 5.0)

    def loop() -> None:
        while True:
            pass

    with pytest.raises(EnvironmentHungError, match=r"a call of Sticky did not come back within 0\.1 s"):
        call_with_limit(loop, "Sticky", 0.1)
