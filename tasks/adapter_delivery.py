"""Brings an adapter's files to the worker that needs them: from its own disk, else from the driver's through Dask.

A worker that cannot read the folder asks the scheduler, which passes the question to the driver as an event and the
files back. Nothing is kept on the way, and nothing is sent where driver and workers share a filesystem.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from distributed import Scheduler, get_worker

from tasks.adapter_files import CONFIG_NAME, WEIGHTS_NAME
from tasks.adapter_manifest import MANIFEST_NAME, check_content
from tasks.contracts import AdapterRef
from tasks.errors import AdapterError, boundary

ADAPTER_TOPIC = "selfplay-adapter-wanted"
TIMEOUT_S = 120.0
_WANTED, _SENT = "selfplay_adapter_wanted", "selfplay_adapter_sent"


@asynccontextmanager
async def open_adapter(adapter: AdapterRef) -> AsyncIterator[Path]:
    """A folder on this machine with the adapter's files, checked against its digest, for as long as it is needed.

    To be called in a Dask task where the folder may be out of reach.

    Raises:
        AdapterError: the files are neither here nor to be had from the driver, or are not the adapter's.
    """
    folder = Path(adapter.path)
    problem = await asyncio.to_thread(_problem, adapter, folder)
    if problem is None:
        yield folder
        return
    files = await _ask_driver(adapter, problem)
    with TemporaryDirectory(prefix="selfplay-adapter-") as place:
        await asyncio.to_thread(_write, Path(place), files)
        await asyncio.to_thread(check_content, adapter, Path(place))
        yield Path(place)


def read_files(folder: Path) -> dict[str, bytes]:
    """The files of an adapter by name, its manifest among them where it has one.

    Raises:
        OSError: one cannot be read.
    """
    names = [CONFIG_NAME, WEIGHTS_NAME]
    if (folder / MANIFEST_NAME).is_file():
        names.append(MANIFEST_NAME)
    return {name: (folder / name).read_bytes() for name in names}


async def send_files(scheduler: object, path: str, files: Mapping[str, bytes], error: str) -> None:
    """Answer the question for the adapter at `path`: with its files, or with why there are none.

    Args:
        scheduler: the driver's connection to it, `Client.scheduler`, used on the client's own loop.
        path: as the event on `ADAPTER_TOPIC` has it.
        files: content by name.
        error: why there are none, on one line; empty where there are.
    """
    await getattr(scheduler, _SENT)(path=path, files=dict(files), error=error)


class Courier:
    """On the scheduler: carries questions for adapters from workers to the driver, and answers back.

    Workers that ask for the same one at the same time share one answer.
    """

    def __init__(self) -> None:
        self._asked: dict[str, asyncio.Future[Mapping[str, bytes]]] = {}
        self._scheduler: Scheduler | None = None

    def open(self, scheduler: Scheduler) -> None:
        """Take questions from now on."""
        self._scheduler = scheduler
        scheduler.handlers[_WANTED] = self._wanted
        scheduler.handlers[_SENT] = self._sent

    def close(self, scheduler: Scheduler) -> None:
        """Take no more questions; those that are open are refused."""
        scheduler.handlers.pop(_WANTED, None)
        scheduler.handlers.pop(_SENT, None)
        for path in list(self._asked):
            self._sent(path, {}, "the driver is gone")

    async def _wanted(self, path: str) -> Mapping[str, bytes]:
        if path not in self._asked:
            self._asked[path] = asyncio.get_running_loop().create_future()
            if self._scheduler is not None:
                self._scheduler.log_event(ADAPTER_TOPIC, {"path": path})
        answer = self._asked[path]
        try:
            return await asyncio.wait_for(asyncio.shield(answer), TIMEOUT_S)
        except TimeoutError:
            self._asked.pop(path, None)
            raise AdapterError(f"the driver did not answer within {TIMEOUT_S:.0f} s") from None

    def _sent(self, path: str, files: Mapping[str, bytes], error: str) -> None:
        answer = self._asked.pop(path, None)
        if answer is None or answer.done():
            return
        if error:
            answer.set_exception(AdapterError(error))
            answer.exception()  # looked at, where nobody waits any longer
        else:
            answer.set_result(files)


def _problem(adapter: AdapterRef, folder: Path) -> AdapterError | None:
    """Why the files here will not do; None where they will."""
    missing = [name for name in (CONFIG_NAME, WEIGHTS_NAME) if not (folder / name).is_file()]
    if missing:
        return AdapterError(f"{folder} has no {' and no '.join(missing)}, or cannot be read")
    try:
        check_content(adapter, folder)
    except AdapterError as error:
        return error
    return None


async def _ask_driver(adapter: AdapterRef, problem: AdapterError) -> Mapping[str, bytes]:
    """The adapter's files from the driver, asked on Dask's own loop.

    Raises:
        AdapterError: `problem`, where nobody can be asked; or with why the driver has none.
    """
    try:
        worker = get_worker()
    except ValueError:
        raise problem from None

    async def ask() -> Mapping[str, bytes]:
        """The adapter's files by name, from the driver."""
        files: Mapping[str, bytes] = await getattr(worker.scheduler, _WANTED)(path=adapter.path)
        return files

    files: Mapping[str, bytes] = {}
    try:
        with boundary() as caught:
            files = await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(ask(), worker.loop.asyncio_loop))
        reason = caught.summary
    except AdapterError as error:
        reason = str(error)
    if reason:
        raise AdapterError(
            f"the adapter {adapter.uid} is not to be had on the worker {worker.address} ({problem}) and not from the "
            f"driver ({reason}). The games that play it fail; other versions are served as before"
        )
    return files


def _write(folder: Path, files: Mapping[str, bytes]) -> None:
    for name, content in files.items():
        (folder / name).write_bytes(content)
