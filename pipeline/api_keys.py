"""Sees before a run that the keys of its opponents are set on the workers that will need them; never what they are."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence

from distributed import Client

from tasks.contracts import ModelRef
from tasks.errors import ConfigError


def require_keys(client: Client, models: Iterable[ModelRef]) -> None:
    """Return when every worker that plays games has the keys that the endpoints of these models need.

    Raises:
        ConfigError: names the variable, the model and the worker.
    """
    needed = {model.api.key_variable: model for model in models if model.api is not None}
    variables = [variable for variable in needed if variable is not None]
    workers = client.scheduler_info(n_workers=-1)["workers"]
    players = [address for address, worker in workers.items() if worker["resources"].get("SEQ")]
    if not variables or not players:
        return
    unset: dict[str, list[str]] = client.run(_unset, variables, workers=players)
    for variable in variables:
        without = [address for address, names in unset.items() if variable in names]
        if without:
            raise ConfigError(
                f"the opponent {needed[variable].uid!r} needs a key, but the environment variable {variable} is not "
                f"set on {len(without)} of {len(players)} workers, such as {without[0]}: set it in the shell that "
                "starts them (`export` it before a local run), or name another in the opponent's key_variable"
            )


def _unset(variables: Sequence[str]) -> list[str]:
    """On a worker: those of the variables that have no value."""
    return [variable for variable in variables if not os.environ.get(variable, "").strip()]
