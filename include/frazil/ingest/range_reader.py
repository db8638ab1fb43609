"""Reads offset ranges of many topic-partitions with one consumer: the base class of Kafka readers. A range ends at
its last offset, at a later record, or at an end-of-partition event.
"""

from __future__ import annotations

import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Self

import numpy as np
from confluent_kafka import KafkaError, KafkaException
from numpy.typing import NDArray

from frazil.errors import FrazilError, KafkaUnavailable, OffsetGap, SpecError, TopicMissing
from frazil.ingest.chunk import RecordChunk
from frazil.ingest.contract import OffsetRange
from frazil.kafka.client import to_access_denied
from frazil.offsets.spans import TopicPartition

log = logging.getLogger(__name__)

MAX_CHUNK_RECORDS = 50_000
"""Maximum number of records in a chunk. Larger chunks do not reduce the decoding cost per record."""
MAX_CHUNK_BYTES = 32 * 2**20
MAX_FETCH_RECORDS = 2_000
"""Maximum number of messages per fetch, so that they fit into the CPU cache."""
MAX_FETCH_BYTES = 16 * 2**20
POLL_TIMEOUT_S = 0.1
UNREACHABLE_TIMEOUT_S = 120.0
WATERMARKS_TIMEOUT_S = 10.0
MAX_THROTTLED_FETCHES = 2
"""Number of throttled fetches without progress after which reading counts as stalled."""
MAX_THROTTLED_S = 900.0
MIN_LOGGED_THROTTLE_S = 5.0

MAX_BYTES_PROPERTY = "receive.message.max.bytes"
DEFAULT_PROPERTIES = {
    "fetch.queue.backoff.ms": "5",
    "queued.max.messages.kbytes": "32768",
    "log_level": "2",
    "check.crcs": "true",
    MAX_BYTES_PROPERTY: "300000000",
}
"""Defaults that users can override.

With its own defaults, librdkafka returns records of a damaged batch as valid ones. It also waits a second when its
queue is full, and logs twenty lines per second for failed connections. The buffer for a zstd batch triples until it
reaches `MAX_BYTES_PROPERTY`; the value here suffices for any batch of 100 MB.
"""

FIXED_PROPERTIES = {
    "isolation.level": "read_committed",
    "auto.offset.reset": "error",
    "enable.partition.eof": "true",
    "enable.auto.commit": "false",
    "enable.auto.offset.store": "false",
}
"""Properties that users cannot override, because records would be lost, or uncommitted records read."""

_MISSING_TOPIC_ERRORS = frozenset(
    {KafkaError._UNKNOWN_TOPIC, KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_PARTITION}
)
_SECONDARY_ERRORS = frozenset({KafkaError._ALL_BROKERS_DOWN, KafkaError._TRANSPORT})
"""Frequent errors that follow from others and do not name the cause. They are not logged."""
_MISSING_OFFSET_ERRORS = frozenset(
    {KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE, KafkaError._LOG_TRUNCATION}
)
"""Errors for an offset that was deleted by retention, or lost when the log was truncated."""
_DAMAGED_BATCH = "CRC32C"
"""Text in librdkafka's error about a wrong checksum. The error has the same code as one about a missing offset."""


def consumer_properties(properties: Mapping[str, str]) -> dict[str, str]:
    """Return all properties of the consumer, which joins no group and commits no offsets."""
    return {**DEFAULT_PROPERTIES, "group.id": "frazil", **properties, **FIXED_PROPERTIES}


def partition_lookup(ranges: Sequence[OffsetRange]) -> tuple[dict[str, tuple[int, int]], NDArray[np.int32]]:
    """Return each topic's slice (start, size) of a lookup array, which has each partition's range index, or -1."""
    sizes: dict[str, int] = {}
    for r in ranges:
        sizes[r.topic] = max(sizes.get(r.topic, 0), r.partition + 1)
    firsts = dict(zip(sizes, np.cumsum([0, *sizes.values()]).tolist(), strict=False))
    lookup = np.full(sum(sizes.values()), -1, np.int32)
    for i, r in enumerate(ranges):
        lookup[firsts[r.topic] + r.partition] = i
    return {topic: (firsts[topic], size) for topic, size in sizes.items()}, lookup


