"""Stops a run whose adapters do not reach the model. Shown once per run, on the first adapter that is published."""

from __future__ import annotations

from pathlib import Path

from distributed import Client

from tasks.canary import probe_of, silent_modules_here
from tasks.contracts import AdapterRef, EngineState
from tasks.errors import AdapterError, ClusterError, EngineDiedError, boundary
from tasks.host import host_state


class Canary:
    """Shows once that an engine puts adapters to work.

    Args:
        client: the cluster whose workers host the run's engines.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        self._shown = False

    def check(self, adapter: AdapterRef) -> None:
        """Ask an engine that is ready, unless one has shown it before; without one the next call asks.

        Takes a second or so on the engine, beside its games.

        Raises:
            AdapterError: some modules' adapters change nothing, with their names; or the engine refuses the adapter.
        """
        if self._shown:
            return
        engine = self._ready_engine()
        if engine is None:
            return
        probe = probe_of(Path(adapter.path))
        try:
            with boundary() as lost:  # a worker that leaves meanwhile
                answers = self._client.run(silent_modules_here, probe, workers=[engine])
        except (EngineDiedError, ClusterError):
            return
        if lost.error is not None:
            return
        silent = answers[engine]
        if silent:
            kinds = probe.kinds()
            named = ", ".join(f"{kind} ({len(kinds[kind])}, such as {kinds[kind][0]})" for kind in silent)
            raise AdapterError(
                f"the engine on {engine} answers as before when adapters change these modules: {named}. What is "
                "learned there would never be played. Expected other log-probabilities with each: remove the modules "
                "from vllm.lora_config.target_modules, or use a version of vLLM that serves adapters on them"
            )
        self._shown = True

    def _ready_engine(self) -> str | None:
        """The address of a worker whose engine is ready."""
        figures = self._client.run(host_state, on_error="ignore")
        ready = (worker for worker, state in figures.items() if state and state.state is EngineState.READY)
        return next(ready, None)
