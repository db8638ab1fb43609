"""What a run folder says about its writer: who was launched, how it ended, what was asked of it.

Every record belongs to one launch by the launch's id, so a record of an earlier launch is never mistaken for one of
this launch. Times are milliseconds since the epoch, UTC, unless the name says otherwise.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from frazil.host.json_file import read_json, replace_json

EXITS_FILE = "exit.json"
NOTES_FILE = "supervisor.json"
WATCH_FILE = "watch.json"
EXITS_KEPT = 50


class LaunchKind(StrEnum):
    SUPERVISED = "supervised"
    FOREGROUND = "foreground"
    """`frazil run`: a person's own writer, which a supervisor leaves alone."""


@dataclass(frozen=True, slots=True)
class ProcessMark:
    """A process beyond doubt: its pid, and when it started (psutil's `create_time`), for pids are used again."""

    pid: int
    started_at_s: float


@dataclass(frozen=True, slots=True)
class Launch:
    """One start of a writer; the lock file holds the latest."""

    id: str
    kind: LaunchKind
    launched_at_ms: int
    spec_fingerprint: str = ""
    generation: int = 0
    """The desired state's generation that this launch obeys."""
    parent: ProcessMark | None = None
    writer: ProcessMark | None = None
    application: str = ""
    """The writer application; empty, as its streams, in a record of an earlier version."""
    streams: tuple[str, ...] = ()
    """What the application writes, by name."""

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Launch:
        """What a later version adds is left out: its writers may run beside this supervisor during an upgrade."""
        known = {field.name: value[field.name] for field in dataclasses.fields(cls) if field.name in value}
        marks = {k: ProcessMark(**value[k]) if value.get(k) else None for k in ("parent", "writer")}
        return cls(**{**known, "kind": LaunchKind(value["kind"]), "streams": tuple(value.get("streams", ())), **marks})


@dataclass(frozen=True, slots=True)
class ExitRecord:
    """How one launch ended."""

    launch_id: str
    code: int | None
    """As the shell counts (a signal is 128 + its number); None where nobody was left to see it."""
    started_at_ms: int
    ended_at_ms: int
    spec_fingerprint: str
    generation: int
    committed: bool
    """It committed at least one batch, so another start may get further still."""
    error: str | None = None
    stopped_for: str | None = None
    """The cause of the graceful stop that was asked of it; None where it ended on its own."""


@dataclass(frozen=True, slots=True)
class StopRequest:
    """A graceful stop that was asked of one launch, and why."""

    launch_id: str
    requested_at_ms: int
    cause: str
    reason: str


@dataclass(frozen=True, slots=True)
class GivenUp:
    """What the supervisor gave up on, once and aloud; after it, it holds until a person has acted."""

    subject: str
    """The id of the launch that failed, or the problem that keeps the first one from starting."""
    at_ms: int
    reason: str
    table_fingerprint: str | None = None
    """What a person's command may change in the table, as it stood then."""


@dataclass(frozen=True, slots=True)
class Notes:
    """What a supervisor must not forget when it is restarted."""

    stop: StopRequest | None = None
    given_up: GivenUp | None = None
    cleared: str | None = None
    """The id of the launch after whose end a person asked for a fresh start."""


@dataclass(frozen=True, slots=True)
class Watch:
    """Since when this host is looked at without a gap, whoever looked; all 0 where nobody wrote it down."""

    last_ms: int = 0
    away_since_ms: int = 0
    returned_at_ms: int = 0

    def looked(self, now_ms: int, *, gap_ms: int) -> Watch:
        """After a look now; a clock that was set back makes no gap."""
        if now_ms - self.last_ms > gap_ms:
            return Watch(now_ms, away_since_ms=self.last_ms, returned_at_ms=now_ms)
        return dataclasses.replace(self, last_ms=now_ms)


def read_watch(folder: Path) -> Watch:
    """One of another version is as none."""
    try:
        return Watch(**(read_json(folder / WATCH_FILE) or {}))
    except (ValueError, TypeError):
        return Watch()


def write_watch(folder: Path, watch: Watch) -> None:
    replace_json(folder / WATCH_FILE, dataclasses.asdict(watch))


def read_exits(folder: Path) -> tuple[ExitRecord, ...]:
    """The latest exits, oldest first; empty where no writer has ended yet."""
    raw = read_json(folder / EXITS_FILE)
    return tuple(ExitRecord(**record) for record in raw or [])


def append_exit(folder: Path, record: ExitRecord) -> None:
    """Add one exit, once: a launch ends only once, whoever writes it down."""
    known = [exit_ for exit_ in read_exits(folder) if exit_.launch_id != record.launch_id]
    exits = [*known, record]
    # Whether access ever worked is asked after any number of refusals.
    worked = [e for e in exits[:-EXITS_KEPT] if e.committed][-1:]
    replace_json(folder / EXITS_FILE, [dataclasses.asdict(e) for e in (*worked, *exits[-EXITS_KEPT:])])


def read_notes(folder: Path) -> Notes:
    raw = read_json(folder / NOTES_FILE) or {}
    return Notes(
        stop=StopRequest(**raw["stop"]) if raw.get("stop") else None,
        given_up=GivenUp(**raw["given_up"]) if raw.get("given_up") else None,
        cleared=raw.get("cleared"),
    )


def write_notes(folder: Path, notes: Notes) -> None:
    replace_json(folder / NOTES_FILE, dataclasses.asdict(notes))
