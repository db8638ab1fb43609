"""Lets a stream of captured changes read only whole source transactions.

A second topic has each transaction's number of events. The driver reads both topics, so that the planner knows where a
batch may end. Events of incomplete transactions stay in Kafka.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from frazil.commit.marker import NO_TRANSACTION, LastTransaction
from frazil.errors import OffsetGap, SpecError, TopicMissing
from frazil.ingest.chunk import RecordChunk
from frazil.ingest.contract import OffsetRange
from frazil.ingest.formats.transactions import EventTransaction, TransactionDecoder, TransactionEnd
from frazil.ingest.readers import create_kafka_reader
from frazil.kafka.admin import KafkaAdmin
from frazil.offsets.spans import TopicPartition
from frazil.safe_text import escape_unsafe
from frazil.spec.formats import AvroFormat, JsonFormat, envelope_of
from frazil.spec.model import StreamSpec
from frazil.spec.references import resolve_properties
from frazil.stream.boundaries import Boundaries

log = logging.getLogger(__name__)

MAX_EVENTS_PER_READ = 100_000
"""Maximum number of offsets that are read in one step."""
MAX_ENDS_PER_READ = 20_000
"""Maximum number of offsets per partition in one read of transactions' ends."""
MAX_CLOCK_STEP = timedelta(minutes=10)
"""How far the connector's clock may be set back. The search for transactions' ends begins earlier by this duration."""
LOOKBACK_RECORDS = 1_000
"""Number of offsets to search for the last transaction, if the marker does not have it."""
MAX_NAME_CHARACTERS = 200
"""Maximum length of a table name in messages."""
WARN_INTERVAL_S = 60.0
"""Interval of the warnings about a transaction that does not end."""


