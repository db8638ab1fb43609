"""CPU and memory of a command and of everything that it starts, however short-lived.

Sampling misses processes that end between two samples. The command therefore runs below a small process that is the
reaper of all its orphans (`PR_SET_CHILD_SUBREAPER`, Linux only): when the last descendant has been waited for, the
kernel's own account of its children is the CPU of the whole tree. Memory is sampled, as the sum of the processes'
proportional set sizes: what forked processes share counts once.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

PR_SET_CHILD_SUBREAPER = 36
SAMPLE_S = 0.5


@dataclass(frozen=True, slots=True)
class Usage:
    """What a tree of processes took."""

    cpu_s: float
    wall_s: float
    peak_bytes: int
    exit_code: int


def measured(
    command: Sequence[str],
    *,
    log: Path,
    done: Callable[[], bool] = lambda: False,
    timeout_s: float = 1800,
) -> Usage:
    """Run a command to its end; where `done` says so before that, it is asked to end with SIGTERM.

    Raises TimeoutError when it runs for longer.
    """
    report = log.with_suffix(".usage.json")
    began = time.monotonic()
    peak, stopped_after = 0, None
    with log.open("wb") as out:
        reaper = subprocess.Popen(
            [sys.executable, "-m", "bench.peer.process_tree", str(report), *command],
            stdout=out,
            stderr=out,
        )
    while reaper.poll() is None:
        peak = max(peak, _proportional_bytes(reaper.pid))
        if stopped_after is None and done():
            stopped_after = time.monotonic() - began
            reaper.terminate()
        if time.monotonic() - began > timeout_s:
            reaper.terminate()
            reaper.wait(60)
            raise TimeoutError(f"{command[0]} did not end within {timeout_s} s; see {log}")
        time.sleep(SAMPLE_S)
    wall = time.monotonic() - began if stopped_after is None else stopped_after
    found = json.loads(report.read_text())
    return Usage(found["cpu_s"], wall, peak, 0 if stopped_after is not None else found["exit_code"])


def _proportional_bytes(root: int) -> int:
    total = 0
    with contextlib.suppress(psutil.Error):
        for process in psutil.Process(root).children(recursive=True):
            with contextlib.suppress(psutil.Error, OSError):
                rollup = Path(f"/proc/{process.pid}/smaps_rollup").read_text()
                total += next(int(line.split()[1]) * 1024 for line in rollup.splitlines() if line.startswith("Pss:"))
    return total


def reap(report: Path, command: Sequence[str]) -> None:
    """Run the command below this process and wait for all that it leaves behind."""
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "this kernel has no child subreaper")
    root = subprocess.Popen(command)
    signal.signal(signal.SIGTERM, lambda *_: root.terminate())
    exit_code = root.wait()
    while True:
        try:
            os.wait()
        except ChildProcessError:
            break
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    report.write_text(json.dumps({"cpu_s": used.ru_utime + used.ru_stime, "exit_code": exit_code}))


if __name__ == "__main__":
    reap(Path(sys.argv[1]), sys.argv[2:])
