"""The gate that says who may play now."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from tasks.contracts import Mode
from tasks.errors import ConfigError, EngineStartError
from tasks.lanes import Lanes, checked_limits


class Players:
    """Games that stay inside a lane until they are let out; `inside` has their names in the order they came in."""

    def __init__(self, lanes: Lanes) -> None:
        self.lanes = lanes
        self.inside: list[str] = []
        self.exits: dict[str, asyncio.Event] = {}

    def send(self, name: str, lane: Mode = Mode.TRAIN) -> asyncio.Task[None]:
        self.exits[name] = asyncio.Event()
        return asyncio.create_task(self._play(name, lane))

    async def _play(self, name: str, lane: Mode) -> None:
        async with self.lanes.slot(lane):
            self.inside.append(name)
            await self.exits[name].wait()


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def with_players(scenario: Callable[[Lanes, Players], Awaitable[None]]) -> None:
    async def main() -> None:
        lanes = Lanes()
        await scenario(lanes, Players(lanes))

    asyncio.run(main())


def test_nobody_enters_before_the_lanes_are_open() -> None:
    async def scenario(lanes: Lanes, players: Players) -> None:
        task = players.send("a")
        await settle()
        assert players.inside == [] and lanes.running == 0
        lanes.open()
        await settle()
        assert players.inside == ["a"] and lanes.running == 1
        players.exits["a"].set()
        await task
        assert lanes.running == 0

    with_players(scenario)


def test_a_limit_lets_games_in_one_by_one_in_their_order() -> None:
    async def scenario(lanes: Lanes, players: Players) -> None:
        lanes.open()
        lanes.set_limits({Mode.TRAIN: 1})
        tasks = [players.send(name) for name in "abc"]
        for name, so_far in zip("abc", ("a", "ab", "abc"), strict=True):
            await settle()
            assert players.inside == list(so_far) and lanes.running == 1
            players.exits[name].set()
        await asyncio.gather(*tasks)

    with_players(scenario)


def test_a_lane_does_not_hold_up_the_other() -> None:
    async def scenario(lanes: Lanes, players: Players) -> None:
        lanes.open()
        lanes.set_limits({Mode.TRAIN: 0})
        waiting, playing = players.send("train"), players.send("eval", Mode.EVAL)
        await settle()
        assert players.inside == ["eval"]
        waiting.cancel()
        playing.cancel()

    with_players(scenario)


def test_a_higher_limit_wakes_those_who_wait_and_a_lower_one_sends_nobody_away() -> None:
    async def scenario(lanes: Lanes, players: Players) -> None:
        lanes.open()
        lanes.set_limits({Mode.TRAIN: 1})
        tasks = [players.send(name) for name in "abcd"]
        await settle()
        lanes.set_limits({Mode.TRAIN: 3})
        await settle()
        assert players.inside == ["a", "b", "c"]
        lanes.set_limits({Mode.TRAIN: 1})
        await settle()
        assert lanes.running == 3
        players.exits["a"].set()
        players.exits["b"].set()
        await settle()
        assert players.inside == ["a", "b", "c"] and lanes.running == 1
        lanes.set_limits({Mode.TRAIN: None})
        await settle()
        assert players.inside == ["a", "b", "c", "d"]
        for task in tasks:
            task.cancel()

    with_players(scenario)


def test_a_cancelled_game_gives_its_turn_to_the_next() -> None:
    async def scenario(lanes: Lanes, players: Players) -> None:
        lanes.open()
        lanes.set_limits({Mode.TRAIN: 1})
        inside, waiting, last = (players.send(name) for name in "abc")
        await settle()
        waiting.cancel()
        await settle()
        players.exits["a"].set()
        await settle()
        assert players.inside == ["a", "c"] and lanes.running == 1
        assert inside.done() and waiting.cancelled()
        last.cancel()

    with_players(scenario)


def test_a_place_given_in_the_moment_of_cancelling_is_not_lost() -> None:
    async def scenario(lanes: Lanes, players: Players) -> None:
        lanes.set_limits({Mode.TRAIN: 1})
        first, second = players.send("a"), players.send("b")
        await settle()
        lanes.open()  # the place is the first game's, which does not know it yet
        first.cancel()
        await settle()
        assert first.cancelled() and players.inside == ["b"] and lanes.running == 1
        second.cancel()

    with_players(scenario)


def test_refusal_reaches_those_who_wait_and_those_who_come() -> None:
    async def scenario(lanes: Lanes, players: Players) -> None:
        waiting = players.send("a")
        await settle()
        lanes.refuse("no memory left")
        for task in (waiting, players.send("b")):
            with pytest.raises(EngineStartError, match="no memory left"):
                await task

    with_players(scenario)


def test_limits_are_checked() -> None:
    assert checked_limits({"train": 4, "eval": None}) == {Mode.TRAIN: 4, Mode.EVAL: None}
    with pytest.raises(ConfigError, match="lane 'test' is unknown, expected one of train, eval"):
        checked_limits({"test": 1})
    with pytest.raises(ConfigError, match="the limit of lane 'eval' is -1, expected 0 or more, or None for no limit"):
        checked_limits({"eval": -1})
