"""Signals are requests while the block runs, and what they were before it afterwards."""

from __future__ import annotations

import os
import signal
import threading

import pytest

from pipeline.interrupts import Interrupts


def test_once_drains_twice_cancels_three_times_raises() -> None:
    before = signal.getsignal(signal.SIGINT)
    with Interrupts() as interrupts:
        assert not interrupts.draining
        os.kill(os.getpid(), signal.SIGINT)
        assert interrupts.draining
        assert not interrupts.cancelling
        os.kill(os.getpid(), signal.SIGINT)
        assert interrupts.cancelling
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before


def test_terminate_cancels_at_once() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with Interrupts() as interrupts:
        os.kill(os.getpid(), signal.SIGTERM)
        assert interrupts.cancelling
    assert signal.getsignal(signal.SIGTERM) is before


def test_outside_the_main_thread_signals_are_left_alone() -> None:
    before = signal.getsignal(signal.SIGINT)
    seen: list[object] = []

    def work() -> None:
        with Interrupts():
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [before]