@dataclass(slots=True)
class WholeTransactions:
    """Finds where batches of one partition may end. Not thread-safe."""

    topics: KafkaTopics
    topic: str
    max_records: int
    """Number of records to read ahead. A transaction is always read to its end."""
    clock: Callable[[], float] = time.monotonic
    last_before_start: LastTransaction = NO_TRANSACTION
    """The last transaction before the writer's first position, if known."""
    waits_for: str = ""
    """The transaction for which records are held back, and what to do; "" if none."""
    is_stuck: bool = False
    """Whether everything was read, and a transaction certainly has no end."""
    _waits: bool = False
    """Whether all events were read, and a transaction may still be open."""
    _log: Boundaries | None = None
    _scanned: int = 0
    """The offset up to which the topic's events were read."""
    _since_ms: int | None = None
    """When the first event of the open transaction was written (ms since 1970)."""
    _tables: frozenset[str] = frozenset()
    _reported: bool = False
    """Whether a warning about events without a transaction id was logged."""
    _open: tuple[int, float] = (-1, 0.0)
    """The boundary after which records are held back, and the time (`clock`) since when."""
    _warned: float = 0.0

    @property
    def boundary(self) -> int:
        """The last offset at which a batch may end; 0 before anything was read."""
        return self._log.boundary if self._log else 0

    def read_transaction_ends(self) -> None:
        """If records wait for transactions, read the transactions' ends. Call this before fetching the logs' ends."""
        has_more = self._waits
        while has_more:
            has_more = self._read_ends()

    @property
    def last(self) -> LastTransaction:
        return self._log.newest if self._log else self.last_before_start

    def find_readable_end(self, tp: TopicPartition, start: int, end: int) -> int:
        """Return the end offset to read to. Raises Kafka's errors, and SpecError for transactions on several tables."""
        if self._log is None:
            transaction = self.last_before_start if self.last_before_start.id else self._find_last_before(tp, start)
            self._log, self._scanned = Boundaries(start, transaction), start
        goal = start + self.max_records
        while True:
            self._read_events(tp, min(end, max(goal, self._scanned), self._scanned + MAX_EVENTS_PER_READ))
            all_read = self._scanned >= end
            open_one = self._advance_boundary(self._log, is_all_read=all_read)
            if all_read or (self._scanned >= goal and self._log.boundary > start):
                break
            if self._scanned >= goal:  # within one transaction
                goal = self._scanned + self.max_records
        held_back = all_read and self._log.boundary < end
        self.is_stuck, self._waits = held_back and self._waits, held_back
        self.waits_for = self._describe_wait(open_one) if held_back else ""
        now = self.clock()
        if not self._waits or self._open[0] != self.boundary:
            self._open, self._warned = (self.boundary, now), now
        elif open_one and now - self._warned >= WARN_INTERVAL_S:
            self._warned = now
            log.warning(
                "topic %s: records after offset %d have been held back for %.0f s: %s",
                *(tp[0], self.boundary, now - self._open[1], self._describe_wait(open_one)),
            )
        return self._log.boundary if all_read else end

    def _advance_boundary(self, log: Boundaries, *, is_all_read: bool) -> str:
        """Move the last boundary. May read more transactions' ends. Returns the open transaction's id, or ""."""
        open_one = log.advance(at_end=is_all_read)
        # If both hold, all transaction ends arrived before the log's end was requested.
        has_more = not (is_all_read and self._waits)
        while open_one and has_more:
            has_more = self._read_ends()
            open_one = log.advance(at_end=False)
        return open_one

    def _read_events(self, tp: TopicPartition, end: int) -> None:
        if end <= self._scanned:
            return
        assert self._log is not None
        for chunk, events in self.topics.events(tp, self._scanned, end):
            for event, offset, ms in zip(events, chunk.offsets.tolist(), chunk.timestamps_ms.tolist(), strict=True):
                if event.transaction:
                    self._add_event(tp, event, ms)
                elif event.unmarked and not self._reported:
                    self._reported = True
                    log.warning(
                        "events of topic %s do not name their transaction, so they are committed without it: set "
                        "provide.transaction.metadata=true in the connector",
                        tp[0],
                    )
                self._log.add(event.transaction, event.order, event.position, offset + 1, unreadable=event.unreadable)
                self._scanned = offset + 1
        self._log.skip_to(end)
        self._scanned = end

    def _find_last_before(self, tp: TopicPartition, start: int) -> LastTransaction:
        """Return the last transaction before `start`. Used if the marker does not have it."""
        last = NO_TRANSACTION
        for _, events in self.topics.events(tp, max(0, start - LOOKBACK_RECORDS), start):
            for event in events:
                last = LastTransaction(event.transaction, event.position) if event.transaction else last
        return last

    def _add_event(self, tp: TopicPartition, event: EventTransaction, written_ms: int) -> None:
        """Remember the first event's time and tables. Raises SpecError if a later event has other tables."""
        if self._since_ms is None:
            self._since_ms = max(written_ms, 0)
        if not self._tables:
            self._tables = frozenset(event.tables)
        elif self._tables.isdisjoint(event.tables):
            several = (*sorted(self._tables), *event.tables)
            names = " and ".join(escape_unsafe(name[:MAX_NAME_CHARACTERS], lines=False) for name in several)
            raise SpecError(
                f"source.format.envelope.transactions: topic {tp[0]} has events of several tables ({names}), and one "
                "stream cannot read their transactions as a whole: remove the option, or give each table its own topic"
            )

    def _read_ends(self) -> bool:
        """Read the next ends of transactions. Returns whether more may follow."""
        assert self._log is not None
        if self._since_ms is None:
            return False
        ends, has_more = self.topics.ends(self._since_ms)
        for end in ends:
            for table in self._tables & end.events.keys():
                self._log.add_end(end.transaction, end.events[table])
        return has_more

    def _describe_wait(self, open_one: str) -> str:
        """Return the transaction for which the records wait, and what to do."""
        if self._log is not None and self._log.is_behind:
            return (
                f"the connector sends earlier events again, and has not reached transaction {open_one} again. Check "
                "that the connector runs. The stream cannot recognise a new log that began within an "
                "hour of the old log's end, or whose clock is behind. After such a restore, remove "
                "envelope.transactions until the stream has caught up"
            )
        return (
            f"topic {self.topic} does not have the end of the source's transaction {open_one}. Check that the "
            "connector runs with provide.transaction.metadata=true"
        )


