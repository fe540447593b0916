"""How an engine's few places for adapters are given to many: what is kept, what is given up, who waits for whom."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from tasks.adapter_slots import AdapterSlots
from tasks.contracts import AdapterRef
from tasks.errors import AdapterError


class Core:
    """Loads and unloads by writing it down; some loads wait, some fail."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.inside: set[str] = set()
        self.most = 0
        self.gates: dict[str, asyncio.Event] = {}
        self.broken: set[str] = set()

    async def load(self, adapter: AdapterRef) -> str:
        self.log.append(f"+{adapter.uid}")
        if adapter.uid in self.gates:
            await self.gates[adapter.uid].wait()
        await asyncio.sleep(0)
        if adapter.uid in self.broken:
            raise AdapterError(f"{adapter.uid} is broken")
        self.inside.add(adapter.uid)
        self.most = max(self.most, len(self.inside))
        return adapter.uid.upper()

    async def unload(self, handle: str) -> None:
        await asyncio.sleep(0)
        self.inside.remove(handle.lower())
        self.log.append(f"-{handle.lower()}")


def play(scenario: Callable[[Core, AdapterSlots[str]], Awaitable[None]], capacity: int = 2) -> Core:
    async def main() -> Core:
        core = Core()
        slots = AdapterSlots(core.load, core.unload, capacity)
        async with asyncio.timeout(5):
            await scenario(core, slots)
            await slots.close()
        return core

    return asyncio.run(main())


def ref(uid: str) -> AdapterRef:
    return AdapterRef(uid, f"/{uid}")


async def use(slots: AdapterSlots[str], uid: str, until: asyncio.Event | None = None) -> str:
    async with slots.held(ref(uid)) as handle:
        if until is not None:
            await until.wait()
        return handle


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


def test_many_who_ask_at_once_share_one_loading() -> None:
    async def scenario(_: Core, slots: AdapterSlots[str]) -> None:
        assert await asyncio.gather(*(use(slots, "a") for _ in range(10))) == ["A"] * 10
        assert await use(slots, "a") == "A"

    assert play(scenario).log == ["+a"]


def test_the_one_not_asked_for_longest_makes_room() -> None:
    async def scenario(_: Core, slots: AdapterSlots[str]) -> None:
        for uid in "abac":
            await use(slots, uid)

    core = play(scenario)
    assert core.log == ["+a", "+b", "-b", "+c"]
    assert core.most == 2


def test_one_that_was_given_up_is_loaded_again() -> None:
    async def scenario(_: Core, slots: AdapterSlots[str]) -> None:
        for uid in "abca":
            assert await use(slots, uid) == uid.upper()

    assert play(scenario).log == ["+a", "+b", "-a", "+c", "-b", "+a"]


def test_one_in_use_stays_and_an_idle_one_goes() -> None:
    async def scenario(core: Core, slots: AdapterSlots[str]) -> None:
        async with slots.held(ref("a")):
            for uid in "bcd":
                await use(slots, uid)
                assert "a" in core.inside

    assert play(scenario).log == ["+a", "+b", "-b", "+c", "-c", "+d"]


def test_loading_one_does_not_hold_up_those_that_are_there() -> None:
    async def scenario(core: Core, slots: AdapterSlots[str]) -> None:
        await use(slots, "a")
        core.gates["b"] = asyncio.Event()
        loading = asyncio.create_task(use(slots, "b"))
        await settle()
        assert await use(slots, "a") == "A"
        assert not loading.done()
        core.gates["b"].set()
        assert await loading == "B"

    play(scenario)


def test_with_more_in_play_than_fit_everyone_has_its_turn() -> None:
    async def scenario(core: Core, slots: AdapterSlots[str]) -> None:
        async def game(uid: str) -> None:
            for _ in range(20):
                async with slots.held(ref(uid)) as handle:
                    assert handle == uid.upper()
                    assert uid in core.inside
                    await asyncio.sleep(0)

        await asyncio.gather(*(game(uid) for uid in "abcdefaabbccddeeff"))

    assert play(scenario).most == 2


def test_those_that_are_always_busy_do_not_keep_others_out() -> None:
    async def scenario(_: Core, slots: AdapterSlots[str]) -> None:
        served = asyncio.Event()
        users = {"a": 0, "b": 0}
        idle: list[str] = []

        async def busy(uid: str, turns: int) -> None:
            """With others of its kind, it leaves no moment in which nobody uses the adapter."""
            while not served.is_set():
                async with slots.held(ref(uid)):
                    users[uid] += 1
                    for _ in range(turns):
                        await asyncio.sleep(0)
                    users[uid] -= 1
                    if not users[uid]:
                        idle.append(uid)

        games = [asyncio.create_task(busy(uid, turns)) for uid in "ab" for turns in (2, 3, 5)]
        await settle()
        idle.clear()
        for _ in range(100):
            await asyncio.sleep(0)
        assert idle == [], "they are always busy"
        assert await use(slots, "c") == "C"
        served.set()
        await asyncio.gather(*games)

    play(scenario)


def test_one_that_fails_to_load_fails_for_those_who_wait_for_it_alone_and_may_be_tried_again() -> None:
    async def scenario(core: Core, slots: AdapterSlots[str]) -> None:
        core.broken.add("b")
        answers = await asyncio.gather(*(use(slots, uid) for uid in "babb"), return_exceptions=True)
        assert [str(answer) for answer in answers] == ["b is broken", "A", "b is broken", "b is broken"]
        core.broken.clear()
        assert await use(slots, "b") == "B"

    assert play(scenario).log == ["+b", "+a", "+b"]


def test_a_failure_makes_room_for_those_in_line() -> None:
    async def scenario(core: Core, slots: AdapterSlots[str]) -> None:
        core.broken.add("a")
        core.gates["a"] = asyncio.Event()
        broken = asyncio.create_task(use(slots, "a"))
        await settle()
        waiting = asyncio.create_task(use(slots, "b"))
        await settle()
        assert core.log == ["+a"]
        core.gates["a"].set()
        assert await waiting == "B"
        with pytest.raises(AdapterError, match="a is broken"):
            await broken

    play(scenario, capacity=1)


def test_a_game_that_is_cancelled_takes_nobody_along_and_leaves_its_place() -> None:
    async def scenario(core: Core, slots: AdapterSlots[str]) -> None:
        core.gates["a"] = asyncio.Event()
        first, second = (asyncio.create_task(use(slots, "a")) for _ in range(2))
        await settle()
        in_line = asyncio.create_task(use(slots, "b"))
        await settle()
        for game in (first, in_line):
            game.cancel()
            with pytest.raises(asyncio.CancelledError):
                await game
        core.gates["a"].set()
        assert await second == "A"
        assert await use(slots, "c") == "C"

    assert play(scenario, capacity=1).log == ["+a", "-a", "+c"]
