"""Types of the events of a stream, and the sinks that receive them, such as the log and the heartbeat."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from frazil.commit.journal import BatchCost
from frazil.commit.marker import BatchKey, Marker
from frazil.commit.settle import SettleResult
from frazil.host.heartbeat import Phase, Stall, StallKind
from frazil.offsets.spans import TopicPartition
from frazil.spec.units import format_count
from frazil.timetext import format_utc

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PhaseBegan:
    phase: Phase
    key: BatchKey | None = None
    """The writer's new batch; None if the batch stays the same."""


@dataclass(frozen=True, slots=True)
class EpochBegan:
    """A writer took over the stream and settled the unfinished batches of earlier epochs."""

    epoch: int
    marker: Marker
    settled: SettleResult


@dataclass(frozen=True, slots=True)
class RecordsSkipped:
    """The marker was moved past records that Kafka's retention deleted before they were read."""

    lost: str
    """The skipped offsets, by topic-partition."""
    marker: Marker


@dataclass(frozen=True, slots=True)
class BatchCommitted:
    """A batch was committed. An empty commit has no records, no dead letters and no dropped records."""

    key: BatchKey
    marker: Marker
    records: int
    rejected: int
    """Number of dead letters."""
    files: int
    stage_s: float
    commit_s: float
    """Time of the commit, including the journal and the merge."""
    bytes: int = 0
    """Size of the staged files, before a merge."""
    changes: Mapping[str, int] = field(default_factory=dict)
    """Number of records by outcome (`commit.history.RECORD_OUTCOMES`); without a merge, only dropped records."""
    cost: BatchCost = field(default_factory=BatchCost)


@dataclass(frozen=True, slots=True)
class ChangesMerged:
    """Spark tasks merged the next batch's changes. A conflict may require more tasks."""

    merge_s: float


@dataclass(frozen=True, slots=True)
class LagMeasured:
    """The stream's lag behind Kafka, measured every few seconds."""

    lag: int
    """Number of records in Kafka, up to the last stable offset, that the table does not have yet."""
    unread: Mapping[TopicPartition, int]
    """The lag of each topic-partition, unless zero."""
    freshness_ms: int
    """Largest possible age of the oldest unread record; 0 if none is unread.

    If unknown, the time since the last commit, or since this writer started.
    """
    backpressure_ms: int
    """Time by which the last batch, or the current one so far, exceeds the commit interval."""
    in_transactions: int = 0
    """Number of offsets, in addition to `lag`, that wait for transactions to end."""


@dataclass(frozen=True, slots=True)
class FutureEventTimes:
    """A committed batch has rows whose event times are too far in the future."""

    key: BatchKey
    by_partition: Mapping[TopicPartition, int]
    """Number of rows with such an event time, by topic-partition."""
    max_future: str
    """The declared limit, such as `10m`."""
    newest_ms: int | None = None
    """The newest event time in these rows, if known."""

    @property
    def rows(self) -> int:
        return sum(self.by_partition.values())

    def __add__(self, other: FutureEventTimes) -> FutureEventTimes:
        newest_ms = max((ms for ms in (self.newest_ms, other.newest_ms) if ms is not None), default=None)
        total = Counter(self.by_partition)
        total.update(other.by_partition)
        return replace(other, by_partition=total, newest_ms=newest_ms)

    def describe(self) -> str:
        """Return a sentence for operators, without the batch's name."""
        (topic, partition), rows = min(self.by_partition.items(), key=lambda item: (-item[1], item[0]))
        return (
            f"{format_count(self.rows, 'row', 'has|have')} an event time more than {self.max_future} ahead of Kafka's "
            f"timestamp, {rows:,} of them in {topic}-{partition}, the newest {format_utc(self.newest_ms)}: such rows "
            "land, but do not advance the watermark. Check the producers' clocks"
        )


@dataclass(frozen=True, slots=True)
class ThrottleEvaluated:
    """The growth of the table's metadata. Emitted while it is too fast, and once afterwards."""

    reason: str | None
    """Why the commit interval is or should be longer than declared, if so."""
    stretch: float
    """Factor by which the commit interval is longer than declared."""
    was_under_pressure: bool
    """Whether the previous evaluation had a reason."""


