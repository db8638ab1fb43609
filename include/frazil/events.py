"""Types of the events of a stream, and the sinks that receive them, such as the log and the heartbeat.

Code emits an event once, after the event happened, and does not know which sinks receive it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from frazil.commit.cost import BatchCost
from frazil.commit.marker import BatchKey, Marker
from frazil.commit.settle import Settled
from frazil.host.heartbeat import Phase, Stall, StallKind
from frazil.offsets.spans import TopicPartition

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PhaseBegan:
    phase: Phase
    key: BatchKey | None = None
    """The batch on which the writer now works; None if it is still the same batch."""


@dataclass(frozen=True, slots=True)
class EpochBegan:
    """A writer took over the stream and settled the unfinished batches of earlier epochs."""

    epoch: int
    marker: Marker
    settled: Settled


@dataclass(frozen=True, slots=True)
class RecordsSkipped:
    """The marker was moved past records that Kafka's retention deleted before they were read."""

    lost: str
    """The skipped offsets, by topic-partition, as text."""
    marker: Marker


@dataclass(frozen=True, slots=True)
class BatchCommitted:
    """A batch was committed. An empty commit has neither records nor dead letters, and drops none."""

    key: BatchKey
    marker: Marker
    records: int
    rejected: int
    """Number of dead letters."""
    files: int
    stage_s: float
    commit_s: float
    """Seconds for the commit, including the journal and the merge."""
    bytes: int = 0
    """Size of the staged files, before a merge."""
    changes: Mapping[str, int] = field(default_factory=dict)
    """Number of records by the effect of the merge. The names are those of `frazil.commit.history.RECORD_OUTCOMES`.
    Without a merge, counts only the records that a transform dropped.
    """
    cost: BatchCost = field(default_factory=BatchCost)


@dataclass(frozen=True, slots=True)
class ChangesMerged:
    """Spark tasks of a merge ran for the batch that is committed next.

    A commit that conflicts may need several rounds of tasks.
    """

    tasks: int
    merge_s: float


@dataclass(frozen=True, slots=True)
class LagMeasured:
    """The stream's lag behind Kafka was measured. Emitted every few seconds."""

    lag: int
    """Number of records in Kafka, up to the last stable offset, that the table does not have yet."""
    unread: Mapping[TopicPartition, int]
    """The lag of each topic-partition that has any."""
    freshness_ms: int
    """Largest possible age of the oldest unread record; 0 without one. Time since the last commit, or since this writer
    started, if the age is unknown.
    """
    backpressure_ms: int
    """Time by which the last batch, or the current one so far, exceeds the commit interval; 0 if it does not."""
    in_transactions: int = 0
    """Number of offsets after those counted in `lag`. They wait for transactions to end."""


@dataclass(frozen=True, slots=True)
class FutureEventTimes:
    """A committed batch has rows whose event times are too far in the future to be trusted."""

    key: BatchKey
    rows: int
    furthest: TopicPartition
    """The topic-partition from which most of these rows come."""
    max_future: str
    """The declared limit, such as `10m`."""


@dataclass(frozen=True, slots=True)
class ThrottleEvaluated:
    """The growth of the table's metadata was evaluated. Emitted only while it is too fast, and once when it no longer
    is.
    """

    reason: str | None
    """Why the commit interval is longer than declared, or should be; None if it is as declared."""
    stretch: float
    """Factor by which the commit interval is longer than declared."""
    was_under_pressure: bool


@dataclass(frozen=True, slots=True)
class DistributionChosen:
    """The writer decided whether to shuffle a batch's rows. Not emitted if the stream declares `distribution: none`."""

    key: BatchKey
    shuffled: bool
    reason: str
    partitions: int
    """Number of the table's live partitions, according to recent batches; 0 if they were not counted."""
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


@dataclass(frozen=True, slots=True)
class NoticeGiven:
    """A notice for operators about a writer that otherwise runs well, for example that it uses slower code.

    Emitted once, unless it replaces an earlier notice. It holds until the process ends.
    """

    sentence: str
    """The fact, its reason, and what to do to change it. Begins with a lower-case letter."""
    replaces: str = ""
    """An earlier sentence that this one replaces, such as one with a lower count; empty if none. Only heartbeats show
    the replacement.
    """


@dataclass(frozen=True, slots=True)
class TableEvolved:
    """A table's schema was changed in one commit, because records of a batch required it."""

    key: BatchKey
    changes: tuple[str, ...]
    """Sentences such as `added column gate string`."""
    table: str = "the table"
    """How a sentence refers to the table. A table of a route is named."""


@dataclass(frozen=True, slots=True)
class OutageMet:
    """A service failed, and the writer retries. The outage is over when the next phase begins."""

    sentence: str
    """What failed, how, and what the writer does next."""
    code: int | None = None
    """The exit code of the error, which names the service; None if no single service failed."""


@dataclass(frozen=True, slots=True)
class TablesBehind:
    """Routed tables are missing rows, and the writer retries adding them.

    An empty `names` means that no table is missing rows any longer.
    """

    names: frozenset[str]
    sentence: str
    """The missing rows, the reason, and the next step."""


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
    """Time of the event in milliseconds since 1970, UTC."""
    what: StreamEvent


Sink = Callable[[Event], None]
"""Receives every event; must ignore types that it does not know. It must return fast, because the stream waits for
it.
"""


class Events:
    """Dispatches the events of one stream to its sinks, in the order in which the sinks were added.

    Any thread may call `emit`, and so may a sink. Sinks are called in the emitting thread, but only one thread emits at
    a time, so all sinks receive the events in the same order. An exception in a sink affects neither the stream nor
    other sinks: it is logged, once per sink and type of event.
    """

    def __init__(self, stream: str, *sinks: Sink, clock_ms: Callable[[], int]) -> None:
        self.stream, self.clock_ms = stream, clock_ms
        self._sinks = list(sinks)
        self._one_at_a_time = threading.RLock()
        self._logged_failures: set[tuple[int, type[StreamEvent]]] = set()

    def add(self, sink: Sink) -> None:
        """Add a sink. It is called after all earlier sinks."""
        with self._one_at_a_time:
            self._sinks.append(sink)

    def emit(self, what: StreamEvent) -> None:
        with self._one_at_a_time:
            event = Event(self.stream, self.clock_ms(), what)
            for number, sink in enumerate(self._sinks):
                try:
                    sink(event)
                except Exception as error:
                    self._log_failure(number, event, error)

    def _log_failure(self, number: int, event: Event, error: Exception) -> None:
        if (failure := (number, type(event.what))) in self._logged_failures:
            return
        self._logged_failures.add(failure)
        log.warning(
            "stream %s: %r failed on the event %s; its next failures on such events are not logged: %r",
            self.stream, self._sinks[number], type(event.what).__name__, error,
        )  # fmt: skip
