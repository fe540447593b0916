"""An environment that takes its process with it."""

from __future__ import annotations

import os


class CrashEnv:
    """Ends the process in which it is made."""

    def __init__(self) -> None:
        os._exit(3)
