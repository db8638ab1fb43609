"""Starts and stops servers on a development machine, each in its own session.

A record in a file has a server's pid and start time, so that a reused pid never gets a signal. It is written before a
signal can interrupt the caller, so the records list all servers that may still run, even after a `kill -9`.
"""

from __future__ import annotations

import dataclasses
import json
import os
import random
import signal
import socket
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Self

import psutil

from frazil.errors import EnvironmentUnusable
from frazil.home import make_folder
from frazil.host import processes
from frazil.host.records import ProcessMark
from frazil.json_files import replace_json

PASSED_VARIABLES = frozenset(
    {"PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "TZ", "TMPDIR", "JAVA_HOME", "LD_LIBRARY_PATH"}
)
RECORD_SUFFIX = ".process.json"
PORT_FILE = "port"
LOOPBACK = "127.0.0.1"

PORTS = range(20_000, 32_000)
"""Range of ports to choose from. It is below the range of outgoing connections."""

_POLL_INTERVAL_S = 0.1
_BLOCKED_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_chosen_ports: set[int] = set()
"""Ports that this process has already chosen. Their servers may not be listening yet."""


@dataclass(frozen=True, slots=True)
class Server:
    name: str
    pid: int
    started_at_s: float
    log: str

    def record_path(self, folder: Path) -> Path:
        return folder / f"{self.name}{RECORD_SUFFIX}"


class EmbeddedService(ABC):
    @abstractmethod
    def start(self) -> Self:
        """Start the servers that are not running, and wait until they are ready."""

    @abstractmethod
    def stop(self) -> None:
        """Stop the servers that are running. Their data is kept."""

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()


class EmbeddedServer(EmbeddedService):
    TITLE: ClassVar[str]
    RECORD: ClassVar[str]
    READY_TIMEOUT_S: ClassVar[float]
    STOP_GRACE_S: ClassVar[float] = 20
    folder: Path
    log: Path
    port: int

    def __init__(self, folder: Path, *, port: int | None = None) -> None:
        self.folder = folder.absolute()
        self.log = self.folder / f"{self.RECORD}.log"
        self.port = port or last_port(self.folder) or choose_free_port()

    @property
    def address(self) -> str:
        """The address of the server, for clients."""
        return f"{LOOPBACK}:{self.port}"

    def _port_conflict(self) -> str:
        """Return text such as `a port other than 9092` if the server runs there; otherwise ""."""
        return "" if last_port(self.folder) == self.port else f"a port other than {self.port}"

    @abstractmethod
    def _launch(self) -> None:
        """Start the server's process."""

    @abstractmethod
    def _not_ready_reason(self) -> str | None:
        """Return None if the server is ready; otherwise the reason, or an empty string if unknown."""

    def _end_reason(self) -> str:
        return last_lines(self.log)

    def start(self) -> Self:
        """Start the server unless it runs, and wait until it is ready. Raises EnvironmentUnusable and MissingExtra."""
        if self.server() is None:
            self._launch()
        elif conflict := self._port_conflict():
            raise EnvironmentUnusable(
                f"{self.TITLE} of {self.folder} runs on {conflict}. End it first (`frazil dev down`), or omit the "
                "port options."
            )
        try:
            self._wait_until_ready()
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        stop_all(read_records(self.folder), records=self.folder, grace_s=self.STOP_GRACE_S)

    def kill(self) -> None:
        if server := self.server():
            kill(server)

    def server(self) -> Server | None:
        return find_server(self.RECORD, self.folder)

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + self.READY_TIMEOUT_S
        while True:
            if not self.server():
                raise EnvironmentUnusable(f"{self.TITLE} ended while it started: {self._end_reason()}")
            missing = self._not_ready_reason()
            if missing is None:
                return
            if time.monotonic() > deadline:
                reason = f": {missing}" if missing else ""
                raise EnvironmentUnusable(
                    f"{self.TITLE} does not answer on {self.address} after {self.READY_TIMEOUT_S:g} s{reason}; "
                    f"see {self.log}."
                )
            time.sleep(_POLL_INTERVAL_S)


def write_private(file: Path, text: str) -> None:
    file.touch(mode=0o600)
    file.write_text(text)


def server_environment() -> dict[str, str]:
    """Return the environment variables that an embedded server needs, without the shell's secrets."""
    return {name: value for name, value in os.environ.items() if name in PASSED_VARIABLES or name.startswith("LC_")}


def start(
    name: str, command: Sequence[str | Path], *, records: Path, log: Path, environment: Mapping[str, str] | None = None
) -> Server:
    """Start a server, detached from this terminal and session. Its output is appended to `log`.

    Without `environment`, the server gets `server_environment()`. The record is `<records>/<name>.process.json`. Ctrl-C
    and SIGTERM are delayed until the record is written.
    """
    for folder in (records, log.parent):
        make_folder(folder)
    argv = [str(part) for part in command]
    env = server_environment() if environment is None else dict(environment)
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, _BLOCKED_SIGNALS)
    try:
        pid = os.posix_spawnp(
            argv[0],
            argv,
            env,
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_OPEN, 1, str(log), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644),
                (os.POSIX_SPAWN_DUP2, 1, 2),
                *((os.POSIX_SPAWN_CLOSE, number) for number in _inherited_descriptors()),
            ],
            setsid=True,
            setsigmask=(),
            setsigdef=_BLOCKED_SIGNALS,
        )
        server = Server(name, pid, psutil.Process(pid).create_time(), str(log))
        replace_json(server.record_path(records), dataclasses.asdict(server))
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
    return server


