"""What tests of clusters look at: a worker's process, and whatever takes a while to come."""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
import time
from collections.abc import Callable
from typing import Any


def worker_process() -> tuple[bool, str | None, str | None]:
    """Whether it is daemonic, its number of threads if set, and the current folder if modules are found there."""
    found = os.getcwd() if os.getcwd() in sys.path else None
    return multiprocessing.current_process().daemon, os.environ.get("OMP_NUM_THREADS"), found


def eventually(found: Callable[[], Any]) -> Any:
    """What `found` returns once that is something; a file read half-written counts as nothing."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            result = found()
        except json.JSONDecodeError:
            result = None
        if result:
            return result
        time.sleep(0.05)
    raise TimeoutError("nothing came in 60 s")
