"""The state of one stream, for its task in Airflow, the page, `frazil status`, alert rules and notifications."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum

from frazil.host.heartbeat import Stall
from frazil.host.launcher import ProcessState
from frazil.status.flow import Flow


class State(StrEnum):
    """A state, with its label on the page, in Airflow's task and in `frazil status`."""

    STARTING = "starting"
    RUNNING = "running"
    SLOW = "slow"
    """Its batches take longer than the commit interval, so its lag grows."""
    STALLED = "stalled"
    OUTAGE = "waits for catalog or storage"
    STOPPING = "stopping"
    PAUSED = "paused"
    STOPPED = "stopped"
    """No writer runs, and none may start yet."""
    CRASH_LOOPING = "crash-looping"
    GIVEN_UP = "given up"
    REMOVED = "removed"
    UNKNOWN = "unknown"
    """The state cannot be read."""
    PAUSING = "pausing"
    RESTARTING = "restarting"
    SILENT = "silent"
    LATE = "late"
    PROBLEM = "has a problem"
    NO_TABLE = "no table"
    TABLE_UNREADABLE = "table unreadable"
    NO_WRITER = "no writer"
    ELSEWHERE = "commits elsewhere"
    NOT_BEGUN = "not begun"
    LOADING = "loading"
    NO_ANSWER = "no answer"
    UNREADABLE = "unreadable"
    RESTART_NEEDED = "restart needed"
    """The process that shows it needs a restart: frazil was upgraded while it runs."""


class Level(IntEnum):
    """How urgently something needs attention, most urgent first."""

    BROKEN = 0
    """It stands still until an operator acts."""
    TROUBLE = 1
    """It continues, but needs attention."""
    UNKNOWN = 2
    """It is being read, or does not respond."""
    QUIET = 3
    """It is idle as wanted: paused, or not begun."""
    WELL = 4


@dataclass(frozen=True, slots=True)
class WriterProcess:
    """The writer's process on this host. Times are milliseconds since the epoch, UTC."""

    state: str = "unknown"
    pid: int | None = None
    phase: str | None = None
    batch_records: int = 0
    """Records that its current batch has read so far."""
    heartbeat_at_ms: int | None = None
    stale: bool = False
    """Whether it runs with an old heartbeat."""
    exit_code: int | None = None
    exit_name: str | None = None
    ended_at_ms: int | None = None
    error: str | None = None
    application: str | None = None
    """The shared application that ran it, if it has ended."""
    fenced: bool = False
    """Whether it runs but cannot commit, because the stream has a newer epoch."""
    epoch: int | None = None
    """Its newest epoch; None before the first."""

    @property
    def has_ended(self) -> bool:
        """Whether a writer ran on this host, and none runs now."""
        return self.state == ProcessState.ENDED


@dataclass(frozen=True, slots=True)
class StreamState:
    """The state of one stream. Unknown values are None; `problems` says why."""

    name: str
    table: str = ""
    state: State = State.UNKNOWN
    level: Level = Level.UNKNOWN
    sentence: str = ""
    """The numbers behind the state, or the fix."""
    rule: str = ""
    """The alert with the runbook entry for this state; empty if there is none."""
    writer: WriterProcess = field(default_factory=WriterProcess)
    desired: str | None = None
    desired_reason: str | None = None
    desired_at_ms: int | None = None
    """The time of the last request; None before the first."""
    problem: str | None = None
    """The error in its declaration, if any."""
    missing: str | None = None
    """Why the catalog does not have a table that the stream had; None for a table that was never made."""
    crashes: int = 0
    """Ends in a row without progress, as the supervisor counts them; 0 once the running writer makes progress."""
    given_up: str | None = None
    """Why the supervisor gave up; None if it did not."""
    last_words: str = ""
    """The error of the last writer, as a sentence."""
    registry: bool = False
    """Whether the last writer ended because a schema registry did not respond, and none has committed since."""
    epoch: int | None = None
    batch: int | None = None
    lag: int | None = None
    """Records not yet committed, from the live writer on this host, or else from Kafka."""
    in_transactions: int = 0
    """Offsets beyond `lag` that wait for transactions to end, from the live writer on this host."""
    backpressure_ms: int | None = None
    """Milliseconds by which the live writer's batches exceed their interval.

    None without a heartbeat, and while it waits for a catalog, a storage or Kafka, which is not backpressure.
    """
    last_commit_at_ms: int | None = None
    commit_epoch: int | None = None
    """The epoch of the last commit. The stream has a newer epoch after a reset."""
    watermark_ms: int | None = None
    snapshot_id: int | None = None
    """The snapshot of the marker's commit."""
    table_exists: bool | None = None
    alive: bool | None = None
    """Whether a writer runs: on this host, or on another one according to its commits."""
    waiting_batches: int | None = 0
    """Journaled batches that are not committed; counted only if the last commit is long ago."""
    rolled_back: bool = False
    """Whether the table was rolled back behind the marker, so that the lag is unknown."""
    rows: int | None = None
    """Rows of `table`, without those of the tables of a route."""
    problems: tuple[str, ...] = ()
    stall: Stall | None = None
    """What holds the live writer back; also among the problems."""
    throttle: str | None = None
    """Why it commits, or should commit, less often than declared; also among the problems."""
    distribution: str | None = None
    """Whether the last batch's rows were shuffled, and why; None for a stream with `distribution: none`."""
    undeclared: tuple[str, ...] = ()
    """Columns of the table that are not declared, such as `gate: string`."""
    notices: tuple[str, ...] = ()
    """Information, not problems, from the live writer or the last one."""
    changes: Mapping[str, int] = field(default_factory=dict)
    """Counts of the last batch's changes, for an upsert stream; of its dropped rows, with dedupe."""
    flow: Flow | None = None
    """Rates of its newest commits; None if the table cannot be read or does not exist."""
    replayed: Mapping[str, int] = field(default_factory=dict)
    """Counts of the last replay's changes, for an upsert stream."""
    replayed_at_ms: int | None = None
    routed: bool = False
    """Whether it has written to tables of a route."""
    amiss: Mapping[str, str] = field(default_factory=dict)
    """Tables of its route that miss rows or were dropped, with a few words on each; also among the problems."""

    @property
    def commits_elsewhere(self) -> bool:
        """Whether another host made the last commit: no writer ran here, or the last one ended before it."""
        if self.last_commit_at_ms is None or not self.writer.has_ended:
            return self.last_commit_at_ms is not None and self.writer.pid is None
        if self.writer.epoch is not None and self.commit_epoch is not None:
            return self.commit_epoch > self.writer.epoch
        return self.writer.ended_at_ms is not None and self.last_commit_at_ms > self.writer.ended_at_ms
