"""The state of one stream. The task in Airflow, the page, `frazil status`, alert rules and notifications show it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum

from frazil.host.heartbeat import Stall
from frazil.host.launcher import ProcessState
from frazil.status.flow import Flow


class State(StrEnum):
    """In the words of the page, of the task in Airflow and of `frazil status`."""

    STARTING = "starting"
    RUNNING = "running"
    SLOW = "slow"
    """Its batches take longer than the commit interval, so that its lag grows."""
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
    """It cannot be read."""
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
    LOOKING = "looking"
    NO_ANSWER = "no answer"
    UNREADABLE = "unreadable"
    RESTART_NEEDED = "restart needed"
    """Of the process that shows it: frazil was changed under it."""


class Level(IntEnum):
    """How urgently something needs attention, most urgent first."""

    BROKEN = 0
    """Nothing goes on before somebody acts."""
    TROUBLE = 1
    """It goes on, or somebody wanted it to stop, but it is not as promised."""
    UNKNOWN = 2
    """It is being read, or does not answer."""
    QUIET = 3
    """Nothing happens, and nothing should: it is paused, or has not begun."""
    WELL = 4


@dataclass(frozen=True, slots=True)
class WriterProcess:
    """The writer's process on this host. Times are milliseconds since the epoch, UTC."""

    state: str = "unknown"
    pid: int | None = None
    phase: str | None = None
    heartbeat_at_ms: int | None = None
    stale: bool = False
    """It runs, but its heartbeat is old."""
    exit_code: int | None = None
    exit_name: str | None = None
    ended_at_ms: int | None = None
    error: str | None = None
    application: str | None = None
    """The application that ran it with others, if it has ended."""
    fenced: bool = False
    """It runs, and commits nothing more: the stream has a newer epoch than its own."""
    epoch: int | None = None
    """The epoch that it began last; None before the first."""

    @property
    def has_ended(self) -> bool:
        """Whether one ran on this host, and none does."""
        return self.state == ProcessState.ENDED


@dataclass(frozen=True, slots=True)
class StreamState:
    """One stream. Unknown values are None; `problems` says why."""

    name: str
    table: str = ""
    state: State = State.UNKNOWN
    level: Level = Level.UNKNOWN
    sentence: str = ""
    """The numbers behind the state, or what to do about it."""
    rule: str = ""
    """The alert whose entry in the runbook says what to do; empty where none does."""
    writer: WriterProcess = field(default_factory=WriterProcess)
    desired: str | None = None
    desired_reason: str | None = None
    desired_at_ms: int | None = None
    """When somebody requested that last; None if nobody did."""
    problem: str | None = None
    """What is wrong with its declaration, if anything."""
    missing: str | None = None
    """Why its table, which the catalog does not have, is no new one."""
    crashes: int = 0
    """Ends in a row without progress, as the supervisor counts them; 0 once the running writer makes progress."""
    given_up: str | None = None
    """Why the supervisor gave up; None if it did not."""
    last_words: str = ""
    """What the writer that ended last reported."""
    registry: bool = False
    """Whether the last writer ended because a schema registry did not answer, and none has committed since."""
    epoch: int | None = None
    batch: int | None = None
    lag: int | None = None
    """Records not yet committed, as the live writer on this host reports, or else as Kafka says."""
    in_transactions: int = 0
    """Offsets beyond `lag` that wait for transactions to end, as the live writer on this host reports."""
    backpressure_ms: int | None = None
    """By how much the live writer's batches take longer than their interval; None without a heartbeat, and while it
    waits for a catalog, a storage or Kafka that is away: that is no backpressure."""
    last_commit_at_ms: int | None = None
    commit_epoch: int | None = None
    """In which epoch the last commit was made. The stream has a newer one after a reset."""
    watermark_ms: int | None = None
    snapshot_id: int | None = None
    """The snapshot that the marker came with."""
    table_exists: bool | None = None
    alive: bool | None = None
    """Whether a writer runs: on this host, or on another according to its commits."""
    waiting_batches: int | None = 0
    """Journaled batches that are not committed; counted only if the last commit is long ago."""
    rolled_back: bool = False
    """Whether the table was rolled back behind the marker, which then says nothing of what waits."""
    rows: int | None = None
    """Rows of `table` alone: the tables of a route have their own."""
    problems: tuple[str, ...] = ()
    stall: Stall | None = None
    """What holds the live writer back, as it reports; among the problems too."""
    throttle: str | None = None
    """Why it commits less often than declared, or should; among the problems too."""
    distribution: str | None = None
    """Whether its last batch's rows were shuffled, and why; None where the stream declares `distribution: none`."""
    undeclared: tuple[str, ...] = ()
    """The table's columns that are not declared, such as `gate: string`: others, or evolution, added them."""
    notices: tuple[str, ...] = ()
    """What the live writer, or the last one that ended, wants people to know; no problems."""
    changes: Mapping[str, int] = field(default_factory=dict)
    """What became of the changes of the last batch, of an upsert stream; how many rows were dropped, with dedupe."""
    flow: Flow | None = None
    """What its newest commits brought; None where the table cannot be read, or does not exist."""
    replayed: Mapping[str, int] = field(default_factory=dict)
    """What became of the dead letters of the last replay, of an upsert stream."""
    replayed_at_ms: int | None = None
    routed: bool = False
    """Whether it has written to tables of a route."""
    amiss: Mapping[str, str] = field(default_factory=dict)
    """The tables of its route that lack rows, or were dropped, each with that in few words; among the problems too."""

    @property
    def commits_elsewhere(self) -> bool:
        """Whether the last commit is of another host: none ran here, or it is later than the last one that did."""
        if self.last_commit_at_ms is None or not self.writer.has_ended:
            return self.last_commit_at_ms is not None and self.writer.pid is None
        if self.writer.epoch is not None and self.commit_epoch is not None:
            return self.commit_epoch > self.writer.epoch
        return self.writer.ended_at_ms is not None and self.last_commit_at_ms > self.writer.ended_at_ms
