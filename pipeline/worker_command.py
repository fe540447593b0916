"""How a Dask worker for games is started: resources, threads and environment. Imports no Dask, to answer at once."""

from __future__ import annotations

import re
from collections.abc import Mapping

from tasks.errors import ConfigError

DEATH_TIMEOUT_S = 60
# Ctrl-C in a terminal reaches the worker as well as its nanny. The nanny's stop is the clean one; a worker that begins
# one by itself as well never finishes it, and is killed after 8 s.
IGNORE_INTERRUPTS = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)"
# Dask's settings for the process that starts workers.
WORKER_SETTINGS: Mapping[str, object] = {
    # A daemonic process may not have children, which an engine has.
    "distributed.worker.daemon": False,
    # Dask would have every library compute on one thread.
    "distributed.nanny.pre-spawn-environ": {
        "OMP_NUM_THREADS": None,
        "MKL_NUM_THREADS": None,
        "OPENBLAS_NUM_THREADS": None,
    },
}

_HOST_AND_PORT = re.compile(r"[^/]+:\d+")


def checked_scheduler(scheduler: str) -> str:
    """`scheduler` where it is an address or may be the path of a scheduler file.

    Raises:
        ConfigError: it is an address in another form than Dask's.
    """
    protocol, scheme, _ = scheduler.partition("://")
    if scheme and protocol not in ("tcp", "tls"):
        raise ConfigError(f"scheduler {scheduler!r}: expected tcp://host:port, tls://host:port or a scheduler file")
    if not scheme and _HOST_AND_PORT.fullmatch(scheduler):
        raise ConfigError(f"scheduler {scheduler!r}: expected an address with its protocol, such as tcp://{scheduler}")
    return scheduler


def worker_command(scheduler: str, games: int | None) -> list[str]:
    """The plain `dask worker` command of a worker that holds one engine or learns; it needs `worker_environment` too.

    A worker for games offers `SEQ`, one for each game at once, and `GPU=1`: the engine's accelerator, which for a CPU
    build of vLLM is the CPU. A game in flight counts as a thread. A worker that learns offers `LEARNER=1` alone.

    Args:
        scheduler: an address, tcp:// or tls://, or the path of a scheduler file.
        games: the most games at once, at least 1; None for a worker that learns.
    """
    resources = "LEARNER=1" if games is None else f"SEQ={games} GPU=1"
    return [
        "dask",
        "worker",
        *([scheduler] if "://" in scheduler else ["--scheduler-file", scheduler]),
        *("--nworkers", "1"),
        *("--nthreads", str(games or 1)),
        *("--resources", resources),
        # Dask would kill a worker that loads a model for the memory it takes.
        *("--memory-limit", "0"),
        "--no-dashboard",
        *("--death-timeout", str(DEATH_TIMEOUT_S)),
        *("--preload", IGNORE_INTERRUPTS),
    ]


def worker_environment(gpu: int | None = None) -> dict[str, str]:
    """Environment variables that `worker_command` is to be run with.

    Args:
        gpu: index of the one GPU that the worker may use; None leaves that to the environment as it is.
    """
    environment = {
        # Dask reads Python literals here; double quotes leave the single ones to the shell.
        "DASK_" + name.upper().replace("-", "_").replace(".", "__"): repr(value).replace("'", '"')
        for name, value in WORKER_SETTINGS.items()
    }
    return environment if gpu is None else environment | {"CUDA_VISIBLE_DEVICES": str(gpu)}