class RecordReader(ABC):
    """Reads the records `[start, end)` of each range once. Iterate to the end, then call `close` (or use `with`)."""

    on_read: Callable[[int, float], None] = staticmethod(lambda *_: None)
    """Called after each fetch with the number of records that no chunk has yet, and a quota's delay (s)."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @abstractmethod
    def __iter__(self) -> Iterator[RecordChunk]: ...

    def close(self) -> None:  # noqa: B027 - the readers of files and passes close what they open
        """Release what the last iteration left open."""


class RangeReader(RecordReader):
    """Reads at most one range per topic-partition, with one consumer."""

    def __init__(
        self,
        properties: Mapping[str, str],
        ranges: Sequence[OffsetRange],
        *,
        stream: str | None = None,
        unreachable_limit_s: float = UNREACHABLE_TIMEOUT_S,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._ranges = ranges
        self._stream, self._servers = stream, properties.get("bootstrap.servers", "")
        self._largest = consumer_properties(properties)[MAX_BYTES_PROPERTY]
        self._limit_s = unreachable_limit_s
        self._monotonic = monotonic
        self._ends = np.array([r.end for r in ranges], np.int64)
        self._positions = np.array([r.start for r in ranges], np.int64)
        self._partitions, self._lookup = partition_lookup(ranges)
        self._open: dict[TopicPartition, int] = {
            (r.topic, r.partition): i for i, r in enumerate(ranges) if r.start < r.end
        }
        self._failure: FrazilError | None = None
        self._troubles: dict[int, str] = {}
        """The client's last message for each error code since the last progress."""
        self._logged: set[int | str] = set()
        self._throttled_s = 0.0
        self._throttled_until = 0.0
        self._bytes_per_record = 1024.0

    def __iter__(self) -> Iterator[RecordChunk]:
        """Yield chunks of at most about `MAX_CHUNK_RECORDS` records and `MAX_CHUNK_BYTES`.

        Raises OffsetGap if a range begins before Kafka's first offset, and SpecError for a batch beyond
        `receive.message.max.bytes`. Raises KafkaUnavailable if no open range advances within the time limit. Also
        raises AccessDenied and TopicMissing.
        """
        self._assign((*tp, int(self._positions[i])) for tp, i in self._open.items())
        advanced_at = self._monotonic()
        while self._open:
            before, earlier = self._progress(), tuple(self._troubles)
            open_ranges = list(self._open.values())  # a fetch of more than remains would wait until its timeout
            left = int((self._ends[open_ranges] - self._positions[open_ranges]).sum())
            wanted = max(1, min(MAX_FETCH_RECORDS, left, int(MAX_FETCH_BYTES / self._bytes_per_record)))
            arrived = self._fetch(wanted, POLL_TIMEOUT_S)
            if self._failure:
                raise self._failure
            for chunk in self._take_full_chunks() if arrived else ():
                yield chunk
                advanced_at = self._monotonic()  # excludes the consumer's time
            self.on_read(self._count_pending(), self._throttled_s)
            if self._progress() != before:
                advanced_at = self._monotonic()
                # Until then, records may come from the client's queue, or from another broker.
                if advanced_at >= self._throttled_until:
                    self._throttled_s = 0.0
                for code in earlier:
                    del self._troubles[code]
            elif self._monotonic() - advanced_at > self._no_progress_timeout_s():  # a partition may return only errors
                raise self._failure or self._stalled_error()
        yield from self._take_last_chunk()

    def _progress(self) -> tuple[int, int]:
        """Return two numbers. Whenever a range advances, at least one of the numbers changes."""
        return len(self._open), int(self._positions.sum())

    def _no_progress_timeout_s(self) -> float:
        return self._limit_s + min(MAX_THROTTLED_FETCHES * self._throttled_s, MAX_THROTTLED_S)

    def _on_throttle(self, milliseconds: int) -> None:
        # The maximum since the last progress: a quota does not delay responses to other requests, such as for metadata.
        self._throttled_s = max(self._throttled_s, milliseconds / 1000)
        self._throttled_until = max(self._throttled_until, self._monotonic() + milliseconds / 1000)
        if self._throttled_s >= MIN_LOGGED_THROTTLE_S and "throttle" not in self._logged:
            self._logged.add("throttle")
            log.warning("%s: %s", self._topics_text(), self._throttle_text())

    def _throttle_text(self) -> str:
        return f"a quota of the brokers delays each fetch by {self._throttled_s:.0f} s"

    def _topics_text(self) -> str:
        return ", ".join(sorted({r.topic for r in self._ranges}))

    @abstractmethod
    def _assign(self, places: Iterable[tuple[str, int, int]]) -> None:
        """Start to read at these offsets."""

    @abstractmethod
    def _fetch(self, wanted: int, timeout_s: float) -> int:
        """Fetch up to `wanted` messages and events. Returns their number."""

    @abstractmethod
    def _take_full_chunks(self) -> Iterator[RecordChunk]:
        """Process the fetched messages. Yields a chunk whenever one is full."""

    @abstractmethod
    def _count_pending(self) -> int:
        """Return the number of records that were read but are not in a chunk yet."""

    @abstractmethod
    def _take_last_chunk(self) -> Iterator[RecordChunk]:
        """Yield the remaining records as a last chunk."""

    @abstractmethod
    def _unassign(self, partitions: Sequence[TopicPartition]) -> None: ...

    @abstractmethod
    def _watermarks(self, of: OffsetRange) -> tuple[int, int]:
        """Return the partition's first offset and end offset in Kafka. Raises KafkaException."""

    def _finish_ranges(self, indexes: Iterable[int]) -> None:
        """Stop reading these ranges. Ranges that have already ended are ignored."""
        places = [(self._ranges[i].topic, self._ranges[i].partition) for i in indexes]
        ended = [place for place in places if self._open.pop(place, None) is not None]
        if ended and self._open:  # a reader whose last range has ended is about to be closed
            self._unassign(ended)

    def _on_partition(self, code: int, text: str, place: TopicPartition, offset: int) -> None:
        index = self._open.get(place)
        if index is None:  # the range has already ended
            return
        if code == KafkaError._PARTITION_EOF:
            self._positions[index] = max(self._positions[index], min(offset, self._ends[index]))
            if offset >= self._ends[index]:
                self._finish_ranges([index])
        elif _DAMAGED_BATCH in text:
            raise KafkaUnavailable(
                f"{place[0]}[{place[1]}] at {self._positions[index]}: a batch of records is damaged: {text}. Make a "
                "replica with a valid copy the leader. If no replica has one, `frazil reset` skips the damaged batch"
            )
        elif code in _MISSING_OFFSET_ERRORS:
            r = self._ranges[index]
            try:
                low, high = self._watermarks(r)
                available = f"Kafka has {low} to {high}"
            except KafkaException as error:
                available = f"its offsets cannot be fetched now: {error.args[0].str()}"
            raise OffsetGap(
                f"{r.topic}[{r.partition}]: offset {int(self._positions[index])} (of the range {r.start} to "
                f"{r.end}) is not in Kafka: {available}. `frazil reset` shows which offsets would be skipped, and "
                "skips them."
            )
        else:
            self._on_error(code, text, where=f"{place[0]}[{place[1]}]")

    def _on_error(self, code: int, text: str, where: str = "") -> None:
        """Store a fatal error for the reading loop to raise."""
        self._troubles[code] = text
        place = where or self._topics_text()
        if code not in _SECONDARY_ERRORS and code not in self._logged:
            self._logged.add(code)
            log.warning("%s: Kafka's client reports: %s", place, text)
        refused = to_access_denied(code, text, what=f"access to {place}", stream=self._stream, servers=self._servers)
        if refused:
            self._failure = refused
        elif code in _MISSING_TOPIC_ERRORS:
            self._failure = TopicMissing(f"Kafka does not know {place}: {text}. Was the topic deleted?")
        elif code == KafkaError._BAD_COMPRESSION:
            self._failure = SpecError(
                f"{place}: a batch of records cannot be decompressed: {text}. If the batch is not damaged, raise "
                f"{MAX_BYTES_PROPERTY} in source.properties (now {self._largest}) to three times the bytes of the "
                "batch's records"
            )

    def _stalled_error(self) -> KafkaUnavailable | SpecError:
        (topic, partition), i = next(iter(self._open.items()))
        causes = [text for code, text in self._troubles.items() if code not in _SECONDARY_ERRORS]
        reasons = causes or [*self._troubles.values()][-1:] or ["the brokers do not answer"]
        todo = "" if causes else " Are the brokers reachable?"
        if self._throttled_s:
            reasons.append(self._throttle_text())
            todo = " Raise the quota, or let producers send smaller batches: a batch must fit into 10 s of the quota."
        too_large = any(MAX_BYTES_PROPERTY in text for text in causes)  # permanent: reading the batch again cannot help
        return (SpecError if too_large else KafkaUnavailable)(
            f"no record arrived for {self._no_progress_timeout_s():.0f} s and {len(self._open)} ranges have not ended, "
            f"among them {topic}[{partition}] at {self._positions[i]} of {self._ends[i]}: {'; '.join(reasons)}.{todo}"
        )
