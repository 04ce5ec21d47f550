"""Processes that are forked from this one, with everything imported: a run costs milliseconds, and may be killed."""

import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path

from tqdm import tqdm

_PATIENCE = 300.0  # seconds until a child hangs; one takes a fraction of a second


def start(run: Callable[[], int], reported: Path) -> int:
    """Run in a child whose output goes to a file; returns its number."""
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if child:
        return child
    code = 70
    try:
        tqdm.set_lock(threading.RLock())  # its own is shared by all children: one killed in it would hold up all others
        descriptor = os.open(reported, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(descriptor, 1)
        os.dup2(descriptor, 2)
        code = run()
        sys.stdout.flush()
        sys.stderr.flush()
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def finish(child: int) -> int:
    """Wait for a child; returns its exit code, negative for a signal."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def run_in_child(run: Callable[[], int], reported: Path) -> int:
    """Run in a child, and wait for it; one that hangs is killed, and its exit code tells of SIGKILL."""
    return kill_after(start(run, reported), _PATIENCE)


def kill_after(child: int, seconds: float) -> int:
    """Kill a child with SIGKILL after a time, unless it ends before; returns its exit code."""
    deadline = time.perf_counter() + seconds
    while time.perf_counter() < deadline:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(min(0.001, max(0.0, deadline - time.perf_counter())))
    os.kill(child, signal.SIGKILL)
    return finish(child)
