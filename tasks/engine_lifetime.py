"""Ties the life of an engine's processes to the process that owns the engine.

vLLM starts its core, and the core its workers, as child processes that outlive an owner killed with SIGKILL and keep
their memory. vLLM also calls every entry point of the group `vllm.general_plugins` in each process it starts;
`die_with_owner` is registered there (pyproject.toml) and asks the kernel to kill the process when its parent dies. It
has no effect in a process whose ancestors never called `claim_engines`, so other users of vLLM are untouched.

Standard library only; does nothing where the system is not Linux.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import multiprocessing
import os
import signal
import sys
import threading

OWNER_VARIABLE = "SELFPLAY_ENGINE_OWNER"

_PR_SET_PDEATHSIG = 1  # <linux/prctl.h>


def claim_engines() -> None:
    """Make every engine process that this process starts from now on die with it.

    The kernel watches the *thread* that starts a child, not the process: start the engine from a thread that lives as
    long as the engine.
    """
    os.environ[OWNER_VARIABLE] = str(os.getpid())


def die_with_owner() -> None:
    """In a child process of a claimed engine: die with the parent, exit fast, and leave Ctrl-C to the driver.

    Loaded by vLLM in the owner itself too, where it does nothing. A subprocess that is not a `multiprocessing` child
    (vLLM inspects models in one) is left alone.
    """
    owner = os.environ.get(OWNER_VARIABLE)
    parent = multiprocessing.parent_process()
    if sys.platform != "linux" or owner is None or owner == str(os.getpid()) or parent is None:
        return
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGKILL)) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed: the engine would outlive a killed owner")
    if not parent.is_alive():  # it died before the request above: no signal will come
        os.kill(os.getpid(), signal.SIGKILL)
    _ignore_interrupts()
    # Python's last garbage collection takes seconds on torch's objects, whose memory ends with the process anyway.
    atexit.register(gc.freeze)


def _ignore_interrupts() -> None:
    """Keep the terminal's Ctrl-C away: out of the foreground process group, and deaf to SIGINT.

    vLLM has installed its own SIGINT handler, which shuts the engine down, before it loads plugins; this replaces it.
    """
    with contextlib.suppress(PermissionError):  # a session leader is out of reach of the terminal's group already
        os.setpgid(0, 0)
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.SIG_IGN)
