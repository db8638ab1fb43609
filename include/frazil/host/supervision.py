"""Finds out what starts a stream's writers on this host, for advice to users: a supervisor, a shared application, or a
user.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from frazil import clock
from frazil.home import run_folder
from frazil.host.launcher import Observation, ProcessState
from frazil.host.local import LocalLauncher
from frazil.host.records import LaunchKind, read_supervision_times
from frazil.spec.model import StreamSpec
from frazil.timetext import format_utc

MAX_WATCH_AGE_MS = 30_000
"""Age of a supervisor's last record after which the writer counts as unsupervised."""


class Starter(StrEnum):
    """What starts a stream's next writer, according to the run folders on this host."""

    USER = "user"
    """A user's `frazil run` is the running writer, and nothing replaces it."""
    APPLICATION = "application"
    """A shared application runs, and starts the writers of its streams."""
    SUPERVISOR = "supervisor"
    SILENT_SUPERVISOR = "silent supervisor"
    """A supervisor has watched the stream on this host, but not recently."""
    NOTHING = "nothing"
    """No supervisor has ever watched the stream on this host."""


@dataclass(frozen=True, slots=True)
class Supervision:
    starter: Starter
    name: str
    """The stream, or its shared application, as `frazil run` takes it."""
    detail: str = ""
    """The pid of a user's writer, or the time of a silent supervisor's last record."""

    @property
    def is_active(self) -> bool:
        """Whether a supervisor or an application starts the next writer without a user."""
        return self.starter in {Starter.SUPERVISOR, Starter.APPLICATION}

    @property
    def start_command(self) -> str:
        """The command with which the user starts a stopped stream."""
        return f"frazil {'run' if self.starter in {Starter.USER, Starter.NOTHING} else 'resume'} {self.name}"

    @property
    def how_to_renew(self) -> str:
        """How the user starts a new writer, whether or not one runs."""
        run, restart = f"`frazil run {self.name}`", f"`frazil restart {self.name}`"
        match self.starter:
            case Starter.USER:
                return f"{self.how_to_end}, then {run}"
            case Starter.NOTHING:
                return f"{run} (or {restart}, if a supervisor on another host starts it)"
        return restart

    @property
    def how_to_end(self) -> str:
        """How the user ends the writer in the foreground."""
        return f"Ctrl-C in its terminal{f', or `kill {self.detail}`' if self.detail else ''}"

    @property
    def next_start(self) -> str:
        """A clause about when the next writer starts."""
        return self._describe("starts a writer within seconds", "starts a writer")

    @property
    def replacement(self) -> str:
        """A clause about when the running writer is replaced with a new one."""
        return self._describe("replaces the writer after the current batch", "replaces the writer")

    def _describe(self, if_soon: str, later: str) -> str:
        run = f"`frazil run {self.name}`"
        match self.starter:
            case Starter.USER:
                return f"no supervisor replaces a writer in the foreground: end it ({self.how_to_end}), then use {run}"
            case Starter.APPLICATION:
                return f"the application {self.name} {if_soon}"
            case Starter.SUPERVISOR:
                return f"its supervisor (Airflow) {if_soon}"
            case Starter.SILENT_SUPERVISOR:
                return (
                    f"its supervisor (Airflow) has been silent since {self.detail}, and {later} once it is back: check "
                    f"that its DAG is not paused, or use {run}"
                )
        return (
            f"no supervisor has watched it on this host, so {run} starts its writer, unless a supervisor on another "
            "host does"
        )


def find_supervision(spec: StreamSpec, *, now_ms: int, observed: Observation | None = None) -> Supervision:
    """Return what starts the stream's writers. `observed` is its writer on this host, if known."""
    observed = observed or _observe(spec.name)
    launch = observed.launch
    if launch and launch.kind is LaunchKind.HOSTED:
        if _observe(launch.application).process.is_alive:
            return Supervision(Starter.APPLICATION, launch.application)
        if spec.application == launch.application:  # otherwise, the stream has left the application
            return _find_starter(launch.application, _observe(launch.application), now_ms=now_ms)
    return _find_starter(spec.name, observed, now_ms=now_ms)


def _find_starter(stream: str, observed: Observation, *, now_ms: int) -> Supervision:
    launch = observed.launch
    if observed.process is ProcessState.FOREGROUND:
        return Supervision(Starter.USER, stream, str(launch.writer.pid) if launch and launch.writer else "")
    last_ms = read_supervision_times(run_folder(stream)).last_ms
    is_launched = launch is not None and launch.kind is LaunchKind.SUPERVISED and observed.process.is_alive
    if now_ms - last_ms <= MAX_WATCH_AGE_MS or (is_launched and not last_ms):
        return Supervision(Starter.SUPERVISOR, stream)
    if not last_ms:
        return Supervision(Starter.NOTHING, stream)
    return Supervision(Starter.SILENT_SUPERVISOR, stream, format_utc(last_ms))


def start_hint(spec: StreamSpec) -> str:
    """Return how a user starts a new writer of a stream."""
    return find_supervision(spec, now_ms=clock.now_ms()).how_to_renew


def _observe(stream: str) -> Observation:
    """Observe the writer. An unreadable record counts as none, because `frazil status` reports it."""
    try:
        return LocalLauncher(stream).observe()
    except (OSError, ValueError, TypeError, KeyError):
        return Observation(ProcessState.NEVER_LAUNCHED, None, None, ())
