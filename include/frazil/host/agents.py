"""Records agents, and asks them to kill their drivers. An agent is the local process of a writer whose Spark driver
runs in a cluster.
"""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path
from typing import Any

from frazil.host.json_file import read_json, replace_json
from frazil.host.processes import is_alive
from frazil.host.records import ProcessMark

AGENT_FILE = "agent.json"
KILL_SIGNAL = signal.SIGUSR1
"""Signal that asks an agent to kill its driver and then end."""
AGENT_KILLED = (
    "the agent was killed, or its host went down; the driver in the cluster may still run, and the next start "
    "reattaches to it"
)
"""The error of an agent that ended without a message."""
KILL_TIMEOUT_MS = 60_000
"""How long an agent may take to kill its driver. A slower agent is killed, and the next agent kills the driver."""


def record_agent(folder: Path) -> None:
    """Record in the run folder that this process is an agent, which handles KILL_SIGNAL."""
    replace_json(folder / AGENT_FILE, {"pid": os.getpid()})


def is_agent(folder: Path, pid: int | None) -> bool:
    """Whether the process with this pid, which uses or used the run folder, is an agent."""
    return _read_agent(folder, pid) is not None


def _read_agent(folder: Path, pid: int | None) -> dict[str, Any] | None:
    try:
        agent = read_json(folder / AGENT_FILE)
    except ValueError:
        return None
    return agent if pid is not None and isinstance(agent, dict) and agent.get("pid") == pid else None


def ask_agent_to_kill(folder: Path, writer: ProcessMark, *, now_ms: int) -> bool:
    """Ask an agent to kill its driver. Return False if it is no agent, or a minute has passed since the first call."""
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
