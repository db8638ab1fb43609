"""The records in a run folder: launches, exits, stop requests, and when the stream was supervised. Each record has the
id of its launch. Fields that a later version added are ignored. Times are in milliseconds since the epoch, UTC, unless
the name has another unit.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from frazil.errors import Failure
from frazil.json_files import read_json, replace_json
from frazil.typed_json import convert

EXITS_FILE = "exit.json"
SUPERVISOR_FILE = "supervisor.json"
WATCH_FILE = "watch.json"
MAX_RECORDED_EXITS = 50


class LaunchKind(StrEnum):
    SUPERVISED = "supervised"
    FOREGROUND = "foreground"
    """Launched by a user with `frazil run`. The supervisor does not stop it."""
    HOSTED = "hosted"
    """A stream's writer in the process of a shared application, which alone can end it."""


@dataclass(frozen=True, slots=True)
class ProcessMark:
    """Identifies a process by its pid and start time (psutil's `create_time`), because pids are reused."""

    pid: int
    started_at_s: float


@dataclass(frozen=True, slots=True)
class Launch:
    """One start of a writer. The lock file contains the latest launch."""

    id: str
    kind: LaunchKind
    launched_at_ms: int
    spec_fingerprint: str = ""
    generation: int = 0
    parent: ProcessMark | None = None
    writer: ProcessMark | None = None
    application: str = ""
    """The application that runs the stream; empty for a writer of its own."""
    streams: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredError:
    """The error of a writer, in its heartbeat and in the record of its exit."""

    error: str | None = None
    """The reason."""
    remedy: str = ""
    error_class: str = ""

    @property
    def cause(self) -> Failure | None:
        return None if self.error is None else Failure(self.error, self.remedy, self.error_class)

    @staticmethod
    def fields_of(cause: Failure | None) -> dict[str, Any]:
        return {"error": cause.reason, "remedy": cause.remedy, "error_class": cause.error} if cause else {}


@dataclass(frozen=True, slots=True)
class ExitRecord(StoredError):
    launch_id: str
    code: int | None
    """The exit code as in a shell (128 + n for signal n); None if no process waited for the writer."""
    started_at_ms: int
    ended_at_ms: int
    spec_fingerprint: str
    generation: int
    committed: bool
    stopped_for: str | None = None
    stalled_since_ms: int | None = None
    """When the stall began in which the writer ended."""
    table: str = ""
    """The writer's table; empty if the writer wrote no heartbeat."""

    @property
    def is_supervised(self) -> bool:
        """Whether a supervisor launched the writer. A user's `frazil run` leaves `spec_fingerprint` empty."""
        return bool(self.spec_fingerprint)


@dataclass(frozen=True, slots=True)
class StopRequest:
    launch_id: str
    requested_at_ms: int
    cause: str
    reason: str


@dataclass(frozen=True, slots=True)
class GivenUp:
    """The supervisor gave up on a launch or problem. It then starts no writer until an operator acts."""

    subject: str
    """The id of the launch that failed, or the problem that prevents a first launch."""
    at_ms: int
    reason: str
    table_fingerprint: str | None = None


@dataclass(frozen=True, slots=True)
class SupervisorNotes:
    stop: StopRequest | None = None
    given_up: GivenUp | None = None
    cleared: str | None = None
    """The id of the launch after which an operator requested a fresh start."""


@dataclass(frozen=True, slots=True)
class SupervisionTimes:
    """When supervisors were last active on this host, and the last gap in supervision; 0 without a record."""

    last_ms: int = 0
    away_since_ms: int = 0
    returned_at_ms: int = 0

    def record_step(self, now_ms: int, *, gap_ms: int) -> SupervisionTimes:
        """Return the record after a step at `now_ms`. A clock that was set back does not count as a gap."""
        if now_ms - self.last_ms > gap_ms:
            return SupervisionTimes(now_ms, away_since_ms=self.last_ms, returned_at_ms=now_ms)
        return dataclasses.replace(self, last_ms=now_ms)


def read_supervision_times(folder: Path) -> SupervisionTimes:
    try:
        return convert(read_json(folder / WATCH_FILE) or {}, SupervisionTimes)
    except (OSError, ValueError):
        return SupervisionTimes()


def write_supervision_times(folder: Path, watch: SupervisionTimes) -> None:
    replace_json(folder / WATCH_FILE, dataclasses.asdict(watch))


def read_exits(folder: Path) -> tuple[ExitRecord, ...]:
    return convert(read_json(folder / EXITS_FILE) or (), tuple[ExitRecord, ...])


def append_exit(folder: Path, record: ExitRecord) -> None:
    """Append an exit record, or replace the record of the same launch. Old records are removed."""
    earlier = [exit_ for exit_ in read_exits(folder) if exit_.launch_id != record.launch_id]
    exits = [*earlier, record]
    # Keep one launch that committed, because the supervisor needs to know whether one ever did.
    last_success = [e for e in exits[:-MAX_RECORDED_EXITS] if e.committed and e.is_supervised][-1:]
    replace_json(folder / EXITS_FILE, [dataclasses.asdict(e) for e in (*last_success, *exits[-MAX_RECORDED_EXITS:])])


def read_notes(folder: Path) -> SupervisorNotes:
    return convert(read_json(folder / SUPERVISOR_FILE) or {}, SupervisorNotes)


def write_notes(folder: Path, notes: SupervisorNotes) -> None:
    replace_json(folder / SUPERVISOR_FILE, dataclasses.asdict(notes))
