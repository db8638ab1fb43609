"""The interface with which a supervisor launches, observes and stops a writer. Also builds a writer's environment: the
settings that it needs, without Airflow's secrets.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import StrEnum

from frazil.host.heartbeat import Heartbeat
from frazil.host.lock import INHERITED_LOCK
from frazil.host.records import ExitRecord, Launch


class ProcessState(StrEnum):
    NEVER_LAUNCHED = "never launched"
    RUNNING = "running"
    FOREGROUND = "running in the foreground"
    HOSTED = "running in a shared application"
    ORPHANED = "ending, because its `frazil run` was killed"
    """A foreground writer commits its current batch, and then ends."""
    ENDING = "ending"
    """The writer has ended, and its parent waits until its JVM and Python workers have ended, too."""
    ENDED = "ended"

    @property
    def is_alive(self) -> bool:
        """Whether a process of the writer runs, and holds the lock."""
        return self not in {ProcessState.NEVER_LAUNCHED, ProcessState.ENDED}


@dataclass(frozen=True, slots=True)
class LaunchRequest:
    command: tuple[str, ...]
    environment: Mapping[str, str]
    """The complete environment of the writer. It may contain secrets, so it is never stored."""
    spec_fingerprint: str
    generation: int
    streams: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Observation:
    process: ProcessState
    launch: Launch | None
    """The latest launch; None if and only if `process` is NEVER_LAUNCHED."""
    heartbeat: Heartbeat | None
    exits: tuple[ExitRecord, ...]
    """The exits, oldest first, including exits of foreground launches."""


@dataclass(frozen=True, slots=True)
class LogPosition:
    launch_id: str
    offset_bytes: int


@dataclass(frozen=True, slots=True)
class LogChunk:
    lines: tuple[str, ...]
    position: LogPosition


class Launcher(ABC):
    """Runs one writer application, which outlives the process that launched it. Calls take up to a second."""

    @abstractmethod
    def launch(self, request: LaunchRequest) -> Launch:
        """Start the writer as a detached process, and return once it runs. Raises WriterBusy, EnvironmentUnusable."""

    @abstractmethod
    def observe(self) -> Observation:
        """Return the writer's current state. Also records an exit that has not been recorded yet."""

    @abstractmethod
    def stop(self, *, force: bool) -> None:
        """Ask the writer to end after its current batch, or with `force` kill it. Does not wait; may be repeated."""

    @abstractmethod
    def read_log(self, since: LogPosition | None, *, limit_bytes: int) -> LogChunk | None:
        """Return the complete log lines after a position, from at most the last `limit_bytes`; None without a log."""


PREFIXES = (
    *("FRAZIL_", "PYICEBERG_", "PYSPARK_", "SPARK_", "YARN_", "AWS_", "AZURE_", "GOOGLE_", "HADOOP_"),
    *("KRB5", "LC_", "OPENLINEAGE_", "OTEL_"),
)
NAMES = frozenset(
    {
        *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "TZ", "TMPDIR", "XDG_CACHE_HOME"),
        *("JAVA_HOME", "PYTHONPATH", "VIRTUAL_ENV", "LD_LIBRARY_PATH"),
        *("KUBECONFIG", "KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT"),
        *("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE"),
        *("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy"),
    }
)


def build_writer_environment(
    referenced: Collection[str], base: Mapping[str, str], *, connections: Mapping[str, str], python: str, home: str
) -> dict[str, str]:
    passed = {
        name: value
        for name, value in base.items()
        if value and (name in NAMES or name in referenced or name.startswith(PREFIXES)) and name != INHERITED_LOCK
    }
    exported = {f"AIRFLOW_CONN_{name.upper()}": value for name, value in connections.items()}
    # The output is not buffered, because the log is read while the writer runs.
    fixed = {"FRAZIL_HOME": home, "PYTHONUNBUFFERED": "1"}
    return {"PYSPARK_PYTHON": python, **passed, **exported, **fixed}
