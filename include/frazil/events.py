"""What happens to a stream, one frozen type for each, and the sinks that are told of it: the log, the heartbeat.

Whoever makes something happen emits it once, after it happened, and knows no sink.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass

from frazil.commit.marker import BatchKey, Marker
from frazil.commit.settle import Settled
from frazil.host.heartbeat import Phase, Stall, StallKind
from frazil.offsets.spans import TopicPartition

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PhaseBegan:
    phase: Phase
    key: BatchKey | None = None
    """The batch that the writer works on from here; None where that does not change."""


@dataclass(frozen=True, slots=True)
class EpochBegan:
    """A writer took the stream over, and settled what earlier epochs left."""

    epoch: int
    marker: Marker
    settled: Settled


@dataclass(frozen=True, slots=True)
class RecordsSkipped:
    """The marker was moved past records that Kafka's retention deleted unread."""

    lost: str
    """Their offsets, by topic-partition, in words."""
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
    """With the journal."""


@dataclass(frozen=True, slots=True)
class FutureEventTimes:
    """Rows of a batch landed with event times too far ahead to be believed."""

    key: BatchKey
    rows: int
    most: TopicPartition
    """Where most of them come from."""
    max_future: str
    """What is declared, as `10m`."""


@dataclass(frozen=True, slots=True)
class ThrottleJudged:
    """The growth of the table's metadata was judged; told while there is, or was, something to say."""

    reason: str | None
    """Why the commits are, or should be, stretched; None where they are as declared."""
    stretch: float
    """How many times longer than declared the commit interval is."""
    was_under_pressure: bool


@dataclass(frozen=True, slots=True)
class StallBegan:
    stall: Stall


@dataclass(frozen=True, slots=True)
class StallEnded:
    kind: StallKind
    lasted_ms: int


@dataclass(frozen=True, slots=True)
class NoticeGiven:
    """Something that people should know of a writer that runs well, such as a slower way that it fell back to.

    It holds until the process ends. Whoever emits it does so once.
    """

    sentence: str
    """What is so, why, and what to do if it should be otherwise; it begins with a lower-case letter."""


@dataclass(frozen=True, slots=True)
class CommitRecordsFolded:
    records: int


Happening = (
    PhaseBegan
    | EpochBegan
    | RecordsSkipped
    | BatchCommitted
    | FutureEventTimes
    | ThrottleJudged
    | StallBegan
    | StallEnded
    | NoticeGiven
    | CommitRecordsFolded
)


@dataclass(frozen=True, slots=True)
class Event:
    stream: str
    at_ms: int
    """Milliseconds since the epoch, UTC."""
    what: Happening


Sink = Callable[[Event], None]
"""Is told of every event, and passes over those that it does not know. It returns soon: the stream waits for it."""


class Events:
    """Tells every sink what happens to one stream, in the order in which the sinks were added.

    `emit` may be called by any thread, also by one that a sink is told in. Sinks are called in the emitting thread, one
    thread at a time, so all of them see the events in the same order. What a sink raises harms neither the stream nor
    the other sinks: it is logged, once for each type of event.
    """

    def __init__(self, stream: str, *sinks: Sink, clock_ms: Callable[[], int]) -> None:
        self.stream, self.clock_ms = stream, clock_ms
        self._sinks = list(sinks)
        self._one_at_a_time = threading.RLock()
        self._failures: set[tuple[int, type[Happening]]] = set()

    def add(self, sink: Sink) -> None:
        """Tell one more sink from here on, after the others."""
        with self._one_at_a_time:
            self._sinks.append(sink)

    def emit(self, what: Happening) -> None:
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
            "stream %s: %r failed to take a %s, and is silent about the next ones: %r",
            self.stream, self._sinks[number], type(event.what).__name__, error,
        )  # fmt: skip
