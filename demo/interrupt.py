"""How a demo ends before its end: Ctrl-C, SIGTERM, a closed terminal, or a `make` that was killed above it."""

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
"""How long a second demo waits for one that has lost its `make` and is ending itself."""

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupted(BaseException):
    """Whoever runs the demo wants it to end. Not an Exception: nothing on the way may take it for a failure."""


class Interrupts:
    """Raises Interrupted in the main thread when a signal comes, or when the process that started this one is gone."""

    def __init__(self) -> None:
        for number in _SIGNALS:
            signal.signal(number, self._interrupt)
        threading.Thread(target=_end_with_parent, args=(os.getppid(),), daemon=True).start()

    def ignore(self) -> None:
        """From here on everything is being ended, which no further signal may cut short."""
        for number in _SIGNALS:
            signal.signal(number, signal.SIG_IGN)

    def _interrupt(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002 - a signal handler's signature
        raise Interrupted(signal.Signals(number).name)


def _end_with_parent(parent: int) -> None:
    """A `make` that is killed tells nobody; its child finds itself with another parent.

    Python drops what a handler raises inside a finalizer: so it is said again until this process is gone.
    """
    while True:
        time.sleep(0.5)
        if os.getppid() != parent:
            os.kill(os.getpid(), signal.SIGTERM)


@contextmanager
def only_demo(lock_file: Path) -> Iterator[None]:
    """Hold the lock of one home's demo; the kernel lets it go with the process, however that ends.

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
    """Whether its `make` or terminal is gone: then it has noticed, and is about to end."""
    try:
        return psutil.Process(pid).ppid() <= 1
    except psutil.NoSuchProcess:
        return True
