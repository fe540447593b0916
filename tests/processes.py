"""Dask schedulers and workers as processes of their own, as other people start them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import dask

REPOSITORY = Path(__file__).parents[1]
START_TIMEOUT_S = 30.0


class DaskProcesses:
    """Starts processes and ends them all: on `close`, whatever became of them.

    Args:
        folder: for scheduler files and logs, one log per process.
        settings: Dask settings every process gets.
    """

    def __init__(self, folder: Path, settings: dict[str, object]) -> None:
        self._folder = folder
        self._environment = {
            **os.environ,
            "PYTHONPATH": str(REPOSITORY),
            "DASK_INTERNAL_INHERIT_CONFIG": dask.config.serialize(settings),
        }
        self._processes: list[subprocess.Popen[bytes]] = []

    def scheduler(self, *, without: Sequence[str] = ()) -> str:
        """Start `dask scheduler`; return its address. Modules in `without` cannot be imported there."""
        file = self._folder / f"scheduler-{len(self._processes)}.json"
        hidden = "".join(f"sys.modules[{name!r}] = None; " for name in without)
        self.python(
            f"import sys; {hidden}from distributed.cli.dask_scheduler import main; main()",
            *("--host", "127.0.0.1", "--port", "0", "--no-dashboard", "--scheduler-file", str(file)),
        )
        deadline = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline:
            # The file appears before it is written.
            if file.exists() and (text := file.read_text()).endswith("}"):
                address: str = json.loads(text)["address"]
                return address
            time.sleep(0.05)
        raise TimeoutError(f"no scheduler after {START_TIMEOUT_S:.0f} s; its log is in {self._folder}")

    def worker(self, scheduler: str, resources: str = "SEQ=8 GPU=1", *, without: Sequence[str] = ()) -> int:
        """Start `dask worker` with a nanny; return the process id. It has joined when the scheduler says so."""
        hidden = "".join(f"sys.modules[{name!r}] = None; " for name in without)
        nanny = ("--no-nanny",) if without else ()  # a nanny's worker is a fresh interpreter that hides nothing
        return self.python(
            f"import sys; {hidden}from distributed.cli.dask_worker import main; main()",
            *(scheduler, "--nthreads", "8", "--resources", resources, "--memory-limit", "0", "--no-dashboard", *nanny),
            *("--local-directory", str(self._folder)),
        )

    def python(self, code: str, *arguments: str) -> int:
        """Start a Python process; return its id."""
        with (self._folder / f"process-{len(self._processes)}.log").open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-c", code, *arguments],
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        self._processes.append(process)
        return process.pid

    def has_ended(self, pid: int) -> bool:
        """Whether a process that was started here has ended by itself."""
        return any(process.pid == pid and process.poll() is not None for process in self._processes)

    def close(self) -> None:
        """End every process, the last first, since a nanny takes seconds to leave a scheduler that is gone."""
        for process in reversed(self._processes):
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(timeout=15)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
