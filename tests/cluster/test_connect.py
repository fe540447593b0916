"""Joining a cluster of other people's processes, and every refusal of one that will not do."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import dask
import psutil
import pytest
from distributed import Client
from distributed.security import Security

from pipeline.cluster import connect, preflight
from pipeline.config import ClusterConfig
from tasks.errors import ClusterError
from tests.cluster.probes import eventually, worker_process
from tests.processes import DaskProcesses

pytestmark = pytest.mark.cluster

REFUSED_WITHIN_S = 10.0
SCHEDULER = "from distributed.cli.dask_scheduler import main; main()"
SELFPLAY = "import sys; from pipeline.cli import main; sys.exit(main())"


class Cluster:
    """A scheduler as `dask scheduler` starts it, with its file, and workers as they are asked for."""

    def __init__(self, folder: Path, settings: dict[str, object] | None = None, *arguments: str) -> None:
        folder.mkdir()
        self.processes = DaskProcesses(folder, settings or {})
        self.folder = folder
        self.file = folder / "scheduler.json"
        self.processes.python(
            SCHEDULER,
            *("--host", "127.0.0.1", "--port", "0", "--dashboard-address", "127.0.0.1:0", *arguments),
            *("--scheduler-file", str(self.file)),
        )
        described = eventually(lambda: json.loads(self.file.read_text()) if self.file.exists() else None)
        self.address: str = described["address"]
        self.dashboard_port: int = described["services"]["dashboard"]

    def selfplay_worker(self, scheduler: str, games: int) -> int:
        return self.processes.python(SELFPLAY, "worker", scheduler, "--games", str(games))

    def wait_for_workers(self, count: int) -> None:
        with Client(self.address) as client:
            client.wait_for_workers(count, timeout=60)


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A scheduler without workers."""
    cluster = Cluster(tmp_path_factory.mktemp("clusters") / "empty")
    yield cluster
    cluster.processes.close()


@pytest.fixture(scope="module")
def staffed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A scheduler with two `selfplay worker --games 4`, one that was given its address and one its file."""
    cluster = Cluster(tmp_path_factory.mktemp("clusters") / "staffed")
    cluster.selfplay_worker(cluster.address, 4)
    cluster.selfplay_worker(str(cluster.file), 4)
    cluster.wait_for_workers(2)
    yield cluster
    cluster.processes.close()


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A scheduler with one `dask worker` that offers `SEQ` but no `GPU`."""
    cluster = Cluster(tmp_path_factory.mktemp("clusters") / "plain")
    cluster.processes.worker(cluster.address, "SEQ=8")
    cluster.wait_for_workers(1)
    yield cluster
    cluster.processes.close()


def by_address(address: str, timeout_s: float = 1.0) -> ClusterConfig:
    """A config that joins `address`; impatient, to save time where patience changes nothing."""
    return ClusterConfig(kind="address", address=address, timeout_s=timeout_s)


PATIENCE_S = ClusterConfig().timeout_s


def refusal(config: ClusterConfig, *, slots: int = 1, engine: bool = False) -> str:
    """Why `connect` refuses, which it does in time also when it is as patient as it is by default."""
    started = time.monotonic()
    with pytest.raises(ClusterError) as refused, connect(config, slots=slots, engine=engine):
        pass
    assert time.monotonic() - started < REFUSED_WITHIN_S
    return str(refused.value)


def test_a_cluster_is_joined_by_address(staffed: Cluster) -> None:
    with connect(by_address(staffed.address), slots=8, engine=True) as client:
        workers = client.scheduler_info(n_workers=-1)["workers"].values()
        assert [worker["resources"] for worker in workers] == [{"SEQ": 4.0, "GPU": 1.0}] * 2
        assert [(worker["nthreads"], worker["memory_limit"]) for worker in workers] == [(4, 0)] * 2
        assert client.submit(sum, [1, 2], resources={"SEQ": 1}).result() == 3
    # It is other people's: it stays.
    with connect(by_address(staffed.address), slots=8, engine=True) as client:
        assert client.submit(sum, [1, 2], resources={"SEQ": 1}).result() == 3


