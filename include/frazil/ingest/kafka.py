"""Reads offset ranges of many topic-partitions with one consumer: what both ways of reading have in common.

Offsets may be missing, so a range ends with its last offset, or with a record or an end of partition behind that.
`kafka_columns` makes no Python object for a record; `kafka_messages` is used where that is impossible; `readers`
chooses.
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

from frazil.errors import FrazilError, KafkaUnavailable, OffsetGap, TopicMissing
from frazil.ingest.chunk import Chunk
from frazil.ingest.contract import OffsetRange
from frazil.kafka.client import refusal
from frazil.offsets.spans import TopicPartition

log = logging.getLogger(__name__)

CHUNK_RECORDS = 50_000
"""Parsing costs the same per record from 20,000 on; smaller chunks need less memory, and more of it stays cached."""
CHUNK_BYTES = 32 * 2**20
CONSUME_RECORDS = 2_000
"""Messages asked for at once: enough to amortise the call, few enough that their memory is still in the CPU's cache."""
CONSUME_BYTES = 16 * 2**20
POLL_S = 0.1
UNREACHABLE_LIMIT_S = 120.0
WATERMARKS_TIMEOUT_S = 10.0
FETCHES_THROTTLED = 2
"""Fetches in a row that a quota may let wait before that counts as silence."""
MAX_THROTTLED_S = 900.0
LOGGED_THROTTLE_S = 5.0

TUNING = {"fetch.queue.backoff.ms": "5", "queued.max.messages.kbytes": "32768", "log_level": "2"}
"""Overridable: librdkafka's default back-off is a whole second once its queue is full, and it logs a line for each
failed connection, twenty a second; our error quotes the last one."""

EXACTNESS = {
    "isolation.level": "read_committed",
    "auto.offset.reset": "error",
    "enable.partition.eof": "true",
    "enable.auto.commit": "false",
    "enable.auto.offset.store": "false",
}
"""Not overridable: without one of these, records are lost, or read although they were never committed."""

_GONE = frozenset({KafkaError._UNKNOWN_TOPIC, KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_PARTITION})
_CONSEQUENCES = frozenset({KafkaError._ALL_BROKERS_DOWN, KafkaError._TRANSPORT})
"""What follows from other errors, and says nothing of their cause. Connections come and go: they are not logged."""
_NOT_THERE = frozenset({KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE, KafkaError._LOG_TRUNCATION})
"""An offset that retention deleted, or that a log lost while it was read."""


def consumer_properties(properties: Mapping[str, str]) -> dict[str, str]:
    """All properties of the consumer. It joins no group: partitions are assigned, and no offset is committed."""
    return {**TUNING, "group.id": "frazil", **properties, **EXACTNESS}


def partition_lookup(ranges: Sequence[OffsetRange]) -> tuple[dict[str, tuple[int, int]], NDArray[np.int32]]:
    """Each topic's first place in the lookup and its number of places; and the lookup: each partition's range.

    The range of a partition that is not read is -1.
    """
    sizes: dict[str, int] = {}
    for r in ranges:
        sizes[r.topic] = max(sizes.get(r.topic, 0), r.partition + 1)
    firsts = dict(zip(sizes, np.cumsum([0, *sizes.values()]).tolist(), strict=False))
    lookup = np.full(sum(sizes.values()), -1, np.int32)
    for i, r in enumerate(ranges):
        lookup[firsts[r.topic] + r.partition] = i
    return {topic: (firsts[topic], size) for topic, size in sizes.items()}, lookup


