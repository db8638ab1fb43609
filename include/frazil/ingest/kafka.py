"""Offset ranges of many topic-partitions, read by one consumer and yielded as chunks of columns.

This is the hot loop: what it does for a record, it does for every record. Messages are therefore taken in batches,
their attributes by `map` over the C methods, and all decisions (has a range ended? where does it stand?) are NumPy on
the batch's offsets.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Any

import numpy as np
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition
from numpy.typing import NDArray

from frazil.errors import AccessDenied, FrazilError, KafkaUnavailable, OffsetGap, TopicMissing
from frazil.ingest.binary_column import BinaryColumn
from frazil.ingest.chunk import Chunk
from frazil.ingest.contract import OffsetRange
from frazil.kafka.client import DENIED, client_errors

CHUNK_RECORDS = 50_000
"""Parsing costs the same per record from 20,000 on; fewer records at hand are less memory, and less of it cold."""
CHUNK_BYTES = 32 * 2**20
CONSUME_RECORDS = 2_000
"""Messages asked for at once: enough to amortise the call, few enough that their memory is still in the CPU's cache."""
CONSUME_BYTES = 16 * 2**20
POLL_S = 0.1
UNREACHABLE_LIMIT_S = 120.0
WATERMARKS_TIMEOUT_S = 10.0

TUNING = {"fetch.queue.backoff.ms": "5", "queued.max.messages.kbytes": "32768", "log_level": "2"}
"""Overridable: librdkafka's default back-off is a whole second once its queue is full, and it logs a line for each
failed connection, twenty a second; the last one is in our error instead."""

EXACTNESS = {
    "isolation.level": "read_committed",
    "auto.offset.reset": "error",
    "enable.partition.eof": "true",
    "enable.auto.commit": "false",
    "enable.auto.offset.store": "false",
}
"""Not overridable: without any of these, records are lost or read that were never committed."""

_GONE = frozenset({KafkaError._UNKNOWN_TOPIC, KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_PARTITION})
_NOT_THERE = frozenset({KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE, KafkaError._LOG_TRUNCATION})
"""An offset that retention deleted, or that a log lost while it was read."""
_timestamp_ms = itemgetter(1)