def test_a_cluster_is_joined_by_its_file(staffed: Cluster) -> None:
    config = ClusterConfig(kind="scheduler_file", scheduler_file=str(staffed.file))
    with connect(config, slots=8, engine=True) as client:
        assert client.scheduler.address == staffed.address


def test_selfplay_workers_let_an_engine_have_processes_and_threads(staffed: Cluster) -> None:
    with connect(by_address(staffed.address), slots=1, engine=True) as client:
        assert set(client.run(worker_process).values()) == {(False, None, str(Path.cwd()))}


def test_a_missing_worker_may_still_come(empty: Cluster) -> None:
    # A scheduler of its own, so that `empty` stays empty.
    cluster = Cluster(empty.folder / "late")
    try:
        pid = cluster.selfplay_worker(cluster.address, 2)
        with connect(by_address(cluster.address, timeout_s=60), slots=2, engine=True) as client:
            assert client.ncores()
        log = next(file for file in cluster.folder.glob("*.log") if "Start Nanny" in file.read_text())
        # To the worker and its nanny, as a terminal does.
        for process in [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]:
            process.send_signal(signal.SIGINT)
        eventually(lambda: cluster.processes.has_ended(pid))
        assert "Worker closed" in log.read_text()
        assert "killing" not in log.read_text()
    finally:
        cluster.processes.close()


def test_nothing_listens() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"tcp://127.0.0.1:{unused.getsockname()[1]}"
        assert refusal(by_address(address, PATIENCE_S)) == (
            f"no Dask scheduler at {address}: nothing listens there. Expected the address that `dask scheduler` prints "
            "as 'Scheduler at', such as tcp://host:8786"
        )


def test_a_host_that_is_not_known() -> None:
    address = "tcp://no-such-host.invalid:8786"
    assert refusal(by_address(address)).startswith(f"no Dask scheduler at {address}: its host name is not")


def test_the_port_of_the_dashboard(empty: Cluster) -> None:
    address = f"tcp://127.0.0.1:{empty.dashboard_port}"
    assert refusal(by_address(address, PATIENCE_S)) == (
        f"no Dask scheduler at {address}: an HTTP server answers there, as on the port of Dask's dashboard (8787). "
        "Expected the address that `dask scheduler` prints as 'Scheduler at', such as tcp://host:8786"
    )


def test_something_that_never_answers() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"tcp://127.0.0.1:{silent.getsockname()[1]}"
        assert "something listens there but does not answer" in refusal(by_address(address, PATIENCE_S))


def test_something_that_speaks_another_language() -> None:
    with talking(b"SSH-2.0-server\r\n") as port:
        message = refusal(by_address(f"tcp://127.0.0.1:{port}"))
    assert "something other than Dask answers there, beginning b'SSH-2.0-server" in message