@dataclass(slots=True)
class KafkaTopics:
    """Reads a stream's events, and the ends of their transactions, from Kafka."""

    properties: Mapping[str, str]
    kafka: KafkaAdmin
    decoder: TransactionDecoder
    stream: str
    _next: dict[TopicPartition, int] = field(default_factory=dict)
    _topic_ids: Mapping[str, str] = field(default_factory=dict)

    def events(self, tp: TopicPartition, start: int, end: int) -> Iterable[tuple[RecordChunk, list[EventTransaction]]]:
        """Yield the events in `[start, end)` that Kafka still has."""
        first = max(start, self.kafka.earliest([tp])[tp])
        for chunk in self._chunks([OffsetRange(*tp, first, end)] if first < end else []):
            yield chunk, self.decoder.read_transactions(chunk)

    def ends(self, since_ms: int) -> tuple[list[TransactionEnd], bool]:
        """Return the next transaction ends, first those from `since_ms` on, and whether more may follow."""
        try:
            topic = self.kafka.describe()
        except TopicMissing:  # the first transaction creates the topic
            return [], False
        partitions, topic_ids = topic.partitions, topic.identity.topic_ids
        if self._topic_ids and topic_ids != self._topic_ids:
            log.warning("topic %s was recreated: it is read from its beginning", ", ".join(topic_ids))
            self._next = dict(self.kafka.earliest(partitions))
        self._topic_ids = topic_ids
        if new := [tp for tp in partitions if tp not in self._next]:
            self._next |= self.kafka.offsets_at(datetime.fromtimestamp(since_ms / 1000, UTC) - MAX_CLOCK_STEP, new)
        stable = self.kafka.ends(partitions)
        ahead = {tp: start for tp, start in self._next.items() if stable.get(tp, start) > start}
        ranges = [OffsetRange(*tp, start, min(stable[tp], start + MAX_ENDS_PER_READ)) for tp, start in ahead.items()]
        unreadable = self.decoder.unreadable
        try:
            transaction_ends = [end for chunk in self._chunks(ranges) for end in self.decoder.read_ends(chunk)]
        except OffsetGap as error:
            log.warning(
                "records of the transaction topic were deleted before they were read; reading continues after them: %s",
                error,
            )
            self._next |= self.kafka.earliest(self._next)
            return [], True
        self._next |= {(r.topic, r.partition): r.end for r in ranges}
        if count := self.decoder.unreadable - unreadable:
            log.warning(
                "%d of the new records of topic %s cannot be read: if one is the end of a transaction, its rows are "
                "held back until a later transaction follows",
                *(count, ", ".join(topic_ids)),
            )
        return transaction_ends, any(stable.get(tp, start) > start for tp, start in self._next.items())

    def _chunks(self, ranges: list[OffsetRange]) -> Iterable[RecordChunk]:
        if not ranges:
            return
        with create_kafka_reader(self.properties, ranges, stream=self.stream) as reader:
            yield from reader


def whole_transactions(
    spec: StreamSpec, properties: Mapping[str, str], last: LastTransaction
) -> WholeTransactions | None:
    """Return the finder of the stream's transaction boundaries, if declared. `last` is the marker's transaction."""
    declared = spec.source.format
    envelope = envelope_of(declared)
    if envelope is None or envelope.transactions is None:
        return None
    assert isinstance(declared, JsonFormat | AvroFormat)
    resolved = resolve_properties(properties, os.environ)
    kafka = KafkaAdmin(resolved, [envelope.transactions], stream=spec.name)
    topics = KafkaTopics(resolved, kafka, TransactionDecoder(declared), spec.name)
    return WholeTransactions(topics, envelope.transactions, max_records=spec.max_records, last_before_start=last)
