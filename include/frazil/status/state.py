"""The state of one stream, for its task in Airflow, the page, `frazil status`, alert rules and notifications."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum

from frazil.errors import NO_RESTART
from frazil.host.heartbeat import Stall
from frazil.host.launcher import ProcessState
from frazil.status.flow import Flow


class State(StrEnum):
    """A state, with its label on the page, in Airflow's task and in `frazil status`."""

    STARTING = "starting"
    RUNNING = "running"
    SLOW = "slow"
    """The stream's batches take longer than the commit interval, so its lag grows."""
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
    ANOTHER_TABLE = "another table"
    """The stream wrote another table than the one that has its table's name now."""
    TABLE_UNREADABLE = "table unreadable"
    NO_WRITER = "no writer"
    ELSEWHERE = "commits elsewhere"
    NOT_BEGUN = "not begun"
    LOADING = "loading"
    NO_ANSWER = "no answer"
    UNREADABLE = "unreadable"
    RESTART_NEEDED = "restart needed"
    """The process that shows this state needs a restart, because frazil was upgraded while it runs."""


class Level(IntEnum):
    """How urgently a stream or table needs attention, most urgent first."""

    BROKEN = 0
    """The stream or table stands still until an operator acts."""
    TROUBLE = 1
    """The stream or table continues to work, but needs attention."""
    UNKNOWN = 2
    """The stream or table is being read, or does not respond."""
    QUIET = 3
    """The stream or table is idle as wanted: paused, or not begun."""
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
    """Whether the process runs, but its heartbeat is old."""
    exit_code: int | None = None
    exit_name: str | None = None
    ended_at_ms: int | None = None
    error: str | None = None
    application: str | None = None
    """The shared application that ran the writer, if the writer has ended."""
    fenced: bool = False
    """Whether the process runs but cannot commit, because the stream has a newer epoch."""
    epoch: int | None = None
    """The newest epoch of this writer; None before its first epoch."""
    foreground: bool = False
    """Whether a user ran the writer in a terminal, so that no supervisor starts the next one."""

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
    """The numbers that explain the state, or the fix."""
    rule: str = ""
    """The alert rule whose runbook entry covers this state; empty if there is none."""
    writer: WriterProcess = field(default_factory=WriterProcess)
    desired: str | None = None
    desired_reason: str | None = None
    desired_at_ms: int | None = None
    """The time of the last pause, resume or restart; None before the first."""
    problem: str | None = None
    """The error in the stream's declaration, if any."""
    missing: str | None = None
    """Why the catalog no longer has the stream's own table under its name; None if the table was never made."""
    crashes: int = 0
    """Number of consecutive ends without progress, as the supervisor counts them; 0 once the running writer makes
    progress.
    """
    given_up: str | None = None
    """Why the supervisor gave up; None if it did not."""
    last_words: str = ""
    """The error of the last writer, as a sentence."""
    registry: bool = False
    """Whether the last writer ended because a schema registry did not respond, and no writer has committed since."""
    epoch: int | None = None
    batch: int | None = None
    lag: int | None = None
    """Number of records not yet committed, from the live writer on this host, or else from Kafka."""
    in_transactions: int = 0
    """Number of offsets beyond `lag` that wait for transactions to end, from the live writer on this host."""
    backpressure_ms: int | None = None
    """Milliseconds by which the live writer's batches exceed their interval.

    None without a heartbeat, and while the writer waits for a catalog, a storage or Kafka, which is not backpressure.
    """
    last_commit_at_ms: int | None = None
    commit_epoch: int | None = None
    """The epoch of the last commit. After a reset the stream has a newer epoch."""
    watermark_ms: int | None = None
    snapshot_id: int | None = None
    """The snapshot of the commit that wrote the marker."""
    table_exists: bool | None = None
    alive: bool | None = None
    """Whether a writer runs on this host, or, according to its commits, on another host."""
    waiting_batches: int | None = 0
    """Number of journaled batches that are not committed; counted only if the last commit is long ago."""
    rolled_back: bool = False
    """Whether the table was rolled back behind the marker, so that the lag is unknown."""
    reset_at_ms: int | None = None
    """The time of the last reset or adoption, if no writer has taken over since."""
    rows: int | None = None
    """Number of rows of `table`, without rows in tables of a route."""
    problems: tuple[str, ...] = ()
    stall: Stall | None = None
    """The cause that holds the live writer back; also among the problems."""
    throttle: str | None = None
    """Why the writer commits, or should commit, less often than declared; also among the problems."""
    distribution: str | None = None
    """Whether the last batch's rows were shuffled, and why; None for a stream with `distribution: none`."""
    undeclared: tuple[str, ...] = ()
    """Columns of the table that the stream does not declare, such as `gate: string`."""
    notices: tuple[str, ...] = ()
    """Information from the live writer or the last one that is not a problem."""
    changes: Mapping[str, int] = field(default_factory=dict)
    """Counts of the last batch's changes, for an upsert stream; counts of its dropped rows, for a stream with dedupe.
    """
    flow: Flow | None = None
    """Rates of the stream's newest commits; None if the table cannot be read or does not exist."""
    replayed: Mapping[str, int] = field(default_factory=dict)
    """Counts of the last replay's changes, for an upsert stream."""
    replayed_at_ms: int | None = None
    backfill: str | None = None
    """The stream's open backfill or replay in words; None without one."""
    routed: bool = False
    """Whether the stream has written to tables of a route."""
    amiss: Mapping[str, str] = field(default_factory=dict)
    """Tables of the stream's route that miss rows or were dropped, with a few words on each; also among the problems.
    """

    @property
    def reset_since_end(self) -> bool:
        """Whether an operator has reset or adopted the stream since its last writer ended."""
        at_ms, ended_at_ms = self.reset_at_ms, self.writer.ended_at_ms
        return self.writer.pid is None and at_ms is not None and ended_at_ms is not None and at_ms > ended_at_ms

    @property
    def needs_operator(self) -> bool:
        """Whether the last writer ended with an error after which no other writer is started."""
        return self.state is State.STOPPED and self.alive is False and self.writer.exit_code in NO_RESTART

    @property
    def commits_elsewhere(self) -> bool:
        """Whether another host made the last commit: no writer ran here, or this host's last writer ended before it."""
        if self.last_commit_at_ms is None or not self.writer.has_ended:
            return self.last_commit_at_ms is not None and self.writer.pid is None
        if self.writer.epoch is not None and self.commit_epoch is not None:
            return self.commit_epoch > self.writer.epoch
        return self.writer.ended_at_ms is not None and self.last_commit_at_ms > self.writer.ended_at_ms
