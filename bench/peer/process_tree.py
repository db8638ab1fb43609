"""CPU and memory of a command and of everything that it starts, however short-lived.

Sampling misses processes that end between two samples. The command therefore runs below a small process that is the
reaper of all its orphans (`PR_SET_CHILD_SUBREAPER`, Linux only): when the last descendant has been waited for, the
kernel's own account of its children has the CPU of every process that was waited for.

Nobody waits for the children of a process that ignores SIGCHLD, as the daemon of Spark's Python workers does: the
kernel adds them to no account. These are sampled ten times a second, and their last sample is added. What such a
process uses after its last sample is missed: at most 0.1 s on each core that it keeps busy.

Memory is sampled too, as the sum of the processes' proportional set sizes: what forked processes share counts once.
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
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

PR_SET_CHILD_SUBREAPER = 36
SIGCHLD_BIT = 1 << (signal.SIGCHLD - 1)
MEMORY_SAMPLE_S = 0.5
CPU_SAMPLE_S = 0.1
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


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
        time.sleep(MEMORY_SAMPLE_S)
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
    """Run the command below this process, and wait for all that it leaves behind."""
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "this kernel has no child subreaper")
    root = os.posix_spawnp(command[0], command, os.environ)
    signal.signal(signal.SIGTERM, lambda *_: os.kill(root, signal.SIGTERM))
    unaccounted = Unaccounted(os.getpid())
    exit_code = 0
    while True:
        unaccounted.sample()
        try:
            while ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT):
                unaccounted.accounted(ended.si_pid)
                _, status = os.waitpid(ended.si_pid, 0)
                if ended.si_pid == root:
                    exit_code = os.waitstatus_to_exitcode(status)
        except ChildProcessError:
            break
        time.sleep(CPU_SAMPLE_S)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = used.ru_utime + used.ru_stime + unaccounted.cpu_s
    report.write_text(json.dumps({"cpu_s": cpu_s, "exit_code": exit_code}))


@dataclass(frozen=True, slots=True)
class _Process:
    parent: int
    started: int
    """Ticks since the machine's start: with the pid, it tells a process from a later one."""
    cpu_ticks: int
    """Its own, and those of the children that it has waited for."""

    @classmethod
    def of(cls, pid: int) -> _Process | None:
        try:
            stat = Path(f"/proc/{pid}/stat").read_text()
        except (FileNotFoundError, ProcessLookupError):
            return None
        fields = stat.rpartition(")")[2].split()  # from the third on; the second, a name, may hold anything
        return cls(int(fields[1]), int(fields[19]), sum(map(int, fields[11:15])))


class Unaccounted:
    """CPU of a tree's processes that the kernel adds to no account when they end."""

    def __init__(self, root: int) -> None:
        self._root = root
        self._ticks: dict[tuple[int, int], int] = {}

    @property
    def cpu_s(self) -> float:
        return sum(self._ticks.values()) / TICKS_PER_S

    def sample(self) -> None:
        children: dict[int, list[tuple[int, _Process]]] = defaultdict(list)
        for name in (path.name for path in Path("/proc").iterdir()):
            if name.isdigit() and (process := _Process.of(int(name))):
                children[process.parent].append((int(name), process))
        parents = [self._root]
        while parents:
            parent = parents.pop()
            below = children.pop(parent, [])
            ignored = bool(below) and _ignores_children(parent)
            for pid, process in below:
                if ignored:
                    self._ticks[pid, process.started] = process.cpu_ticks
                parents.append(pid)

    def accounted(self, pid: int) -> None:
        """The process has ended, and its new parent is about to wait for it."""
        if process := _Process.of(pid):
            self._ticks.pop((pid, process.started), None)


def _ignores_children(pid: int) -> bool:
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    mask = next((line.split()[1] for line in status.splitlines() if line.startswith("SigIgn:")), "0")
    return bool(int(mask, 16) & SIGCHLD_BIT)


if __name__ == "__main__":
    reap(Path(sys.argv[1]), sys.argv[2:])
