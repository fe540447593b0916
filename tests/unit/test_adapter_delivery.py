"""The scheduler's part in bringing adapters to workers: one question for all who ask, and an answer in any case."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tasks import adapter_delivery
from tasks.adapter_delivery import ADAPTER_TOPIC, Courier, open_adapter, read_files, send_files
from tasks.adapter_files import content_digest
from tasks.contracts import AdapterRef
from tasks.errors import AdapterError
from tests.unit.example_adapters import adapter_bytes, write_adapter


class Scheduler:
    """As much of Dask's as a courier needs; `ask` and `send` are what workers and the driver reach by name."""

    def __init__(self) -> None:
        self.handlers: dict[str, Any] = {}
        self.events: list[tuple[str, Any]] = []

    def log_event(self, topic: str, message: Any) -> None:
        self.events.append((topic, message))

    def __getattr__(self, name: str) -> Any:
        async def call(**arguments: Any) -> Any:
            result = self.handlers[name](**arguments)
            return await result if asyncio.iscoroutine(result) else result

        return call

    async def ask(self, path: str) -> Mapping[str, bytes]:
        answer: Mapping[str, bytes] = await self.selfplay_adapter_wanted(path=path)
        return answer


def test_all_who_ask_at_once_share_one_question_and_later_ones_ask_again() -> None:
    async def scenario() -> None:
        scheduler = Scheduler()
        Courier().open(scheduler)
        for _ in range(2):
            asked = [asyncio.create_task(scheduler.ask(path)) for path in ("/a", "/b", "/a")]
            await asyncio.sleep(0)
            assert scheduler.events == [(ADAPTER_TOPIC, {"path": "/a"}), (ADAPTER_TOPIC, {"path": "/b"})]
            await send_files(scheduler, "/b", {"name": b"b"}, "")
            await send_files(scheduler, "/a", {"name": b"a"}, "")
            await send_files(scheduler, "/a", {"name": b"too late"}, "")
            assert await asyncio.gather(*asked) == [{"name": b"a"}, {"name": b"b"}, {"name": b"a"}]
            scheduler.events.clear()

    asyncio.run(scenario())


def test_what_the_driver_has_not_and_a_driver_that_goes_are_refusals() -> None:
    async def scenario() -> None:
        scheduler, courier = Scheduler(), Courier()
        courier.open(scheduler)
        asked = [asyncio.create_task(scheduler.ask(path)) for path in ("/a", "/b")]
        await asyncio.sleep(0)
        await send_files(scheduler, "/a", {}, "No such file")
        courier.close(scheduler)
        refused = await asyncio.gather(*asked, return_exceptions=True)
        assert [repr(answer) for answer in refused] == [
            "AdapterError('No such file')",
            "AdapterError('the driver is gone')",
        ]
        assert scheduler.handlers == {}

    asyncio.run(scenario())


def test_a_driver_that_does_not_answer_is_not_waited_for_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adapter_delivery, "TIMEOUT_S", 0.01)

    async def scenario() -> None:
        scheduler = Scheduler()
        Courier().open(scheduler)
        with pytest.raises(AdapterError, match="the driver did not answer within 0 s"):
            await scheduler.ask("/a")

    asyncio.run(scenario())


def test_files_that_can_be_read_here_are_used_where_they_are_and_others_are_refused_where_nobody_can_be_asked(
    tmp_path: Path,
) -> None:
    folder = write_adapter(tmp_path / "adapter")

    async def opened(adapter: AdapterRef) -> Path:
        async with open_adapter(adapter) as place:
            return place

    assert asyncio.run(opened(AdapterRef("a", str(folder), content_digest(folder)))) == folder
    assert asyncio.run(opened(AdapterRef("a", str(folder)))) == folder
    with pytest.raises(AdapterError, match="expected 0123, with which it was published"):
        asyncio.run(opened(AdapterRef("a", str(folder), "0123")))
    with pytest.raises(AdapterError, match=r"/nowhere has no adapter_config\.json and no adapter_model\.safetensors"):
        asyncio.run(opened(AdapterRef("a", "/nowhere")))


def test_the_driver_reads_an_adapters_files_and_no_others(tmp_path: Path) -> None:
    folder = write_adapter(tmp_path / "adapter")
    (folder / "optimizer.pt").write_bytes(b"large")
    assert read_files(folder) == adapter_bytes()
    (folder / "manifest.json").write_text("{}")
    assert read_files(folder) == adapter_bytes() | {"manifest.json": b"{}"}