class RangeReader:
    """Reads `[start, end)` of each range once. Iterate it to the end, then `close` (or use it as a context)."""

    def __init__(
        self,
        properties: Mapping[str, str],
        ranges: Sequence[OffsetRange],
        *,
        unreachable_limit_s: float = UNREACHABLE_LIMIT_S,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._ranges = ranges
        self._limit_s = unreachable_limit_s
        self._monotonic = monotonic
        self._ends = np.array([r.end for r in ranges], np.int64)
        self._positions = np.array([r.start for r in ranges], np.int64)
        self._open = {(r.topic, r.partition): i for i, r in enumerate(ranges) if r.start < r.end}
        self._lookup = _partition_lookup(ranges)
        self._failure: FrazilError | None = None
        self._last_trouble = "the brokers are silent"
        self._bytes_per_record = 1024.0
        with client_errors():
            self._consumer = Consumer(
                {
                    **TUNING,
                    "group.id": "frazil",  # never joined: partitions are assigned, offsets are not committed
                    **properties,
                    **EXACTNESS,
                    "error_cb": self._on_error,
                }
            )

    def __enter__(self) -> RangeReader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._consumer.close()

    def __iter__(self) -> Iterator[Chunk]:
        """Chunks of about `CHUNK_RECORDS` or `CHUNK_BYTES`, whichever is less.

        Raises OffsetGap where a range begins before what Kafka still has, AccessDenied, and KafkaUnavailable when
        nothing arrives for the limit although a range has not ended.
        """
        self._consumer.assign([TopicPartition(t, p, int(self._positions[i])) for (t, p), i in self._open.items()])
        pending = _Pending()
        last_arrival = self._monotonic()
        while self._open:
            batch = self._consumer.consume(self._wanted(), POLL_S)
            if self._failure:
                raise self._failure
            if batch:
                last_arrival = self._monotonic()
                self._take(batch, pending)
                if pending.records >= CHUNK_RECORDS or pending.bytes >= CHUNK_BYTES:
                    yield pending.chunk()
                    pending = _Pending()
            elif self._monotonic() - last_arrival > self._limit_s:
                raise self._stalled()
        if pending.records:
            yield pending.chunk()

    def _wanted(self) -> int:
        """No more than is left: `consume` waits its whole timeout for messages that will not come."""
        open_ranges = list(self._open.values())
        left = int((self._ends[open_ranges] - self._positions[open_ranges]).sum())
        return max(1, min(CONSUME_RECORDS, left, int(CONSUME_BYTES / self._bytes_per_record)))

    def _take(self, batch: list[Message], pending: _Pending) -> None:
        # `any` asks the errors' truth: comparing a KafkaError with None breaks in confluent-kafka 2.16.
        if any(map(Message.error, batch)):
            events = [m for m in batch if m.error()]
            batch = [m for m in batch if not m.error()]
            self._add(batch, pending)
            for event in events:
                self._on_event(event)
        else:
            self._add(batch, pending)

    def _add(self, batch: list[Message], pending: _Pending) -> None:
        if not batch:
            return
        index = self._indexes(batch)
        offsets = np.fromiter(map(Message.offset, batch), np.int64, len(batch))
        ends = self._ends[index]
        if (offsets >= ends - 1).any():
            for i in np.unique(index[offsets >= ends - 1]):
                self._finish(int(i))
            inside = offsets < ends
            if not inside.all():  # fetched ahead, past the end of a range
                batch = [m for m, keep in zip(batch, inside.tolist(), strict=True) if keep]
                index, offsets = index[inside], offsets[inside]
        self._positions[index] = offsets + 1  # of a range's several offsets in a batch the last is the highest
        values = list(map(Message.value, batch))
        size = sum(map(len, filter(None, values)))
        if values:
            self._bytes_per_record = max(1.0, size / len(values))
        pending.add(batch, values, index, offsets, size)

    def _indexes(self, batch: list[Message]) -> NDArray[np.int32]:
        if isinstance(self._lookup, dict):
            lookup = self._lookup
            pairs = zip(map(Message.topic, batch), map(Message.partition, batch), strict=True)
            return np.fromiter((lookup[pair] for pair in pairs), np.int32, len(batch))
        partitions = np.fromiter(map(Message.partition, batch), np.int32, len(batch))
        return np.asarray(self._lookup[partitions], np.int32)

    def _finish(self, index: int) -> None:
        r = self._ranges[index]
        if self._open.pop((r.topic, r.partition), None) is not None:
            self._consumer.incremental_unassign([TopicPartition(r.topic, r.partition)])

    def _on_event(self, event: Message) -> None:
        error: Any = event.error()
        index = self._open.get((str(event.topic()), int(event.partition() or 0)))
        if index is None:  # about a range that has ended
            return
        if error.code() == KafkaError._PARTITION_EOF:
            self._positions[index] = max(self._positions[index], min(event.offset(), self._ends[index]))
            if event.offset() >= self._ends[index]:
                self._finish(index)
        elif error.code() in _NOT_THERE:
            raise self._gap(self._ranges[index], int(self._positions[index]))
        else:
            self._on_error(error, where=f"{event.topic()}[{event.partition()}]")

    def _on_error(self, error: KafkaError, where: str = "") -> None:
        """Also librdkafka's own callback, where raising is no use: the loop raises what is kept here."""
        self._last_trouble = error.str()
        place = where or ", ".join(sorted({r.topic for r in self._ranges}))
        if error.code() in DENIED:
            self._failure = AccessDenied(
                f"Kafka refuses access to {place}: {error.str()}. Check source.properties and the ACLs."
            )
        elif error.code() in _GONE:
            self._failure = TopicMissing(f"Kafka does not know {place}: {error.str()}. Was the topic deleted?")

    def _gap(self, r: OffsetRange, position: int) -> OffsetGap:
        try:
            low, high = self._consumer.get_watermark_offsets(
                TopicPartition(r.topic, r.partition), timeout=WATERMARKS_TIMEOUT_S
            )
            available = f"it has {low} to {high}"
        except KafkaException as error:
            available = f"what it has cannot be asked now: {error.args[0].str()}"
        return OffsetGap(
            f"{r.topic}[{r.partition}]: offset {position} (of the range {r.start} to {r.end}) is not in Kafka: "
            f"{available}. `frazil reset` says what would be skipped and moves the stream past it."
        )

    def _stalled(self) -> KafkaUnavailable:
        (topic, partition), i = next(iter(self._open.items()))
        return KafkaUnavailable(
            f"no record arrived for {self._limit_s:.0f} s and {len(self._open)} ranges have not ended, among them "
            f"{topic}[{partition}] at {self._positions[i]} of {self._ends[i]}: {self._last_trouble}. "
            "Are the brokers reachable?"
        )


class _Pending:
    """Batches on their way to a chunk."""

    def __init__(self) -> None:
        self.records = 0
        self.bytes = 0
        self._values: list[bytes | None] = []
        self._keys: list[bytes | None] = []
        self._indexes: list[NDArray[np.int32]] = []
        self._offsets: list[NDArray[np.int64]] = []
        self._timestamps: list[NDArray[np.int64]] = []

    def add(
        self,
        messages: list[Message],
        values: list[bytes | None],
        index: NDArray[np.int32],
        offsets: NDArray[np.int64],
        size: int,
    ) -> None:
        """Take from the messages all that anyone may want, so that they are freed while they are still in cache."""
        stamps = map(_timestamp_ms, map(Message.timestamp, messages))
        self.records += len(values)
        self.bytes += size
        self._values += values
        self._keys += map(Message.key, messages)
        self._indexes.append(index)
        self._offsets.append(offsets)
        self._timestamps.append(np.fromiter(stamps, np.int64, len(messages)))

    def chunk(self) -> Chunk:
        return Chunk(
            BinaryColumn.of(self._values),
            BinaryColumn.of(self._keys),
            np.concatenate(self._indexes),
            np.concatenate(self._offsets),
            np.concatenate(self._timestamps),
        )


def _partition_lookup(ranges: Sequence[OffsetRange]) -> Any:
    """From a message's place to its range: an array by partition for one topic, a dict for several."""
    if len({r.topic for r in ranges}) > 1:
        return {(r.topic, r.partition): i for i, r in enumerate(ranges)}
    lookup = np.zeros(max((r.partition for r in ranges), default=0) + 1, np.int32)
    for i, r in enumerate(ranges):
        lookup[r.partition] = i
    return lookup
