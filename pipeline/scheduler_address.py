"""Finds the scheduler of a cluster that others started, or says what is there in its place."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from distributed import rpc
from distributed.comm import get_address_host_port
from distributed.security import Security

from tasks.errors import ClusterError, boundary

ATTEMPT_S = 3.0
PROBE_S = 0.5
POLL_S = 0.2


class _Finding(NamedTuple):
    """What is at an address where no scheduler answered; `lasting` when waiting will not change it."""

    text: str
    lasting: bool = False


def await_scheduler_file(path: Path, timeout_s: float) -> str:
    """The address in a scheduler file, which may still have to be written.

    Raises:
        ClusterError: after `timeout_s` seconds the file is still missing or holds no address.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            address = json.loads(path.read_text(encoding="utf-8"))["address"]
        except FileNotFoundError:
            trouble = "there is no such file"
        except (OSError, ValueError, KeyError, TypeError) as error:
            trouble = f"it does not hold a scheduler's address ({type(error).__name__}: {error})"
        else:
            return str(address)
        if time.monotonic() >= deadline:
            raise ClusterError(
                f"scheduler file {path}: {trouble}, after {timeout_s:g} s. Expected the file that "
                f"`dask scheduler --scheduler-file {path}` writes, on a file system that both machines see"
            )
        time.sleep(POLL_S)


def await_scheduler(address: str, timeout_s: float) -> None:
    """Return once a Dask scheduler answers at `address`.

    Raises:
        ClusterError: none did within `timeout_s` seconds, or something else answers there.
    """
    security = _security_arguments(address)
    deadline = time.monotonic() + timeout_s
    while True:
        with boundary() as asked:
            identity = _identity(address, security, max(PROBE_S, min(ATTEMPT_S, deadline - time.monotonic())))
        if asked.error is None:
            if identity["type"] == "Scheduler":
                return
            finding = _Finding(f"a Dask {identity['type'].lower()} answers there", lasting=True)
        else:
            finding = _what_is_there(address, asked.summary)
        if finding.lasting or time.monotonic() >= deadline - PROBE_S:
            raise ClusterError(
                f"no Dask scheduler at {address}: {finding.text}. Expected the address that `dask scheduler` prints as "
                "'Scheduler at', such as tcp://host:8786"
            )
        time.sleep(POLL_S)


def _security_arguments(address: str) -> Mapping[str, Any]:
    """What Dask needs to connect, from its own configuration, which is where certificates are named."""
    with boundary() as loaded:
        arguments: Mapping[str, Any] = Security().get_connection_args("client")
    if loaded.error is not None or (address.startswith("tls://") and arguments.get("ssl_context") is None):
        raise ClusterError(
            f"{address} needs certificates: {loaded.summary or 'none are configured'}. Name them in Dask's "
            "configuration as distributed.comm.tls.ca-file, .client.cert and .client.key, or in the environment as "
            "DASK_DISTRIBUTED__COMM__TLS__CA_FILE, ...__CLIENT__CERT and ...__CLIENT__KEY"
        )
    return arguments


def _identity(address: str, security: Mapping[str, Any], timeout_s: float) -> dict[str, Any]:
    """What a Dask server says it is.

    Dask's own client has no time-out for a server that accepts and then says nothing, hence this. It runs in a thread
    of its own since in a notebook this one already runs a loop.
    """

    async def ask() -> dict[str, Any]:
        """What the scheduler says of itself."""
        async with rpc(address, timeout=timeout_s, connection_args=security) as server:
            identity: dict[str, Any] = await asyncio.wait_for(server.identity(), timeout_s)
            return identity

    with ThreadPoolExecutor(max_workers=1) as thread:
        return thread.submit(asyncio.run, ask()).result()


def _what_is_there(address: str, error: str) -> _Finding:
    """Look with a plain socket: a Dask server speaks first, an HTTP server when it is asked."""
    try:
        host, port = get_address_host_port(address)
        with socket.create_connection((host, port), timeout=PROBE_S) as connection:
            return _what_answers(connection, address, error)
    except ConnectionRefusedError:
        return _Finding("nothing listens there")
    except socket.gaierror:
        return _Finding("its host name is not known")
    except OSError as unreachable:
        return _Finding(f"it cannot be reached ({type(unreachable).__name__}: {unreachable})")


def _what_answers(connection: socket.socket, address: str, error: str) -> _Finding:
    encrypted = address.startswith("tls://")
    try:
        greeting = connection.recv(256)
        if not greeting:
            return _Finding(f"something there closes the connection ({error})")
        if b"pickle-protocol" not in greeting:
            return _Finding(f"something other than Dask answers there, beginning {greeting[:20]!r}", lasting=True)
        if encrypted:
            return _Finding("a Dask server without TLS answers there: use tcp://", lasting=True)
        return _Finding(f"a Dask server answers there but does not get on with this one ({error})")
    except TimeoutError:
        connection.sendall(b"GET / HTTP/1.0\r\n\r\n")
    try:
        answer = connection.recv(16)
    except TimeoutError:
        return _Finding("something listens there but does not answer")
    except ConnectionResetError:
        if encrypted:
            return _Finding(f"a server with TLS answers there but refuses this client ({error})", lasting=True)
        return _Finding(
            "something there refuses unencrypted data: if it is a scheduler with TLS, use tls://", lasting=True
        )
    if answer.startswith(b"HTTP/"):
        return _Finding("an HTTP server answers there, as on the port of Dask's dashboard (8787)", lasting=True)
    return _Finding(f"something other than Dask answers there, beginning {answer!r}", lasting=True)
