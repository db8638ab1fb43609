"""Finds, signals and ends processes that are identified by pid and start time. A reused pid is never signalled.
Records agents, and asks them to kill their drivers. An agent is the local process of a writer whose Spark driver runs
in a cluster. Records which processes on this host serve the page, and with which version of frazil.
"""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil

from frazil import outdated_code
from frazil.home import home
from frazil.host.records import ProcessMark
from frazil.json_files import read_json, replace_json
from frazil.typed_json import convert

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
        running = psutil.Process(process.pid)
        return started_at(running, process.started_at_s) and not has_ended(running)
    except psutil.NoSuchProcess:
        return False


def started_at(process: psutil.Process, started_at_s: float) -> bool:
    """Return whether a process started at this time. Raises psutil.NoSuchProcess."""
    return abs(process.create_time() - started_at_s) < START_TOLERANCE_S


def has_ended(process: psutil.Process) -> bool:
    """Whether the process is gone, or is a zombie with no other threads: these could still hold ports and files."""
    try:
        return process.status() == psutil.STATUS_ZOMBIE and process.num_threads() <= 1
    except psutil.NoSuchProcess:
        return True


def is_listening(port: int) -> bool:
    """Whether a program on this host listens on the loopback port."""
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def terminate(process: ProcessMark) -> None:
    if is_alive(process):
        with suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGTERM)


def kill_group(process: ProcessMark) -> None:
    """Kill exactly this process, and its group if it leads one, as a writer with its JVM does."""
    if is_alive(process):
        with suppress(ProcessLookupError):
            leads_group = os.getpgid(process.pid) == process.pid
            (os.killpg if leads_group else os.kill)(process.pid, signal.SIGKILL)


GROUP_END_TIMEOUT_S = 5.0
"""Time that the JVM and Python workers have to end after the writer, before they are killed."""


def end_group(group: int, *, timeout_s: float, ask: bool = False) -> None:
    """Wait until no process of a group runs. After `timeout_s`, kill the rest. With `ask`, send SIGTERM first."""
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


AGENT_FILE = "agent.json"
KILL_SIGNAL = signal.SIGUSR1
AGENT_KILLED = (
    "the agent was killed, or its host went down; the driver in the cluster may still run, and the next start "
    "reattaches to it"
)
KILL_TIMEOUT_MS = 60_000
"""How long an agent may take to kill its driver. A slower agent is killed, and the next agent kills the driver."""


def record_agent(folder: Path) -> None:
    replace_json(folder / AGENT_FILE, {"pid": os.getpid()})


def is_agent(folder: Path, pid: int | None) -> bool:
    return _read_agent(folder, pid) is not None


def _read_agent(folder: Path, pid: int | None) -> dict[str, Any] | None:
    try:
        agent = read_json(folder / AGENT_FILE)
    except ValueError:
        return None
    return agent if pid is not None and isinstance(agent, dict) and agent.get("pid") == pid else None


def ask_agent_to_kill(folder: Path, writer: ProcessMark, *, now_ms: int) -> bool:
    """Ask an agent to kill its driver. Returns False if the process is not an agent, or was asked over a minute ago."""
    agent = _read_agent(folder, writer.pid)
    if agent is None:
        return False
    requested_ms = agent.get("requested_at_ms")
    if requested_ms is None:
        replace_json(folder / AGENT_FILE, {**agent, "requested_at_ms": now_ms})
    elif not 0 <= now_ms - requested_ms < KILL_TIMEOUT_MS:
        return False
    if is_alive(writer):
        with suppress(ProcessLookupError):
            os.kill(writer.pid, KILL_SIGNAL)
    return True


@dataclass(frozen=True, slots=True)
class PageServer:
    """A process that serves the page, and a hash of the package's files when it imported them."""

    process: ProcessMark
    folder: str
    files: str

    @property
    def is_outdated(self) -> bool:
        return outdated_code.hash_files(Path(self.folder)) != self.files


def register_page_server() -> None:
    """Record that this process serves the page, and remove records of ended processes. Raises OSError."""
    this_server = PageServer(
        identify_process(os.getpid()), str(outdated_code.FOLDER), outdated_code.hash_files(outdated_code.FOLDER)
    )
    for file, server in _read_records():
        if server is None or not is_alive(server.process):
            file.unlink(missing_ok=True)
    replace_json(_folder() / f"{socket.gethostname()}-{this_server.process.pid}.json", asdict(this_server))


def list_running_servers() -> list[PageServer]:
    return [server for _, server in _read_records() if server is not None and is_alive(server.process)]


def _read_records() -> Iterator[tuple[Path, PageServer | None]]:
    for file in sorted(_folder().glob(f"{socket.gethostname()}-*.json")):
        try:
            yield file, convert(read_json(file), PageServer)
        except ValueError:
            yield file, None


def _folder() -> Path:
    return home() / "page" / "servers"
