"""Interrupts of the demo: Ctrl-C, SIGTERM, a closed terminal, or the end of its `make`."""

from __future__ import annotations

import fcntl
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import psutil

from frazil.errors import EnvironmentUnusable

ORPHAN_GRACE_S = 90
"""Time for which a new demo waits until an earlier demo has ended, if its `make` or terminal is gone."""

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupted(BaseException):
    """Ends the demo. Not an Exception, so that no handler treats it as a failure."""


class Interrupts:
    """Raises Interrupted in the main thread on a signal, or when the parent process is gone."""

    def __init__(self) -> None:
        for number in _SIGNALS:
            signal.signal(number, self._interrupt)
        threading.Thread(target=_end_with_parent, args=(os.getppid(),), daemon=True).start()

    def ignore(self) -> None:
        """Ignore further signals, so that they do not interrupt the clean-up."""
        for number in _SIGNALS:
            signal.signal(number, signal.SIG_IGN)

    def _interrupt(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002 - a signal handler's signature
        raise Interrupted(signal.Signals(number).name)


def _end_with_parent(parent: int) -> None:
    """Interrupt this process when its parent changes, because a killed `make` sends no signal.

    Repeats the interrupt until this process has ended, because Python ignores an exception inside a finalizer.
    """
    while True:
        time.sleep(0.5)
        if os.getppid() != parent:
            os.kill(os.getpid(), signal.SIGTERM)


@contextmanager
def only_demo(lock_file: Path) -> Iterator[None]:
    """Hold the lock of the demo in one home; the kernel frees it when the process ends.

    Raises:
        EnvironmentUnusable: another demo runs there.
    """
    lock_file.parent.mkdir(parents=True, exist_ok=True)
    with lock_file.open("a+") as lock:
        deadline = time.monotonic() + ORPHAN_GRACE_S
        waiting = False
        while not _take(lock.fileno()):
            holder = _holder(lock_file)
            if not _is_orphan(holder) or time.monotonic() > deadline:
                raise EnvironmentUnusable(
                    f"a demo runs here already (pid {holder}): end it with Ctrl-C in its terminal."
                )
            if not waiting:
                sys.stderr.write(f"waiting for an earlier demo (pid {holder}), which lost its terminal, to end ...\n")
                waiting = True
            time.sleep(0.5)
        lock.truncate(0)
        lock.write(str(os.getpid()))
        lock.flush()
        yield


def _take(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _holder(lock_file: Path) -> int:
    text = lock_file.read_text()
    return int(text) if text.isdigit() else 0


def _is_orphan(pid: int) -> bool:
    """Return whether the demo's `make` or terminal has ended: then the demo will end soon."""
    try:
        return psutil.Process(pid).ppid() <= 1
    except psutil.NoSuchProcess:
        return True
