"""The kernel's ties between an owner and its children, with plain processes for vLLM's."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import psutil
import pytest

from tasks.engine_lifetime import OWNER_VARIABLE, claim_engines, die_with_owner

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the parent-death signal is Linux's")

# A grandchild too, as a vLLM core has workers. Each process says who it is once it has loaded the plugin.
OWNER = """
import multiprocessing, os, signal, sys, time
from tasks.engine_lifetime import claim_engines, die_with_owner

def live(generations):
    signal.signal(signal.SIGINT, signal.default_int_handler)
    die_with_owner()
    child = spawn(generations - 1) if generations > 1 else None
    os.write(1, f"{os.getpid()} {os.getpgid(0)}\\n".encode())  # at once, since two processes write
    time.sleep(60)

def spawn(generations):
    child = multiprocessing.get_context("fork").Process(target=live, args=(generations,))
    child.start()
    return child

if sys.argv[1] == "claim":
    claim_engines()
spawn(2)
sys.stdin.read()
os._exit(0)
"""


@contextmanager
def owner_of_two(claim: str) -> Iterator[tuple[subprocess.Popen[str], list[psutil.Process], list[int]]]:
    """An owner, its two descendants and their process groups; nothing of it is left in the end."""
    environment = {name: value for name, value in os.environ.items() if name != OWNER_VARIABLE}
    with subprocess.Popen(
        [sys.executable, "-c", OWNER, claim],
        env=environment | {"PYTHONPATH": os.pathsep.join(sys.path)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as owner:
        processes: list[psutil.Process] = []
        groups: list[int] = []
        try:
            for _ in range(2):
                pid, group = map(int, owner.stdout.readline().split())
                processes.append(psutil.Process(pid))
                groups.append(group)
            yield owner, processes, groups
        finally:
            owner.kill()
            for process in processes:
                if process.is_running():
                    process.kill()


def test_descendants_of_a_claimed_owner_die_with_it() -> None:
    with owner_of_two("claim") as (owner, processes, _):
        owner.kill()
        _, alive = psutil.wait_procs(processes, timeout=10)
        assert alive == []


def test_without_a_claim_nothing_changes() -> None:
    with owner_of_two("no claim") as (owner, processes, groups):
        assert groups == [owner.pid, owner.pid]
        owner.kill()
        gone, _ = psutil.wait_procs(processes, timeout=0.3)
        assert gone == []


def test_ctrl_c_reaches_no_descendant_of_a_claimed_owner() -> None:
    with owner_of_two("claim") as (owner, processes, groups):
        assert owner.pid not in groups
        for process in processes:
            process.send_signal(signal.SIGINT)
        gone, _ = psutil.wait_procs(processes, timeout=0.3)
        assert gone == []


def test_the_owner_itself_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(OWNER_VARIABLE, "set back after the test")
    group, handler = os.getpgid(0), signal.getsignal(signal.SIGINT)
    claim_engines()
    die_with_owner()
    assert (os.getpgid(0), signal.getsignal(signal.SIGINT)) == (group, handler)