@dataclass(frozen=True, slots=True)
class DistributionChosen:
    """Whether a batch's rows are shuffled. Not emitted if the stream declares `distribution: none`."""

    key: BatchKey
    shuffled: bool
    reason: str
    partitions: int
    """The table's live partitions, according to recent batches; 0 if they were not counted."""
    files_alone: int
    """Expected number of files without a shuffle."""
    files_shuffled: int
    """Expected number of files with a shuffle."""


@dataclass(frozen=True, slots=True)
class StallBegan:
    stall: Stall


@dataclass(frozen=True, slots=True)
class StallEnded:
    kind: StallKind
    lasted_ms: int
    is_over: bool = True
    """False if the next event is a stall of another kind."""


@dataclass(frozen=True, slots=True)
class NoticeIssued:
    """A notice for operators about a healthy writer, for example that it uses slower code.

    If `sentence` is empty, the notice only withdraws the earlier one in `replaces`.
    """

    sentence: str
    """The fact, its reason, and how to change it. Begins with a lower-case letter."""
    replaces: str = ""
    """The earlier sentence that this one replaces, or "". Only heartbeats show the replacement."""


@dataclass(frozen=True, slots=True)
class TableEvolved:
    """A table's schema was changed for a batch's records, in one commit."""

    key: BatchKey
    changes: tuple[str, ...]
    """Sentences such as `added column gate string`."""
    table: str = "the table"
    """The table in the words of a sentence, such as a routed table's name."""


@dataclass(frozen=True, slots=True)
class OutageReported:
    """A service failed, and the writer retries. The next phase ends the outage."""

    sentence: str
    """What failed, how, and what the writer does next."""
    code: int | None = None
    """The error's exit code, which names the service; None without a single cause."""


@dataclass(frozen=True, slots=True)
class TablesBehind:
    """Routed tables are missing rows, and the writer retries. If `names` is empty, none is missing rows now."""

    names: frozenset[str]
    sentence: str
    """The missing rows, the reason, and the next step."""


@dataclass(frozen=True, slots=True)
class WaitingRowsCommitted:
    """A routed table received rows of earlier batches, which had waited for it."""

    rows: int


@dataclass(frozen=True, slots=True)
class CommitRecordsFolded:
    """Old commit records were folded into one object."""

    records: int


StreamEvent = (
    PhaseBegan
    | EpochBegan
    | RecordsSkipped
    | BatchCommitted
    | ChangesMerged
    | LagMeasured
    | FutureEventTimes
    | ThrottleEvaluated
    | DistributionChosen
    | StallBegan
    | StallEnded
    | NoticeIssued
    | TableEvolved
    | OutageReported
    | TablesBehind
    | WaitingRowsCommitted
    | CommitRecordsFolded
)


@dataclass(frozen=True, slots=True)
class Event:
    stream: str
    at_ms: int
    """Time of the event, in milliseconds since 1970, UTC."""
    payload: StreamEvent


Sink = Callable[[Event], None]
"""Receives every event. It must ignore unknown types, and return fast, because the stream waits."""


class EventDispatcher:
    """Calls the sinks of one stream with its events, in the order in which the sinks were added.

    Any thread or sink may emit. All sinks receive the events in the same order. A sink's exception has no effect, and
    is logged once per sink and type of event.
    """

    def __init__(self, stream: str, *sinks: Sink, clock_ms: Callable[[], int]) -> None:
        self.stream, self.clock_ms = stream, clock_ms
        self._sinks = list(sinks)
        self._one_at_a_time = threading.RLock()
        self._logged_failures: set[tuple[int, type[StreamEvent]]] = set()

    def add(self, sink: Sink) -> None:
        with self._one_at_a_time:
            self._sinks.append(sink)

    def emit(self, payload: StreamEvent) -> None:
        with self._one_at_a_time:
            event = Event(self.stream, self.clock_ms(), payload)
            for number, sink in enumerate(self._sinks):
                try:
                    sink(event)
                except Exception as error:
                    self._log_failure(number, event, error)

    def _log_failure(self, number: int, event: Event, error: Exception) -> None:
        if (failure := (number, type(event.payload))) in self._logged_failures:
            return
        self._logged_failures.add(failure)
        log.warning(
            "stream %s: the event sink %r failed on %s; later failures on events of this type are not logged: %r",
            self.stream, self._sinks[number], type(event.payload).__name__, error,
        )  # fmt: skip
