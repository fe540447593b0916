"""Ties a run's hosts to its driver: registered with it, let go by it, and torn down when it vanishes.

A driver that is killed cannot tidy up. The scheduler notices its lost connection at once, so a guard there does it.
"""

from __future__ import annotations

from contextlib import ExitStack

from distributed import Client, Scheduler, SchedulerPlugin

from tasks.adapter_delivery import Courier
from tasks.errors import ClusterError, boundary
from tasks.host import HOST_NAME, GameHost
from tasks.learn import LEARNER_NAME

GUARD_NAME = "selfplay-guard"


class RunGuard(SchedulerPlugin):  # type: ignore[misc]  # distributed is untyped
    """Lets go of the game hosts when the client that registered them is gone. One run at a time holds a cluster.

    Meanwhile it carries adapters from that client to workers that cannot read its files.

    Args:
        client_id: the client to watch, as the scheduler knows it.
        run_id: the run, for the refusal of a second one.
    """

    name = GUARD_NAME

    def __init__(self, client_id: str, run_id: str) -> None:
        self.client_id = client_id
        self.run_id = run_id
        self._courier = Courier()

    async def start(self, scheduler: Scheduler) -> None:
        """Refuse to come between another driver and its run.

        Raises:
            ClusterError: the cluster is held by a run whose client is still there.
        """
        holder = scheduler.plugins.get(self.name)
        if holder is not None and holder.client_id in scheduler.clients:
            raise ClusterError(
                f"the cluster at {scheduler.address} is held by run {holder.run_id!r}, expected none: its workers have "
                "room for one engine each. Wait for that run to end, or start workers under another scheduler"
            )
        self._courier.open(scheduler)

    def remove_client(self, scheduler: Scheduler, client: str) -> None:
        """Let go when the client watched is gone; of its learner, too, which nobody else can."""
        if client == self.client_id:
            scheduler.loop.add_callback(self.let_go, scheduler, HOST_NAME, LEARNER_NAME)

    async def let_go(self, scheduler: Scheduler, *plugins: str) -> None:
        """Remove these plugins from all workers, now and to come, and then itself; return when they are torn down."""
        for name in plugins:
            if scheduler.worker_plugins.pop(name, None) is not None:
                # Not `Scheduler.unregister_worker_plugin`: it gives up waiting for all when one worker has just left.
                await scheduler.broadcast(msg={"op": "plugin-remove", "name": name}, on_error="ignore")
        self._courier.close(scheduler)
        if scheduler.plugins.get(self.name) is self:
            scheduler.remove_plugin(self.name)


def register(client: Client, host: GameHost) -> None:
    """Start a host on every worker there is and will be, until `unregister` or until the client is gone.

    Raises:
        ClusterError: another run holds the cluster; or the scheduler or a worker cannot load this package.
    """
    with ExitStack() as undo:
        with boundary() as caught:
            client.register_plugin(RunGuard(client.id, host.run_id))
            undo.callback(unregister, client)
            client.register_plugin(host)
        if caught.error is not None:
            raise ClusterError(
                f"the game hosts could not be set up: {caught.summary}. Expected this package, in the driver's "
                "version, wherever the scheduler and the workers run: install it there or put it on PYTHONPATH"
            ) from caught.error
        undo.pop_all()


def unregister(client: Client) -> None:
    """Tear down the hosts that this client registered; return when their games, engines and threads have ended."""
    client.run_on_scheduler(_let_go, client.id)


async def _let_go(client_id: str, dask_scheduler: Scheduler) -> None:
    guard = dask_scheduler.plugins.get(GUARD_NAME)
    if isinstance(guard, RunGuard) and guard.client_id == client_id:
        await guard.let_go(dask_scheduler, HOST_NAME)
