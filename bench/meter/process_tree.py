"""CPU and memory of a process and its descendants.

`SampledTree` samples the CPU of running processes. It misses processes that end between two samples. `measured` misses
no process of a command, however short-lived. It runs the command below a small process that adopts all its orphans
(`PR_SET_CHILD_SUBREAPER`, Linux only). When this process has waited for the last descendant, the kernel's count for its
children includes the CPU of all of them.

An exception are the children of a process that ignores SIGCHLD, such as the daemon of Spark's Python workers: the
kernel counts them nowhere. They are sampled ten times a second, and their last sample is added. The CPU after the last
sample is missed: at most 0.1 s per busy core.

Memory is sampled as the sum of the processes' proportional set sizes, so that pages shared by forked processes count
once.
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
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import psutil

PR_SET_CHILD_SUBREAPER = 36
SIGCHLD_BIT = 1 << (signal.SIGCHLD - 1)
MEMORY_SAMPLE_S = 0.5
CPU_SAMPLE_S = 0.1
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
ROLES = (
    ("kafka.Kafka", "Kafka"),
    ("org.apache.spark.launcher.Main", "launcher JVM"),
    ("org.apache.spark.deploy.SparkSubmit", "JVM"),
    ("CoarseGrainedExecutorBackend", "executor JVM"),
    ("spark-submit", "spark-submit (bash)"),
    ("spark-class", "spark-submit (bash)"),
    ("daemon", "worker daemon"),
    ("-version", "java -version"),
    ("/frazil run", "driver"),
)
"""Part of a command line, and the role of its process. The first match counts."""


@dataclass(frozen=True, slots=True)
class Usage:
    """CPU, wall time and peak memory of a tree of processes."""

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
    """Run a command until it ends, or end it with SIGTERM once `done` returns True.

    Raises TimeoutError after `timeout_s`.
    """
    report = log.with_suffix(".usage.json")
    began = time.monotonic()
    peak, stopped_after = 0, None
    with log.open("wb") as out:
        reaper = subprocess.Popen(
            [sys.executable, "-m", "bench.meter.process_tree", str(report), *command],
            stdout=out,
            stderr=out,
        )
    while reaper.poll() is None:
        peak = max(peak, proportional_bytes(reaper.pid))
        if stopped_after is None and done():
            stopped_after = time.monotonic() - began
            reaper.terminate()
        if time.monotonic() - began > timeout_s:
            reaper.terminate()
            reaper.wait(60)
            raise TimeoutError(f"{command[0]} did not end within {timeout_s} s; see {log}")
        with contextlib.suppress(subprocess.TimeoutExpired):
            reaper.wait(MEMORY_SAMPLE_S)
    wall = time.monotonic() - began if stopped_after is None else stopped_after
    found = json.loads(report.read_text())
    return Usage(found["cpu_s"], wall, peak, 0 if stopped_after is not None else found["exit_code"])


@dataclass(slots=True)
class PeakMemory:
    """Measures the peak memory of all processes below this one, until the `with` block ends.

    Ignores processes with `without` in their command line.
    """

    without: str
    peak_bytes: int = 0
    _over: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        assert self._thread is not None
        self._thread.join()

    def _sample(self) -> None:
        while not self._over.wait(MEMORY_SAMPLE_S):
            self.peak_bytes = max(self.peak_bytes, proportional_bytes(os.getpid(), without=self.without))


def proportional_bytes(root: int, *, without: str | None = None) -> int:
    """Return the memory of all processes below `root`, except those with `without` in their command line."""
    total = 0
    with contextlib.suppress(psutil.Error):
        for process in psutil.Process(root).children(recursive=True):
            with contextlib.suppress(psutil.Error, OSError):
                if without is not None and without in " ".join(process.cmdline()):
                    continue
                rollup = Path(f"/proc/{process.pid}/smaps_rollup").read_text()
                total += next(int(line.split()[1]) * 1024 for line in rollup.splitlines() if line.startswith("Pss:"))
    return total


def reap(report: Path, command: Sequence[str]) -> None:
    """Run the command below this process, and wait for all processes that it leaves behind."""
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
    """Start time in ticks since the machine's start. Together with the pid, it identifies a process."""
    own_ticks: int
    """CPU ticks of the process itself."""
    childrens_ticks: int
    """CPU ticks of the children for which the process has waited."""

    @classmethod
    def of(cls, pid: int) -> _Process | None:
        try:
            stat = Path(f"/proc/{pid}/stat").read_text()
        except (FileNotFoundError, ProcessLookupError):
            return None
        fields = stat.rpartition(")")[2].split()  # from the third on; the second, a name, may hold anything
        own, childrens = sum(map(int, fields[11:13])), sum(map(int, fields[13:15]))
        return cls(int(fields[1]), int(fields[19]), own, childrens)


def _processes() -> dict[int, _Process]:
    pids = [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]
    return {pid: process for pid in pids if (process := _Process.of(pid))}


@dataclass(slots=True)
class SampledProcess:
    """One process: the times of its first and last sample, in seconds since the tree's first sample, and its CPU
    seconds.
    """

    role: str
    first_s: float
    last_s: float
    cpu_s: float


@dataclass(slots=True)
class SampledTree:
    """A process, by default this one, and all processes ever seen below it, even if their parent has changed."""

    root: int = field(default_factory=os.getpid)
    role: str = "command"
    """The root's role."""
    began: float = field(default_factory=time.monotonic)
    sampled: dict[tuple[int, int], SampledProcess] = field(default_factory=dict)
    """Processes by pid and the kernel's start time."""

    def sample(self) -> None:
        found, now = _processes(), time.monotonic() - self.began
        ours = {pid for pid, _ in self.sampled} | {self.root}
        for pid, process in sorted(found.items()):
            if pid not in ours and process.parent not in ours:
                continue
            ours.add(pid)
            known = self.sampled.setdefault((pid, process.started), SampledProcess("", now, now, 0.0))
            known.last_s, known.cpu_s = now, process.own_ticks / TICKS_PER_S
            known.role = self._role(pid, process.parent) or known.role

    def cpu_s(self) -> Counter[str]:
        """Return CPU seconds by role: of a running process until now, of an ended one until its last sample."""
        self.sample()
        spent: Counter[str] = Counter()
        for process in self.sampled.values():
            spent[process.role] += process.cpu_s  # type: ignore[assignment]
        return spent

    def _role(self, pid: int, parent: int) -> str:
        if pid == self.root:
            return self.role
        try:
            words = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            return ""
        role = next((name for part, name in ROLES if part in words), words[:60])
        inherited = next((s.role for (p, _), s in self.sampled.items() if p == parent), "")
        return "Python worker" if role == inherited == "worker daemon" or inherited == "Python worker" else role


class Unaccounted:
    """Counts the CPU of processes that the kernel adds to no parent when they end."""

    def __init__(self, root: int) -> None:
        self._root = root
        self._ticks: dict[tuple[int, int], int] = {}

    @property
    def cpu_s(self) -> float:
        return sum(self._ticks.values()) / TICKS_PER_S

    def sample(self) -> None:
        children: dict[int, list[tuple[int, _Process]]] = defaultdict(list)
        for pid, process in _processes().items():
            children[process.parent].append((pid, process))
        parents = [self._root]
        while parents:
            parent = parents.pop()
            below = children.pop(parent, [])
            ignored = bool(below) and _ignores_children(parent)
            for pid, process in below:
                if ignored:
                    self._ticks[pid, process.started] = process.own_ticks + process.childrens_ticks
                parents.append(pid)

    def accounted(self, pid: int) -> None:
        """Forget an ended process whose new parent is about to wait for it."""
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
