"""The state of one stream, for its Airflow task, the page, `frazil status`, alert rules and notifications."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum

from frazil.errors import NO_RESTART_EXIT_CODES, Failure
from frazil.host.heartbeat import Stall
from frazil.host.launcher import ProcessState
from frazil.status.recent_commits import RecentCommits


class State(StrEnum):
    """The state of a stream. Each value is the label on the page, in Airflow's task and in `frazil status`."""

    STARTING = "starting"
    RUNNING = "running"
    SLOW = "slow"
    """The batches take longer than the commit interval, so the lag grows."""
    STALLED = "stalled"
    OUTAGE = "waits for catalog or storage"
    """The writer waits, and no single service fails: for example, routed tables are behind."""
    CATALOG_UNAVAILABLE = "catalog unavailable"
    STORAGE_UNAVAILABLE = "storage unavailable"
    TOPIC_MISSING = "topic missing"
    KAFKA_UNREACHABLE = "Kafka unreachable"
    REGISTRY_UNREACHABLE = "schema registry unreachable"
    STOPPING = "stopping"
    PAUSED = "paused"
    STOPPED = "stopped"
    """No writer runs on this host, and no other host has committed recently."""
    CRASH_LOOPING = "crash-looping"
    GIVEN_UP = "given up"
    REMOVED = "removed"
    UNKNOWN = "unknown"
    PAUSING = "pausing"
    RESTARTING = "restarting"
    STARTING_AGAIN = "starting again"
    """The last writer failed. The supervisor's next writer has not taken over yet."""
    SILENT = "silent"
    LATE = "late"
    """Records wait longer than the declaration allows."""
    PROBLEM = "has a problem"
    NO_TABLE = "no table"
    ANOTHER_TABLE = "another table"
    """A different table of the same name replaced the stream's table."""
    TABLE_UNREADABLE = "table unreadable"
    ELSEWHERE = "commits elsewhere"
    NOT_BEGUN = "not begun"
    LOADING = "loading"
    NO_ANSWER = "no answer"
    UNREADABLE = "unreadable"
    RESTART_NEEDED = "restart needed"
    """frazil was upgraded while the process that shows this state runs."""


class Level(IntEnum):
    """How urgently a stream or table needs attention, most urgent first."""

    BROKEN = 0
    """Stopped until an operator acts."""
    TROUBLE = 1
    """Works, but needs attention."""
    UNKNOWN = 2
    """Is being read, or does not respond."""
    QUIET = 3
    """Intentionally idle: paused, or not started yet."""
    WELL = 4


@dataclass(frozen=True, slots=True)
class WriterProcess:
    """The writer's process on this host. Times are milliseconds since the epoch, UTC."""

    state: str = "unknown"
    pid: int | None = None
    phase: str | None = None
    batch_records: int = 0
    heartbeat_at_ms: int | None = None
    stale: bool = False
    exit_code: int | None = None
    exit_name: str | None = None
    ended_at_ms: int | None = None
    error: Failure | None = None
    application: str | None = None
    fenced: bool = False
    epoch: int | None = None
    foreground: bool = False
    """Whether a user ran the writer, with `frazil run`."""
    supervised: bool = False
    """Whether a supervisor has ever watched the stream on this host."""

    @property
    def only_users_start(self) -> bool:
        return self.foreground and not self.supervised

    @property
    def has_ended(self) -> bool:
        return self.state == ProcessState.ENDED