@contextmanager
def talking(greeting: bytes) -> Iterator[int]:
    """A server on the port it yields that greets whoever connects."""
    server = (
        "import socket\n"
        "server = socket.create_server(('127.0.0.1', 0)); print(server.getsockname()[1], flush=True); calls = []\n"
        f"while True: calls.append(server.accept()[0]); calls[-1].sendall({greeting!r})"
    )
    with subprocess.Popen([sys.executable, "-c", server], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield int(process.stdout.readline())
        process.kill()


def test_the_address_of_a_worker(staffed: Cluster) -> None:
    with connect(by_address(staffed.address), slots=1, engine=False) as client:
        worker = next(iter(client.ncores()))
    assert refusal(by_address(worker)).startswith(f"no Dask scheduler at {worker}: a Dask worker answers there. ")


def test_a_scheduler_file_that_is_missing(tmp_path: Path) -> None:
    file = tmp_path / "none.json"
    assert refusal(ClusterConfig(kind="scheduler_file", scheduler_file=str(file), timeout_s=1)) == (
        f"scheduler file {file}: there is no such file, after 1 s. Expected the file that "
        f"`dask scheduler --scheduler-file {file}` writes, on a file system that both machines see"
    )


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"address'])
def test_a_scheduler_file_that_is_garbled(tmp_path: Path, text: str) -> None:
    file = tmp_path / "scheduler.json"
    file.write_text(text)
    message = refusal(ClusterConfig(kind="scheduler_file", scheduler_file=str(file), timeout_s=0.5))
    assert message.startswith(f"scheduler file {file}: it does not hold a scheduler's address (")


def test_no_workers(empty: Cluster) -> None:
    assert refusal(by_address(empty.address, PATIENCE_S), slots=10, engine=True) == (
        f"the cluster at {empty.address} cannot carry this run: 10 games at once need SEQ=10 in all on workers that "
        "offer GPU=1, there is SEQ=0. It has no workers. Start what is missing with: "
        f"selfplay worker {empty.address} --games 10"
    )


def test_too_few_games_at_once(staffed: Cluster) -> None:
    message = refusal(by_address(staffed.address), slots=20, engine=True)
    assert (
        "20 games at once need SEQ=20 in all on workers that offer GPU=1, there is SEQ=8. Its workers: tcp://"
        in message
    )
    assert message.count("(SEQ=4 GPU=1, 4 threads)") == 2
    assert message.endswith(f"Start what is missing with: selfplay worker {staffed.address} --games 12")


def test_workers_without_gpu(plain: Cluster) -> None:
    message = refusal(by_address(plain.address), slots=8, engine=True)
    assert "need SEQ=8 in all on workers that offer GPU=1, there is SEQ=0. Its workers: tcp://" in message
    assert message.endswith(
        f"(SEQ=8 GPU=0, 8 threads). Start what is missing with: selfplay worker {plain.address} --games 8"
    )
    with connect(by_address(plain.address), slots=8, engine=False) as client:
        preflight(client, 8, engine=False)
        with pytest.raises(ClusterError, match="there is SEQ=0"):
            preflight(client, 8, engine=True)


def test_more_games_than_threads(empty: Cluster) -> None:
    cluster = Cluster(empty.folder / "narrow")
    try:
        cluster.processes.worker(cluster.address, "SEQ=9 GPU=1")
        cluster.wait_for_workers(1)
        message = refusal(by_address(cluster.address), slots=1, engine=True)
        assert "offers SEQ=9 but has 8 threads, expected at least as many as SEQ: a game takes both." in message
        assert message.endswith("Restart it with --nthreads 9")
    finally:
        cluster.processes.close()


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    """Dask's settings for TLS, with certificates made for the test."""
    folder = tmp_path_factory.mktemp("certificates")
    security = Security.temporary()
    for name in ("tls_ca_file", "tls_client_cert", "tls_client_key"):
        (folder / name).write_text(getattr(security, name))
    settings: dict[str, object] = {"distributed.comm.tls.ca-file": str(folder / "tls_ca_file")}
    for role in ("scheduler", "worker", "client"):
        settings[f"distributed.comm.tls.{role}.cert"] = str(folder / "tls_client_cert")
        settings[f"distributed.comm.tls.{role}.key"] = str(folder / "tls_client_key")
    return settings


def test_a_cluster_with_tls(empty: Cluster, certificates: dict[str, object]) -> None:
    cluster = Cluster(empty.folder / "tls", certificates, "--protocol", "tls")
    try:
        plaintext = cluster.address.replace("tls://", "tcp://")
        assert "unencrypted data: if it is a scheduler with TLS, use tls://." in refusal(by_address(plaintext))
        assert refusal(by_address(cluster.address)).startswith(
            f"{cluster.address} needs certificates: none are configured. Name them in Dask's configuration"
        )
        with dask.config.set(certificates):
            cluster.processes.worker(cluster.address, "SEQ=1 GPU=1")
            with connect(by_address(cluster.address, timeout_s=30), slots=1, engine=True) as client:
                assert client.scheduler.address == cluster.address
            without = empty.address.replace("tcp://", "tls://")
            assert f"{without}: a Dask server without TLS answers there: use tcp://." in refusal(by_address(without))
        with dask.config.set({"distributed.comm.tls.ca-file": "/none", "distributed.comm.tls.client.cert": "/none"}):
            assert "needs certificates: FileNotFoundError" in refusal(by_address(cluster.address))
    finally:
        cluster.processes.close()