class RangeReader(ABC):
    """Reads `[start, end)` of each range once. Iterate it to the end, then `close` (or use it as a context).

    Errors name the `stream`, if it is given.
    """

    notice: str | None = None
    """What people should know about how it reads."""
    on_read: Callable[[int], None] = staticmethod(lambda _: None)
    """Gets, after each fetch, how many records were read that no chunk has yet."""

    def __init__(
        self,
        properties: Mapping[str, str],
        ranges: Sequence[OffsetRange],
        *,
        stream: str | None = None,
        unreachable_limit_s: float = UNREACHABLE_LIMIT_S,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._ranges = ranges
        self._stream, self._servers = stream, properties.get("bootstrap.servers", "")
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
        """What Kafka's client said last of each kind of trouble, since a record arrived."""
        self._logged: set[int | str] = set()
        self._throttled_s = 0.0
        self._bytes_per_record = 1024.0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __iter__(self) -> Iterator[Chunk]:
        """Chunks of about `CHUNK_RECORDS` or `CHUNK_BYTES`, whichever is less.

        Raises OffsetGap where a range begins before what Kafka still has, AccessDenied, TopicMissing, and
        KafkaUnavailable when no range gets further for the limit although one has not ended.
        """
        self._assign((*tp, int(self._positions[i])) for tp, i in self._open.items())
        advanced_at = self._monotonic()
        while self._open:
            before, earlier = self._progress(), tuple(self._troubles)
            arrived = self._fetch(self._wanted(), POLL_S)
            if self._failure:
                raise self._failure
            for chunk in self._chunks() if arrived else ():
                yield chunk
                advanced_at = self._monotonic()  # the time that its taker needed is not Kafka's
            self.on_read(self._pending())
            if self._progress() != before:
                advanced_at = self._monotonic()
                for code in earlier:
                    del self._troubles[code]
            elif self._monotonic() - advanced_at > self._patience_s():  # a partition may answer with errors alone
                raise self._failure or self._stalled()
        yield from self._rest()

    def _progress(self) -> tuple[int, int]:
        """Changes when a range ends, and when a record or an end of partition moves a position."""
        return len(self._open), int(self._positions.sum())

    def _patience_s(self) -> float:
        """How long no range need get further. A quota may let the next fetch wait, and the one after it."""
        return self._limit_s + min(FETCHES_THROTTLED * self._throttled_s, MAX_THROTTLED_S)

    def _on_throttle(self, milliseconds: int) -> None:
        """A broker lets the next fetch wait, by a quota; or no longer."""
        self._throttled_s = milliseconds / 1000
        if self._throttled_s >= LOGGED_THROTTLE_S and "throttle" not in self._logged:
            self._logged.add("throttle")
            log.warning("%s: %s", self._place(), self._throttle_words())

    def _throttle_words(self) -> str:
        return f"a quota of the brokers lets each fetch wait for {self._throttled_s:.0f} s"

    def _place(self) -> str:
        return ", ".join(sorted({r.topic for r in self._ranges}))

    @abstractmethod
    def close(self) -> None: ...

    @abstractmethod
    def _assign(self, places: Iterable[tuple[str, int, int]]) -> None:
        """Read these topic-partitions from these offsets on."""

    @abstractmethod
    def _fetch(self, wanted: int, timeout_s: float) -> int:
        """Take up to `wanted` messages and events from the consumer. Returns how many there are."""

    @abstractmethod
    def _chunks(self) -> Iterator[Chunk]:
        """Process what was fetched; yield the chunks that are full."""

    @abstractmethod
    def _pending(self) -> int:
        """Records that were read, and are in no chunk yet."""

    @abstractmethod
    def _rest(self) -> Iterator[Chunk]:
        """Yield what is left, as a last chunk."""

    @abstractmethod
    def _unassign(self, partitions: Sequence[TopicPartition]) -> None: ...

    @abstractmethod
    def _watermarks(self, of: OffsetRange) -> tuple[int, int]:
        """The first offset that Kafka has of the range's log, and the log's end. Raises KafkaException."""

    def _wanted(self) -> int:
        """At most what is left: a fetch for more waits its whole timeout for messages that will not come."""
        open_ranges = list(self._open.values())
        left = int((self._ends[open_ranges] - self._positions[open_ranges]).sum())
        return max(1, min(CONSUME_RECORDS, left, int(CONSUME_BYTES / self._bytes_per_record)))

    def _finish(self, indexes: Iterable[int]) -> None:
        """Stop reading these ranges; those that had ended before are skipped."""
        places = [(self._ranges[i].topic, self._ranges[i].partition) for i in indexes]
        ended = [place for place in places if self._open.pop(place, None) is not None]
        if ended:
            self._unassign(ended)

    def _on_partition(self, code: int, text: str, place: TopicPartition, offset: int) -> None:
        """An event of one topic-partition: its end, or an error."""
        index = self._open.get(place)
        if index is None:  # about a range that has ended
            return
        if code == KafkaError._PARTITION_EOF:
            self._positions[index] = max(self._positions[index], min(offset, self._ends[index]))
            if offset >= self._ends[index]:
                self._finish([index])
        elif code in _NOT_THERE:
            raise self._gap(self._ranges[index], int(self._positions[index]))
        else:
            self._on_error(code, text, where=f"{place[0]}[{place[1]}]")

    def _on_error(self, code: int, text: str, where: str = "") -> None:
        """Keep the failure, which the loop raises: an exception in a callback would be lost."""
        self._troubles[code] = text
        place = where or self._place()
        if code not in _CONSEQUENCES and code not in self._logged:
            self._logged.add(code)
            log.warning("%s: Kafka's client says: %s", place, text)
        refused = refusal(code, text, what=f"access to {place}", stream=self._stream, servers=self._servers)
        if refused:
            self._failure = refused
        elif code in _GONE:
            self._failure = TopicMissing(f"Kafka does not know {place}: {text}. Was the topic deleted?")

    def _gap(self, r: OffsetRange, position: int) -> OffsetGap:
        try:
            low, high = self._watermarks(r)
            available = f"it has {low} to {high}"
        except KafkaException as error:
            available = f"what it has cannot be asked now: {error.args[0].str()}"
        return OffsetGap(
            f"{r.topic}[{r.partition}]: offset {position} (of the range {r.start} to {r.end}) is not in Kafka: "
            f"{available}. `frazil reset` says what would be skipped and moves the stream past it."
        )

    def _stalled(self) -> KafkaUnavailable:
        (topic, partition), i = next(iter(self._open.items()))
        causes = [text for code, text in self._troubles.items() if code not in _CONSEQUENCES]
        said = causes or [*self._troubles.values()][-1:] or ["the brokers are silent"]
        todo = "" if causes else " Are the brokers reachable?"
        if self._throttled_s:
            said.append(self._throttle_words())
            todo = " Raise the quota, or let producers send smaller batches: one must fit into what it allows in 10 s."
        return KafkaUnavailable(
            f"no record arrived for {self._patience_s():.0f} s and {len(self._open)} ranges have not ended, among them "
            f"{topic}[{partition}] at {self._positions[i]} of {self._ends[i]}: {'; '.join(said)}.{todo}"
        )