@dataclass(frozen=True, slots=True)
class StreamState:
    """The state of one stream. Unknown values are None; `problems` explains why."""

    name: str
    table: str = ""
    state: State = State.UNKNOWN
    level: Level = Level.UNKNOWN
    sentence: str = ""
    """The numbers that explain the state, or what to do."""
    rule: str = ""
    """The alert rule whose runbook entry covers this state."""
    writer: WriterProcess = field(default_factory=WriterProcess)
    desired: str | None = None
    desired_by: str | None = None
    """The user who requested the desired state."""
    desired_reason: str | None = None
    desired_at_ms: int | None = None
    problem: str | None = None
    missing: Failure | None = None
    """Why the catalog does not have the stream's own table under its name."""
    replaced_exit: str = ""
    """How the failed writer ended, until the supervisor's next writer has taken over; then empty."""
    crashes: int = 0
    """Consecutive crashes of the writer; 0 once the running writer makes progress."""
    given_up: str | None = None
    unreachable_since_ms: int | None = None
    """When the first of these `crashes` ended, if a service is unreachable; otherwise None."""
    last_error: Failure | None = None
    accepted: str | None = None
    """The user and the reason of an acceptance of rejected records, while it covers records that are not read yet."""
    accepted_at_ms: int | None = None
    registry: bool = False
    """Whether the last writer ended because of a schema registry, without a later commit."""
    epoch: int | None = None
    batch: int | None = None
    lag: int | None = None
    """Records not yet committed: from the live writer on this host, otherwise from Kafka's offsets."""
    caught_up_at_ms: int | None = None
    """When this host's last writer had last committed every record in Kafka. No waiting record is older."""
    in_transactions: int = 0
    """Offsets that wait for the end of transactions, if a live writer on this host reports them."""
    backpressure_ms: int | None = None
    """Milliseconds by which the live writer's batches exceed their interval; None while it waits for a service."""
    last_commit_at_ms: int | None = None
    commit_epoch: int | None = None
    """The epoch of the last commit. After a reset, the marker's epoch is newer."""
    watermark_ms: int | None = None
    snapshot_id: int | None = None
    """The table's current snapshot; the writer's last one if the table is unreadable."""
    table_exists: bool | None = None
    unread: Failure | None = None
    """Why the table could not be read; also in `problems`."""
    unread_since_ms: int | None = None
    """The time of the first of this process's consecutive reads of the table that failed."""
    alive: bool | None = None
    """Whether a writer runs, on this host or, as its commits show, on another host."""
    waiting_batches: int | None = 0
    """Batches that are journaled but not committed, counted only if the last commit is old."""
    rolled_back: bool = False
    """Whether the table was rolled back to before the marker, so the lag is unknown."""
    reset_at_ms: int | None = None
    """The time of the last reset or adoption, if no writer has taken over since."""
    rows: int | None = None
    """Number of rows of `table`, without the rows in routed tables."""
    problems: tuple[Failure, ...] = ()
    stall: Stall | None = None
    throttle: str | None = None
    """Why the writer commits, or should commit, less often than declared; also in `problems`."""
    distribution: str | None = None
    """Whether the last batch's rows were shuffled, and why; None with `distribution: none`."""
    undeclared: tuple[str, ...] = ()
    """Columns, and fields of structs, that the stream fills but does not declare, such as `gate: string`."""
    notices: tuple[str, ...] = ()
    """Notices of the live writer or the last one that are not problems."""
    changes: Mapping[str, int] = field(default_factory=dict)
    """Merge counts of the last batch: changes of an upsert stream, or dropped rows with dedupe."""
    recent_commits: RecentCommits | None = None
    replayed: Mapping[str, int] = field(default_factory=dict)
    """Counts of the last replay."""
    replayed_at_ms: int | None = None
    published_at_ms: int | None = None
    """The time of the last commit of a replay or backfill. `last_commit_at_ms` is the writer's."""
    published_by: str = ""
    """`replay` or `backfill`."""
    backfill: str | None = None
    routed: bool = False
    table_problems: Mapping[str, str] = field(default_factory=dict)
    """A description of each routed table that is missing rows or was dropped; also in `problems`."""

    @property
    def last_words(self) -> str:
        return f"The last writer's error: {self.last_error}." if self.last_error else ""

    @property
    def reset_since_end(self) -> bool:
        """Whether an operator has reset or adopted the stream since its last writer ended."""
        return self._is_since_end(self.reset_at_ms)

    @property
    def accepted_since_end(self) -> bool:
        """Whether an operator has accepted rejected records since the stream's last writer ended."""
        return self._is_since_end(self.accepted_at_ms)

    def _is_since_end(self, at_ms: int | None) -> bool:
        ended_at_ms = self.writer.ended_at_ms
        return self.writer.pid is None and at_ms is not None and ended_at_ms is not None and at_ms > ended_at_ms

    @property
    def writer_failed(self) -> bool:
        """Whether the last writer ended with an error, and the stream was not reset since."""
        return self.writer.ended_at_ms is not None and self.writer.exit_code != 0 and not self.reset_since_end

    @property
    def needs_operator(self) -> bool:
        """Whether the last writer ended with an error after which the supervisor starts no other writer."""
        stopped = self.state is State.STOPPED and self.alive is False and self.writer_failed
        return stopped and self.writer.exit_code in NO_RESTART_EXIT_CODES

    @property
    def commits_elsewhere(self) -> bool:
        if self.last_commit_at_ms is None or not self.writer.has_ended:
            return self.last_commit_at_ms is not None and self.writer.pid is None
        if self.writer.epoch is not None and self.commit_epoch is not None:
            return self.commit_epoch > self.writer.epoch
        return self.writer.ended_at_ms is not None and self.last_commit_at_ms > self.writer.ended_at_ms
