"""No engine process outlives its engine or its owner, however they end."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tasks.contracts import AdapterRef, EngineReply, SamplingSpec
from tasks.engine import VLLMEngine
from tasks.errors import AdapterError, EngineDiedError
from tests.engine.conftest import ENGINE_MARKS, LoopThread, Served, chat, running_engine, tiny_spec
from tests.processes import REPOSITORY

pytestmark = ENGINE_MARKS

GONE_WITHIN_S = 10.0


def ask_many(served: Served) -> list[asyncio.Future[EngineReply]]:
    sampling = SamplingSpec(max_tokens=200)
    return [
        asyncio.run_coroutine_threadsafe(
            served.engine.generate(chat(f"move {index}"), sampling, n=4, seed=0, adapter=None), served.on.loop
        )
        for index in range(8)
    ]


def wait_until_busy(served: Served) -> None:
    while served.engine.load()["running_requests"] == 0:
        time.sleep(0.01)


def assert_all_gone(processes: list[psutil.Process]) -> None:
    assert processes
    _, alive = psutil.wait_procs(processes, timeout=GONE_WITHIN_S)
    assert alive == []


def test_a_killed_core_fails_pending_and_later_requests_and_another_engine_can_follow(
    base: Path, loop_thread: LoopThread
) -> None:
    with running_engine(tiny_spec(base), loop_thread) as served:
        core = served.engine._processes[0]
        requests = ask_many(served)
        wait_until_busy(served)
        core.kill()
        for request in requests:
            with pytest.raises(EngineDiedError, match="died and answers no request"):
                request.result(timeout=GONE_WITHIN_S)
        with pytest.raises(EngineDiedError):
            served.generate("move")
    assert_all_gone(served.engine._processes)

    with running_engine(tiny_spec(base), loop_thread) as another:
        assert another.generate("move", max_tokens=4).completions
        with pytest.raises(AdapterError, match=r"started without LoRA. Set vllm\.lora_config"):
            another.generate("move", adapter=AdapterRef("policy@1", "/nowhere"))
        requests = ask_many(another)
        wait_until_busy(another)
        loop_thread.run(another.engine.stop())
        for request in requests:
            with pytest.raises(EngineDiedError, match="was stopped"):
                request.result(timeout=GONE_WITHIN_S)
        assert_all_gone(another.engine._processes)


def test_stopping_an_engine_that_is_starting_leaves_no_process(base: Path, loop_thread: LoopThread) -> None:
    earlier = set(multiprocessing.active_children())
    engine = VLLMEngine(tiny_spec(base))
    start = asyncio.run_coroutine_threadsafe(engine.start(), loop_thread.loop)
    while not (cores := set(multiprocessing.active_children()) - earlier):
        time.sleep(0.05)
    processes = [psutil.Process(core.pid) for core in cores]
    start.cancel()
    loop_thread.run(engine.stop())
    assert_all_gone(processes)


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's parent-death signal is Linux's")
def test_engine_processes_ignore_ctrl_c_and_die_with_a_killed_owner(base: Path) -> None:
    owner = subprocess.Popen(
        [sys.executable, "-m", "tests.engine.owner", str(base)],
        cwd=REPOSITORY,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    with owner:
        try:
            word, *pids = owner.stdout.readline().split()
            assert word == "ready"
            processes = [psutil.Process(int(pid)) for pid in pids]
            assert {process.name() for process in processes} >= {"VLLM::EngineCore", "VLLM::Worker"}

            os.killpg(owner.pid, signal.SIGINT)  # what Ctrl-C does
            for process in processes:
                process.send_signal(signal.SIGINT)
            owner.stdin.write("move\n")
            owner.stdin.flush()
            assert 1 <= int(owner.stdout.readline()) <= 4
        finally:
            owner.kill()
        assert_all_gone(processes)
