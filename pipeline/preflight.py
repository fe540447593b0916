"""Sees before a run whether a cluster can carry it: enough `SEQ` for its games, `GPU` where there are engines."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from distributed import Client

from tasks.errors import ClusterError

POLL_S = 0.2
MOST_LISTED = 6
COMPARED_PACKAGES = ("python", "dask", "distributed", "cloudpickle", "selfplay-pipeline")


def preflight(client: Client, slots: int, engine: bool, wait_s: float = 0.0, *, learner: bool = False) -> None:
    """Return when the cluster's workers can carry the run.

    Args:
        client: connected to the cluster.
        slots: games at once, each of which takes one `SEQ`.
        engine: whether a worker needs an engine, hence `GPU=1`.
        wait_s: how long workers may take to come, in seconds.
        learner: whether a worker needs to learn, hence `LEARNER=1`.

    Raises:
        ClusterError: says what is there, what is needed and the command of a worker that would do.
    """
    deadline = time.monotonic() + wait_s
    while True:
        workers = client.scheduler_info(n_workers=-1)["workers"]
        refusal = shortfall(workers, client.scheduler.address, slots, engine, learner=learner)
        if refusal is None:
            return
        if time.monotonic() >= deadline:
            different = version_differences(client.get_versions(packages=["selfplay-pipeline"]))
            raise ClusterError(refusal + different)
        time.sleep(POLL_S)


def shortfall(
    workers: Mapping[str, Mapping[str, Any]], scheduler: str, slots: int, engine: bool, *, learner: bool = False
) -> str | None:
    """Why these workers cannot carry the run, or None where they can.

    Args:
        workers: by address, as `Client.scheduler_info` has them.
        scheduler: the scheduler's address.
        slots: games at once.
        engine: whether `GPU` is needed.
        learner: whether `LEARNER` is needed.
    """
    running = {address: worker for address, worker in workers.items() if worker["status"] == "running"}
    useful = {address: worker for address, worker in running.items() if _offers(worker, "SEQ")}
    for address, worker in useful.items():
        if worker["nthreads"] < _offers(worker, "SEQ"):
            return (
                f"the worker {address} offers SEQ={_offers(worker, 'SEQ')} but has {worker['nthreads']} threads, "
                "expected at least as many as SEQ: a game takes both. Restart it with "
                f"--nthreads {_offers(worker, 'SEQ')}"
            )
    if engine:
        useful = {address: worker for address, worker in useful.items() if _offers(worker, "GPU")}
    there = sum(_offers(worker, "SEQ") for worker in useful.values())
    if there >= slots:
        if learner and not any(_offers(worker, "LEARNER") for worker in running.values()):
            return (
                f"the cluster at {scheduler} cannot carry this run: learning needs a worker that offers LEARNER=1, "
                f"there is none. {_listed(running)} Start it with: selfplay worker {scheduler} --learner"
            )
        return None
    kind = "workers that offer GPU=1" if engine else "workers"
    needed = f"{slots} games at once need SEQ={slots} in all on {kind}"
    return (
        f"the cluster at {scheduler} cannot carry this run: {needed}, there is SEQ={there}. {_listed(running)} "
        f"Start what is missing with: selfplay worker {scheduler} --games {slots - there}"
    )


def version_differences(versions: Mapping[str, Any]) -> str:
    """A hint, on lines of its own, where the cluster runs other versions than this process; empty where it does not.

    Args:
        versions: as `Client.get_versions` has them.
    """
    here = versions["client"]["packages"]
    lines = []
    for server, theirs in {"the scheduler": versions["scheduler"], **versions["workers"]}.items():
        there = theirs["packages"]
        different = [
            f"{name} {_version(name, there)} (here {_version(name, here)})"
            for name in COMPARED_PACKAGES
            if _version(name, there) != _version(name, here)
            # A scheduler plays no games.
            and not (server == "the scheduler" and name == "selfplay-pipeline")
        ]
        if different:
            lines.append(f"\nVersions differ, which can itself be the trouble: {server} has {', '.join(different)}")
    return "".join(lines[:MOST_LISTED])


def _version(name: str, packages: Mapping[str, str | None]) -> str:
    version = packages.get(name) or "missing"
    return ".".join(version.split(".")[:2]) if name == "python" else version


def _offers(worker: Mapping[str, Any], resource: str) -> int:
    return int(worker["resources"].get(resource, 0))


def _listed(workers: Mapping[str, Mapping[str, Any]]) -> str:
    if not workers:
        return "It has no workers."
    lines = [
        f"{address} (SEQ={_offers(worker, 'SEQ')} GPU={_offers(worker, 'GPU')}, {worker['nthreads']} threads)"
        for address, worker in list(workers.items())[:MOST_LISTED]
    ]
    more = f" and {len(workers) - MOST_LISTED} more" if len(workers) > MOST_LISTED else ""
    return f"Its workers: {', '.join(lines)}{more}."
