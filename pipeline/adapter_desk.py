"""Hands out adapters, through Dask, to workers that cannot read the driver's files."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

from distributed import Client

from tasks.adapter_delivery import ADAPTER_TOPIC, read_files, send_files

logger = logging.getLogger(__name__)


class AdapterDesk:
    """Answers workers' questions for adapters while it is open. A context manager.

    Nothing is kept in memory: each question reads the files again, and the scheduler shares one answer among those who
    ask at the same time.

    Args:
        client: the cluster; its scheduler carries the answers while a run's hosts are registered (`tasks.guard`).
    """

    def __init__(self, client: Client) -> None:
        self._client = client

    def __enter__(self) -> AdapterDesk:
        self._client.subscribe_topic(ADAPTER_TOPIC, self._answer)
        return self

    def __exit__(self, *_: object) -> None:
        self._client.unsubscribe_topic(ADAPTER_TOPIC)

    async def _answer(self, event: tuple[float, Any]) -> None:
        """On the client's own loop: read the folder that is asked for, and send it."""
        path = str(event[1]["path"])
        files: dict[str, bytes] = {}
        error = ""
        try:
            files = await asyncio.to_thread(read_files, Path(path))
        except OSError as problem:
            error = f"{problem.strerror}: {problem.filename}"
            logger.warning("A worker asks for the adapter %s, which is not here: %s", path, error)
        await send_files(self._client.scheduler, path, files, error)
