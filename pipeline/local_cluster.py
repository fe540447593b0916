"""A Dask cluster on this machine: workers that hold an engine each, and one that learns."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any, Literal

from distributed import Nanny, Scheduler, SpecCluster

from pipeline.config import ClusterConfig
from tasks.errors import ClusterError
from tasks.learn import LEARNER_RESOURCE

LearnerPlace = Literal["none", "own_gpu", "shared_gpu"]
"""Whether there is a worker that learns, and whether it shares the first engine's GPU where there are GPUs."""

_GPUS = Path("/proc/driver/nvidia/gpus")
LEARNER = "learner"


def start_cluster(config: ClusterConfig, games: int, learner: LearnerPlace = "none") -> SpecCluster:
    """Start `config.workers` processes for `games` games each, and one more where something is learned.

    Where there are GPUs each engine sees one of its own.

    Raises:
        ClusterError: the workers did not start, or there are GPUs, but too few.
    """
    environments = gpu_environments(config.workers, learner)
    specs: dict[int | str, dict[str, Any]] = {
        number: _worker({"SEQ": games, "GPU": 1}, games, environments[number]) for number in range(config.workers)
    }
    if learner != "none":
        specs[LEARNER] = _worker({LEARNER_RESOURCE: 1}, 1, environments[-1])
    scheduler = {
        "cls": Scheduler,
        "options": {
            "host": "127.0.0.1",
            "port": 0,
            "dashboard": config.dashboard_address is not None,
            # Without a dashboard Dask still has an HTTP server, and would warn where two of them want its usual port.
            "dashboard_address": config.dashboard_address or "127.0.0.1:0",
        },
    }
    try:
        return SpecCluster(workers=specs, scheduler=scheduler, silence_logs=logging.ERROR)
    except RuntimeError as error:
        raise ClusterError(
            f"the local workers did not start ({error}): what they printed says why. A script must start its run under "
            "`if __name__ == '__main__':`, for its workers import it"
        ) from error


def gpu_environments(engines: int, learner: LearnerPlace, gpus: list[str] | None = None) -> list[dict[str, str]]:
    """Environment variables of each engine's worker, then of the learner's if there is one.

    Args:
        engines: how many workers hold an engine.
        learner: whether one more learns, and where.
        gpus: the GPUs there are, as `CUDA_VISIBLE_DEVICES` names them; looked up when None.

    Returns:
        One GPU each, or nothing where there is no GPU.

    Raises:
        ClusterError: there are GPUs, but too few.
    """
    gpus = visible_gpus() if gpus is None else gpus
    processes = engines + (learner != "none")
    if not gpus:
        return [{} for _ in range(processes)]
    needed = engines + (learner == "own_gpu")
    if len(gpus) < needed:
        raise ClusterError(
            f"{engines} engines{' and a learner' if learner == 'own_gpu' else ''} need a GPU each, {needed} in all; "
            f"there are {len(gpus)}. Lower cluster.workers, or let the learner share one with learner.share_gpu: true"
        )
    places = [*range(engines), *([engines] if learner == "own_gpu" else [0] if learner == "shared_gpu" else [])]
    return [{"CUDA_VISIBLE_DEVICES": gpus[place]} for place in places]


def visible_gpus() -> list[str]:
    """The GPUs that this process may use, as `CUDA_VISIBLE_DEVICES` names them; no CUDA library is loaded for that."""
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is not None:
        return [name for name in chosen.split(",") if name.strip() not in ("", "-1")]
    return [str(index) for index in range(len(list(_GPUS.iterdir())))] if _GPUS.is_dir() else []


def _worker(resources: dict[str, int], threads: int, environment: dict[str, str]) -> dict[str, Any]:
    return {
        "cls": Nanny,
        "options": {
            "host": "127.0.0.1",
            "nthreads": threads,
            "resources": resources,
            "memory_limit": 0,
            "env": environment,
            "dashboard": False,
            "silence_logs": logging.ERROR,
        },
    }
