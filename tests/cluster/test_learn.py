"""The learner on a real Dask worker: loaded beside the loop, refused at another version, restored after it was lost."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import dask
import pytest
from distributed import Client, KilledWorker, LocalCluster

from tasks.errors import ClusterError, ConfigError, LearnerError, LearnerVersionError
from tasks.learn import LEARNER_NAME, LearnerPlugin, restore_learner, train_step
from tasks.learner_contracts import LearnerSpec, TrainReport
from tests.cluster.conftest import SETTINGS
from tests.processes import DaskProcesses
from tests.tiny_model import make_model
from tests.unit.learner_samples import batch, sample, tiny_spec

pytestmark = pytest.mark.cluster

GOOD = sample(range(10, 30), [(5, 9), (12, 16)], [1.0, -0.5])


DRIVER = """
import sys, time
from distributed import Client
from tasks.contracts import EngineSpec
from tasks.guard import register
from tasks.host import GameHost
from tasks.learn import LearnerPlugin
from tasks.learner_contracts import LearnerSpec

client = Client(sys.argv[1])
client.wait_for_workers(1)
register(client, GameHost(EngineSpec("none", factory=None), "lost"))
client.register_plugin(LearnerPlugin(LearnerSpec(sys.argv[2], sys.argv[3], 4, 8, ("q_proj",))))
time.sleep(3600)
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    """A cluster of one learner."""
    with (
        dask.config.set(SETTINGS),
        LocalCluster(
            n_workers=1,
            threads_per_worker=1,
            processes=True,
            resources={"LEARNER": 1},
            memory_limit=None,
            dashboard_address=":0",
        ) as cluster,
        Client(cluster) as client,
    ):
        yield client


@pytest.fixture
def spec(client: Client, model: Path, tmp_path: Path) -> Iterator[LearnerSpec]:
    """A learner that is set up on the cluster."""
    spec = tiny_spec(model, tmp_path / "checkpoints")
    client.register_plugin(LearnerPlugin(spec))
    yield spec
    client.unregister_worker_plugin(LEARNER_NAME)


def run(client: Client, task: Any, *arguments: Any) -> Any:
    return client.submit(task, *arguments, pure=False, resources={"LEARNER": 1}).result(timeout=60)


def learn(client: Client, number: int, version: int) -> TrainReport:
    report: TrainReport = run(client, train_step, batch(GOOD, number=number, version=version), version)
    return report


def worker_pids(client: Client) -> list[int]:
    return list(client.run(os.getpid).values())


def test_steps_follow_each_other(client: Client, spec: LearnerSpec) -> None:
    assert run(client, restore_learner, 0) == 0
    reports = [learn(client, number, number) for number in range(3)]
    assert [(report.number, report.policy_version, report.skipped) for report in reports] == [
        (0, 1, False),
        (1, 2, False),
        (2, 3, False),
    ]
    assert len({report.adapter["adapter_model.safetensors"] for report in reports if report.adapter}) == 3


def test_another_version_is_refused_and_nothing_learned(client: Client, spec: LearnerSpec) -> None:
    learn(client, 0, 0)
    with pytest.raises(
        LearnerVersionError, match=r"step 5 expects policy version 0, .* the learner is at 1; .*Restore"
    ):
        learn(client, 5, 0)
    with pytest.raises(LearnerVersionError, match="its batch says 0, the learner is at 1"):
        run(client, train_step, batch(GOOD, number=1), 1)
    assert learn(client, 1, 1).policy_version == 2


def test_a_lost_worker_costs_the_step_it_was_at(client: Client, spec: LearnerSpec) -> None:
    learn(client, 0, 0)
    first = learn(client, 1, 1)
    (lost,) = worker_pids(client)
    killing = client.submit(os.kill, lost, signal.SIGKILL, pure=False, resources={"LEARNER": 1})
    with pytest.raises(KilledWorker):
        killing.result(timeout=60)
    client.wait_for_workers(1, timeout=60)
    with pytest.raises(LearnerVersionError, match=r"the learner is at 0; .*restore_learner\(1\)"):
        learn(client, 1, 1)  # what it did after version 1 never reached the driver
    assert run(client, restore_learner, 1) == 1
    again = learn(client, 1, 1)
    assert again.adapter == first.adapter
    assert again.policy_version == 2


def test_going_back_to_the_beginning(client: Client, spec: LearnerSpec) -> None:
    first = learn(client, 0, 0)
    learn(client, 1, 1)
    assert run(client, restore_learner, 0) == 0
    assert learn(client, 0, 0).adapter == first.adapter


def test_a_version_without_checkpoint_is_refused(client: Client, spec: LearnerSpec) -> None:
    with pytest.raises(LearnerError, match=r"no checkpoint of policy version 7 in .*; there are versions \[\]"):
        run(client, restore_learner, 7)


def test_a_model_that_cannot_be_loaded_is_said_at_the_first_call(client: Client, tmp_path: Path) -> None:
    client.register_plugin(LearnerPlugin(tiny_spec(tmp_path / "nowhere", tmp_path)))
    with pytest.raises(ConfigError, match="is a path to no folder; expected an existing model folder"):
        run(client, restore_learner, 0)
    empty = tmp_path / "empty"
    empty.mkdir()
    (empty / "config.json").write_text("{}")
    client.register_plugin(LearnerPlugin(tiny_spec(empty, tmp_path)))
    with pytest.raises(LearnerError, match=r"the learner cannot load .*empty: .*Expected a causal language model"):
        run(client, restore_learner, 0)
    client.unregister_worker_plugin(LEARNER_NAME)


def test_without_the_plugin_the_tasks_say_so(client: Client) -> None:
    with pytest.raises(ClusterError, match="has no 'selfplay-learner' plugin, which learning needs"):
        run(client, restore_learner, 0)


def test_settings_are_refused_on_the_driver(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"learner\.schedule is 'never'"):
        LearnerPlugin(tiny_spec(tmp_path, tmp_path, schedule="never"))


def test_a_learner_does_not_outlive_a_driver_that_is_killed(
    processes: DaskProcesses, model: Path, tmp_path: Path
) -> None:
    scheduler = processes.scheduler()
    processes.worker(scheduler, "LEARNER=1")
    driver = processes.python(DRIVER, scheduler, str(model), str(tmp_path))
    with Client(scheduler) as client:
        client.wait_for_workers(1, timeout=60)
        wait_until(lambda: any(client.run(has_learner).values()))
        os.kill(driver, signal.SIGKILL)
        wait_until(lambda: not any(client.run(has_learner).values()))


def has_learner(dask_worker: Any) -> bool:
    return LEARNER_NAME in dask_worker.plugins


def wait_until(condition: Callable[[], bool]) -> None:
    """Wait up to a minute; what did not come true by then fails the test."""
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)
