"""Collection and learning side by side, put together in Python: the stub engine beside a real learner."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from distributed import Client

from pipeline.cluster import connect
from pipeline.config import ClusterConfig, RunConfig
from pipeline.env_samplers import UniformEnvSampler
from pipeline.episode_store import EpisodeStore
from pipeline.game_scheduler import GameScheduler, SchedulerOptions
from pipeline.learner_tasks import LearnerTasks
from pipeline.model_registry import ModelRegistry
from pipeline.model_samplers import MirrorSampler
from pipeline.replay import EpisodeBuffer
from pipeline.staleness import Staleness
from pipeline.tracking import NullTracker
from pipeline.trainer import Progress, Trainer
from pipeline.training_log import LOG_NAME, TrainingLog, read_log
from tasks.base_model import read_base
from tasks.contracts import ModelRef
from tasks.errors import LearnerError
from tests.cluster.collections import check_books
from tests.learning_runs import training_config
from tests.tiny_model import make_model

pytestmark = pytest.mark.cluster


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("models") / "base")


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    """One worker for games and one that learns."""
    with connect(ClusterConfig(), slots=8, engine=True, learner="own_gpu") as client:
        yield client


def learner_process(client: Client) -> int:
    """The process id of the worker that learns."""
    workers = client.scheduler_info(n_workers=-1)["workers"]
    (learner,) = [address for address, worker in workers.items() if "LEARNER" in worker["resources"]]
    (pid,) = client.run(os.getpid, workers=[learner]).values()
    return int(pid)


class Run:
    """What a user would write to train in Python."""

    def __init__(self, client: Client, model: Path, run_dir: Path, lag: int, **learner: Any) -> None:
        config = RunConfig(
            **training_config(
                model,
                learner={"batch_steps": 16, "max_policy_lag": lag, **learner},
                engine="tests.learning_runs:SmallVocabularyEngine",
                engine_args={"latency_s": 0.01},
            )
        )
        assert config.learner is not None
        self.client, self.run_dir = client, run_dir
        self.base = read_base(str(model))
        self.lora = config.vllm.engine_spec(0).lora
        self.registry = ModelRegistry(config.vllm.policy(), run_dir / "registry.json")
        self.buffer = EpisodeBuffer(transforms=config.learner.rewards.transforms())
        self.staleness = Staleness(lag, 16, self.buffer.size)
        self.store = EpisodeStore(run_dir)
        self.scheduler = GameScheduler(
            config.vllm,
            NullTracker(),
            self.buffer,
            MirrorSampler(self.registry),
            UniformEnvSampler(config.environments.train),
            client=client,
            store=self.store,
            options=SchedulerOptions(prefetch=0.0 if lag == 0 else 0.25),
            admission=self.staleness,
        )
        self.spec = config.learner.spec(config.vllm, 0, run_dir / "checkpoints")

    def publish(self, files: Mapping[str, bytes], step: int) -> ModelRef:
        assert self.lora is not None
        return self.registry.publish(files, base=self.base, lora=self.lora, step=step, algorithm="reinforce")

    def train(self, learning_steps: int, checkpoint: Callable[[Progress], None] | None = None) -> Progress:
        with self.store, LearnerTasks(self.client, self.spec, self.scheduler.run_id) as learner:
            self.trainer = Trainer(
                self.scheduler,
                self.buffer,
                self.registry,
                learner,
                self.staleness,
                self.publish,
                TrainingLog(NullTracker(), self.run_dir),
                batch_steps=16,
                num_train_workers=8,
                checkpoint=checkpoint,
            )
            return self.trainer.train(learning_steps)


def test_on_policy_every_step_is_of_the_version_that_learns(client: Client, model: Path, tmp_path: Path) -> None:
    run = Run(client, model, tmp_path, lag=0)
    progress = run.train(5)
    assert (progress.number, progress.trained) == (5, 80)
    assert run.staleness.lags == {0: 80}
    stats = run.buffer.stats()
    assert stats.drawn == 80
    assert stats.discarded == run.staleness.dropped
    assert set(check_books(run.scheduler.ledger, tmp_path)) <= {"completed", "illegal_move"}
    shares = run.trainer.times.shares()
    assert shares["learning"] > 0 and shares["waiting"] > 0 and shares["publishing"] > 0 and shares["collecting"] > 0
    assert shares["learning"] + shares["waiting"] + shares["publishing"] <= 1


def test_a_step_is_in_the_log_before_its_checkpoint(client: Client, model: Path, tmp_path: Path) -> None:
    """A driver killed after the checkpoint must not lose the step's line; one killed before it takes the step again."""
    lines_at_checkpoints: list[int] = []

    def checkpoint(progress: Progress) -> None:
        lines_at_checkpoints.append(len(list(read_log(tmp_path / LOG_NAME))) - progress.number)

    Run(client, model, tmp_path, lag=0).train(3, checkpoint)
    assert lines_at_checkpoints == [0, 0, 0]


def test_a_lost_learner_costs_one_step(client: Client, model: Path, tmp_path: Path) -> None:
    run = Run(client, model, tmp_path, lag=1)
    pid = learner_process(client)

    def kill_in_mid_run() -> None:
        while not (tmp_path / LOG_NAME).exists() or len(list(read_log(tmp_path / LOG_NAME))) < 2:
            time.sleep(0.02)
        os.kill(pid, signal.SIGKILL)

    killer = threading.Thread(target=kill_in_mid_run)
    killer.start()
    progress = run.train(6)
    killer.join()
    assert learner_process(client) != pid
    assert (progress.number, progress.version + progress.skipped) == (6, 6)
    lines = list(read_log(tmp_path / LOG_NAME))
    assert [line["number"] for line in lines] == list(range(6))
    assert max(run.staleness.lags) <= 1
    check_books(run.scheduler.ledger, tmp_path)


def test_what_the_learner_raises_ends_the_run_with_every_game_recorded(
    client: Client, model: Path, tmp_path: Path
) -> None:
    diverging = {"algorithm": "tests.learning_runs:Diverging", "algorithm_args": {}, "max_skipped": 2}
    run = Run(client, model, tmp_path, lag=1, **diverging)
    with pytest.raises(LearnerError, match=r"not finite for the 2\. step in a row"):
        run.train(6)
    assert run.trainer.progress == Progress(number=1, version=0, trained=16, skipped=1)
    check_books(run.scheduler.ledger, tmp_path)
