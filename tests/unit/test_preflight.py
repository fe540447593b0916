"""Whether a cluster's workers can carry a run, and the worker command that would make them."""

from __future__ import annotations

import shlex
from typing import Any

import pytest

from pipeline.preflight import shortfall, version_differences
from pipeline.worker_command import checked_scheduler, worker_command, worker_environment
from tasks.errors import ConfigError

SCHEDULER = "tcp://scheduler:8786"


def worker(seq: int = 0, gpu: int = 0, threads: int = 8, status: str = "running") -> dict[str, Any]:
    resources = {name: float(count) for name, count in (("SEQ", seq), ("GPU", gpu)) if count}
    return {"resources": resources, "nthreads": threads, "status": status}


def test_enough_is_enough() -> None:
    workers = {"a": worker(seq=4, gpu=1), "b": worker(seq=4, gpu=1)}
    assert shortfall(workers, SCHEDULER, 8, engine=True) is None
    assert shortfall({"a": worker(seq=8)}, SCHEDULER, 8, engine=False) is None


def test_no_workers() -> None:
    assert shortfall({}, SCHEDULER, 8, engine=True) == (
        "the cluster at tcp://scheduler:8786 cannot carry this run: 8 games at once need SEQ=8 in all on workers that "
        "offer GPU=1, there is SEQ=0. It has no workers. Start what is missing with: "
        "selfplay worker tcp://scheduler:8786 --games 8"
    )


def test_too_few_games_at_once() -> None:
    refusal = shortfall({"tcp://a:1": worker(seq=4), "tcp://b:1": worker(seq=2)}, SCHEDULER, 10, engine=False)
    assert refusal == (
        "the cluster at tcp://scheduler:8786 cannot carry this run: 10 games at once need SEQ=10 in all on workers, "
        "there is SEQ=6. Its workers: tcp://a:1 (SEQ=4 GPU=0, 8 threads), tcp://b:1 (SEQ=2 GPU=0, 8 threads). Start "
        "what is missing with: selfplay worker tcp://scheduler:8786 --games 4"
    )


def test_workers_without_gpu_do_not_count_for_an_engine() -> None:
    refusal = shortfall({"a": worker(seq=8), "b": worker(seq=2, gpu=1)}, SCHEDULER, 8, engine=True)
    assert refusal is not None
    assert "on workers that offer GPU=1, there is SEQ=2. Its workers: a (SEQ=8 GPU=0, 8 threads), b (SEQ=2" in refusal
    assert refusal.endswith("--games 6")


def test_workers_that_are_leaving_or_offer_no_seq_do_not_count() -> None:
    workers = {"a": worker(seq=8, status="closing_gracefully"), "learner": worker(gpu=1)}
    refusal = shortfall(workers, SCHEDULER, 8, engine=False)
    assert refusal is not None
    assert "there is SEQ=0. Its workers: learner (SEQ=0 GPU=1, 8 threads). Start" in refusal


def test_a_game_takes_a_thread() -> None:
    assert shortfall({"a": worker(seq=8, threads=2)}, SCHEDULER, 4, engine=False) == (
        "the worker a offers SEQ=8 but has 2 threads, expected at least as many as SEQ: a game takes both. Restart it "
        "with --nthreads 8"
    )


def test_a_long_list_of_workers_is_cut() -> None:
    refusal = shortfall({f"w{index}": worker(seq=1) for index in range(9)}, SCHEDULER, 10, engine=False)
    assert refusal is not None
    assert "w5 (SEQ=1 GPU=0, 8 threads) and 3 more. Start" in refusal


def versions(**workers: dict[str, str | None]) -> dict[str, Any]:
    here = {"python": "3.11.7.final.0", "dask": "1", "distributed": "1", "cloudpickle": "3", "selfplay-pipeline": "0.1"}
    return {
        "client": {"packages": here},
        "scheduler": {"packages": {**here, "selfplay-pipeline": None}},
        "workers": {name: {"packages": {**here, **changes}} for name, changes in workers.items()},
    }


def test_equal_versions_need_no_word() -> None:
    assert version_differences(versions(a={}, b={"python": "3.11.9.final.0"})) == ""


def test_other_versions_are_named() -> None:
    assert version_differences(
        versions(a={"python": "3.12.1.final.0", "distributed": "2"}, b={"selfplay-pipeline": None})
    ) == (
        "\nVersions differ, which can itself be the trouble: a has python 3.12 (here 3.11), distributed 2 (here 1)"
        "\nVersions differ, which can itself be the trouble: b has selfplay-pipeline missing (here 0.1)"
    )


def test_the_worker_command_offers_a_thread_and_a_seq_for_each_game() -> None:
    assert shlex.join(worker_command("tcp://host:8786", 12)) == (
        "dask worker tcp://host:8786 --nworkers 1 --nthreads 12 --resources 'SEQ=12 GPU=1' --memory-limit 0 "
        "--no-dashboard --death-timeout 60 --preload 'import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)'"
    )
    assert worker_command("shared/scheduler.json", 1)[2:4] == ["--scheduler-file", "shared/scheduler.json"]


def test_the_worker_environment_lets_engines_have_processes_and_threads() -> None:
    environment = {
        "DASK_DISTRIBUTED__WORKER__DAEMON": "False",
        "DASK_DISTRIBUTED__NANNY__PRE_SPAWN_ENVIRON": (
            '{"OMP_NUM_THREADS": None, "MKL_NUM_THREADS": None, "OPENBLAS_NUM_THREADS": None}'
        ),
    }
    assert worker_environment() == environment
    assert worker_environment(gpu=3) == environment | {"CUDA_VISIBLE_DEVICES": "3"}


@pytest.mark.parametrize(
    ("scheduler", "message"),
    [
        ("localhost:8786", "expected an address with its protocol, such as tcp://localhost:8786"),
        ("http://localhost:8787", "expected tcp://host:port, tls://host:port or a scheduler file"),
    ],
)
def test_an_address_in_another_form_is_refused(scheduler: str, message: str) -> None:
    with pytest.raises(ConfigError, match=f"^scheduler '{scheduler}': {message}$"):
        checked_scheduler(scheduler)
