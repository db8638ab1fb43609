"""Finds, signals and ends processes that are identified by pid and start time. A reused pid is never signalled."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress

import psutil

from frazil.host.records import ProcessMark

START_TOLERANCE_S = 2.0
"""Maximum difference between two readings of `create_time`, which shifts when the clock is corrected."""


def identify_process(pid: int) -> ProcessMark:
    """Return the identity of a running process. Raises psutil.NoSuchProcess."""
    return ProcessMark(pid, psutil.Process(pid).create_time())


def is_alive(process: ProcessMark | None) -> bool:
    """Whether exactly this process still runs. A zombie does not count."""
    if process is None:
        return False
    try:
        found = psutil.Process(process.pid)
        return abs(found.create_time() - process.started_at_s) < START_TOLERANCE_S and not has_ended(found)
    except psutil.NoSuchProcess:
        return False


def has_ended(process: psutil.Process) -> bool:
    """Whether the process is gone, or is a zombie without other threads, which may hold ports and files."""
    try:
        return process.status() == psutil.STATUS_ZOMBIE and process.num_threads() <= 1
    except psutil.NoSuchProcess:
        return True


def terminate(process: ProcessMark) -> None:
    """Send SIGTERM to exactly this process, if it still runs."""
    if is_alive(process):
        with suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGTERM)


def kill_group(process: ProcessMark) -> None:
    """Kill exactly this process, and its group if it leads one, such as that of a writer's JVM and workers."""
    if is_alive(process):
        with suppress(ProcessLookupError):
            leads_group = os.getpgid(process.pid) == process.pid
            (os.killpg if leads_group else os.kill)(process.pid, signal.SIGKILL)


def end_group(group: int, *, timeout_s: float, ask: bool = False) -> None:
    """Wait until no process of a group runs. With `ask`, send SIGTERM first. After `timeout_s`, kill what is left."""
    if ask:
        _signal_group(group, signal.SIGTERM)
    deadline_s = time.monotonic() + timeout_s
    while _is_group_running(group):
        if time.monotonic() > deadline_s:
            _signal_group(group, signal.SIGKILL)
            return
        time.sleep(0.1)


def _is_group_running(group: int) -> bool:
    """Whether a process of the group runs. Zombies do not count: in a container, they may never be reaped."""
    for process in psutil.process_iter():
        try:
            if os.getpgid(process.pid) == group and not has_ended(process):
                return True
        except (ProcessLookupError, psutil.NoSuchProcess):
            continue
    return False


def _signal_group(group: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.killpg(group, number)