def _inherited_descriptors() -> Iterator[int]:
    """Yield descriptors of this command's caller, such as a lock of `flock`, that a child would keep open."""
    for number in map(int, os.listdir("/dev/fd")):  # noqa: PTH208 - not paths
        with suppress(OSError):
            if number > 2 and os.get_inheritable(number):
                yield number


def read_records(records: Path) -> list[Server]:
    servers = []
    for path in records.glob(f"*{RECORD_SUFFIX}"):
        with suppress(FileNotFoundError):
            servers.append(Server(**json.loads(path.read_text())))
    return sorted(servers, key=lambda server: server.started_at_s)


def find_server(name: str, records: Path) -> Server | None:
    """Return the server of this name; None if it is not running. Removes its record once its session has ended."""
    for server in read_records(records):
        if server.name == name:
            if is_alive(server):
                return server
            if not _find_session_pids(server):
                server.record_path(records).unlink(missing_ok=True)
    return None


def is_alive(server: Server) -> bool:
    """Whether the recorded process runs. Zombies and other processes with its pid do not count."""
    with suppress(ChildProcessError):
        os.waitpid(server.pid, os.WNOHANG)
    return processes.is_alive(ProcessMark(server.pid, server.started_at_s))


def stop_all(servers: Sequence[Server], *, records: Path, grace_s: float = 20) -> None:
    """Stop servers and their whole sessions with SIGTERM, and with SIGKILL after `grace_s`. Removes their records."""
    _send_signal(servers, signal.SIGTERM)
    if not _wait_until_gone(servers, deadline=time.monotonic() + grace_s):
        _send_signal(servers, signal.SIGKILL)
        _wait_until_gone(servers, deadline=time.monotonic() + 10)
    for server in servers:
        server.record_path(records).unlink(missing_ok=True)


def kill(server: Server) -> None:
    """Kill the whole session with SIGKILL, as in a crash, and wait until it has ended. The record is kept."""
    _send_signal([server], signal.SIGKILL)
    _wait_until_gone([server], deadline=time.monotonic() + 10)


def last_lines(log: Path, count: int = 5) -> str:
    if not log.is_file():
        return ""
    return "\n".join(log.read_text(errors="replace").splitlines()[-count:])


def last_port(folder: Path) -> int | None:
    file = folder / PORT_FILE
    return int(file.read_text()) if file.is_file() else None


def record_port(folder: Path, port: int) -> None:
    make_folder(folder)
    (folder / PORT_FILE).write_text(str(port))


def choose_free_port() -> int:
    """Return a free port on loopback from `PORTS`. Never returns a port twice in one process."""
    for _ in range(200):
        port = random.choice(PORTS)
        if port not in _chosen_ports and is_port_free(port):
            _chosen_ports.add(port)
            return port
    raise EnvironmentUnusable(f"found no free port from {PORTS[0]} to {PORTS[-1]}; end some of the servers there.")


def require_free_port(port: int, *, server: str, option: str) -> None:
    if not is_port_free(port):
        raise EnvironmentUnusable(
            f"port {port}, wanted for {server}, is taken{_port_owner(port)}. "
            f"Choose another with {option}, or end that program."
        )


def is_port_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
    return True


def _port_owner(port: int) -> str:
    """Return text such as ` by java (pid 42)`; empty if unknown."""
    with suppress(psutil.Error):
        for connection in psutil.net_connections("tcp"):
            listens = connection.status == psutil.CONN_LISTEN and connection.laddr and connection.laddr[1] == port
            if listens and connection.pid:
                return f" by {psutil.Process(connection.pid).name()} (pid {connection.pid})"
    return ""


def _find_session_pids(server: Server) -> list[int]:
    """Return the live pids of the server's session, which may outlive its leader."""
    with suppress(psutil.NoSuchProcess):
        if not processes.started_at(psutil.Process(server.pid), server.started_at_s):
            return []
    return [
        process.pid
        for process in psutil.process_iter(["create_time"])
        if process.info["create_time"] >= server.started_at_s - processes.START_TOLERANCE_S
        and _session_id(process.pid) == server.pid
        and not processes.has_ended(process)
    ]


def _session_id(pid: int) -> int | None:
    try:
        return os.getsid(pid)
    except (ProcessLookupError, PermissionError):
        return None


def _send_signal(servers: Sequence[Server], number: signal.Signals) -> None:
    """Send a signal to every process. SIGTERM goes only to the group of a live leader, which ends its children."""
    for server in servers:
        members = _find_session_pids(server)
        with suppress(ProcessLookupError):
            if number == signal.SIGTERM and is_alive(server):
                os.killpg(server.pid, number)
                continue
        for pid in members:
            with suppress(ProcessLookupError):
                os.kill(pid, number)


def _wait_until_gone(servers: Sequence[Server], *, deadline: float) -> bool:
    while any(is_alive(server) or _find_session_pids(server) for server in servers):
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL_INTERVAL_S)
    return True
