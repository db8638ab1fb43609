"""The events of a stream, each a frozen type, and the sinks that receive them, such as the log and the heartbeat.

Code emits an event once, after it happened, and does not know the sinks.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from frazil.commit.marker import BatchKey, Marker
from frazil.commit.settle import Settled
from frazil.host.heartbeat import Phase, Stall, StallKind
from frazil.offsets.spans import TopicPartition

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PhaseBegan:
    phase: Phase
    key: BatchKey | None = None
    """The batch that the writer now works on; None if that does not change."""


@dataclass(frozen=True, slots=True)
class EpochBegan:
    """A writer took over the stream and settled what earlier epochs left."""

    epoch: int
    marker: Marker
    settled: Settled


@dataclass(frozen=True, slots=True)
class RecordsSkipped:
    """The marker was moved past records that Kafka's retention deleted unread."""

    lost: str
    """The offsets, by topic-partition, as text."""
    marker: Marker


@dataclass(frozen=True, slots=True)
class BatchCommitted:
    """A batch landed; a tick has neither records nor dead letters."""

    key: BatchKey
    marker: Marker
    records: int
    rejected: int
    """Dead letters."""
    files: int
    stage_s: float
    commit_s: float
    """Including the journal, and the merge."""
    bytes: int = 0
    """Size of the staged files, before a merge."""
    changes: Mapping[str, int] = field(default_factory=dict)
    """What a merge made of the records, by the names of `frazil.commit.history.CHANGES`; empty without one."""


@dataclass(frozen=True, slots=True)
class ChangesMerged:
    """Tasks of a merge ran, for the batch that commits next; a commit that conflicts may need several rounds."""

    tasks: int
    merge_s: float


@dataclass(frozen=True, slots=True)
class LagMeasured:
    """How far the stream is behind, as seen every few seconds."""

    lag: int
    """Records in Kafka, up to the last stable offset, that are not committed to the table."""
    unread: Mapping[TopicPartition, int]
    """The same by topic-partition, for those with any."""
    freshness_ms: int
    """The time since the last commit while records wait, or since this writer began if it has made none; else 0."""
    backpressure_ms: int
    """Excess of the last batch, or of the current one so far, over the commit interval; else 0."""
    in_transactions: int = 0
    """Offsets beyond `lag`, which wait for transactions to end."""


@dataclass(frozen=True, slots=True)
class FutureEventTimes:
    """Rows of a batch landed with event times too far in the future to be trusted."""

    key: BatchKey
    rows: int
    furthest: TopicPartition
    """The topic-partition that most of them come from."""
    max_future: str
    """The declared limit, such as `10m`."""


@dataclass(frozen=True, slots=True)
class ThrottleEvaluated:
    """The growth of the table's metadata was judged: emitted while the table is, or just was, under pressure."""

    reason: str | None
    """Why the commit interval is, or should be, stretched; None if it is as declared."""
    stretch: float
    """How many times longer than declared the commit interval is."""
    was_under_pressure: bool


@dataclass(frozen=True, slots=True)
class DistributionChosen:
    """It was decided whether a batch's rows are shuffled; emitted unless the stream declares `distribution: none`."""

    key: BatchKey
    shuffled: bool
    reason: str
    partitions: int
    """Live partitions of the table, as recent batches had them; 0 if they were not asked for."""
    files_alone: int
    """Files to expect without a shuffle."""
    files_shuffled: int
    """Files to expect with one."""


@dataclass(frozen=True, slots=True)
class StallBegan:
    stall: Stall


@dataclass(frozen=True, slots=True)
class StallEnded:
    kind: StallKind
    lasted_ms: int


@dataclass(frozen=True, slots=True)
class NoticeGiven:
    """Something that people should know about a writer that runs well, such as a fallback to slower code.

    It holds until the process ends, and is emitted once.
    """

    sentence: str
    """What is so, why, and what to do if it should be otherwise; it begins with a lower-case letter."""


@dataclass(frozen=True, slots=True)
class TableEvolved:
    """The table's schema was changed in one commit, because records of a batch asked for it."""

    key: BatchKey
    changes: tuple[str, ...]
    """Sentences such as `added column gate string`."""


@dataclass(frozen=True, slots=True)
class OutageMet:
    """The catalog or the storage failed, and the writer tries again; the next phase ends the outage."""

    sentence: str
    """What failed, how, and what will be done."""


@dataclass(frozen=True, slots=True)
class TablesBehind:
    """Routed tables are missing rows, which the writer tries to bring. Without names, all have all rows again."""

    names: frozenset[str]
    sentence: str
    """The rows, the reason, and the next step."""


@dataclass(frozen=True, slots=True)
class CommitRecordsFolded:
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
    | NoticeGiven
    | TableEvolved
    | OutageMet
    | TablesBehind
    | CommitRecordsFolded
)


@dataclass(frozen=True, slots=True)
class Event:
    stream: str
    at_ms: int
    """Milliseconds since the epoch, UTC."""
    what: StreamEvent


Sink = Callable[[Event], None]
"""Receives every event and ignores those that it does not know. It returns fast, because the stream waits for it."""


class Events:
    """Passes the events of one stream to its sinks, in the order in which these were added.

    Any thread may call `emit`, and a sink may too. Sinks are called in the emitting thread, one thread at a time, so
    all see the events in the same order. An exception in a sink harms neither the stream nor the other sinks: it is
    logged, once for each type of event.
    """

    def __init__(self, stream: str, *sinks: Sink, clock_ms: Callable[[], int]) -> None:
        self.stream, self.clock_ms = stream, clock_ms
        self._sinks = list(sinks)
        self._one_at_a_time = threading.RLock()
        self._failures: set[tuple[int, type[StreamEvent]]] = set()

    def add(self, sink: Sink) -> None:
        """Add a sink, which is called after the others."""
        with self._one_at_a_time:
            self._sinks.append(sink)

    def emit(self, what: StreamEvent) -> None:
        with self._one_at_a_time:
            event = Event(self.stream, self.clock_ms(), what)
            for number, sink in enumerate(self._sinks):
                try:
                    sink(event)
                except Exception as error:
                    self._failed(number, event, error)

    def _failed(self, number: int, event: Event, error: Exception) -> None:
        if (failure := (number, type(event.what))) in self._failures:
            return
        self._failures.add(failure)
        log.warning(
            "stream %s: %r failed on the event %s; its next failures on such events are not logged: %r",
            self.stream, self._sinks[number], type(event.what).__name__, error,
        )  # fmt: skip
