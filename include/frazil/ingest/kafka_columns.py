"""Reads offset ranges into columns with librdkafka's C API and a compiled loop.

A range ends at its last offset, at a later record, or at an end-of-partition event. The loop destroys each message
once, and zeroes its address in `_messages`. Python handles events, records that do not fit, and unknown topics.
"""

from __future__ import annotations

import logging
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from ctypes import byref, c_char_p, c_int

import numpy as np
from confluent_kafka import KafkaError, KafkaException
from numpy.typing import NDArray

from frazil.errors import FrazilError, KafkaUnavailable, OffsetGap, SpecError, TopicMissing, brokers_remedy
from frazil.ingest import kafka_loop as loop
from frazil.ingest.chunk import RecordChunk
from frazil.ingest.contract import OffsetRange
from frazil.ingest.range_reader import MAX_BYTES_PROPERTY, MAX_CHUNK_BYTES, RecordReader, consumer_properties
from frazil.kafka.client import split_properties, to_access_denied, translate_client_errors
from frazil.kafka.librdkafka import ErrorCallback, Message, ThrottleCallback, librdkafka
from frazil.offsets.spans import TopicPartition, format_span

log = logging.getLogger(__name__)

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
_LOG_LEVELS = {4: logging.WARNING, 5: logging.INFO, 6: logging.INFO, 7: logging.DEBUG}
"""Python's level for each syslog level. More severe levels are logged as errors."""
_INITIAL_BYTES = 2**20
"""Bytes for the values, and for the keys, of the first chunk. Later chunks begin with the previous chunk's size."""
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


class ColumnReader(RecordReader):
    """Reads at most one range per topic-partition, with one consumer. Raises EnvironmentUnusable without the C API."""

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
        self._library = librdkafka()
        self._pid = os.getpid()
        self._messages = np.zeros(MAX_FETCH_RECORDS, np.int64)
        self._at = np.zeros(9, np.int64)
        self._work = np.zeros(3, np.int64)
        self._states = np.array([(r.start, r.end, r.start < r.end) for r in ranges], np.int64).reshape(-1, 3)
        self._positions = self._states[:, loop.POSITION]
        self._ended = np.zeros(len(ranges), np.int32)
        self._open_by_topic = Counter(topic for topic, _ in self._open)
        self._before = np.zeros(2, np.int64)
        self._set_known_topics({})
        self._columns = loop.ChunkColumns(_INITIAL_BYTES, _INITIAL_BYTES, _INITIAL_BYTES // 16)
        self._client: int | None = None
        settings, make_token = split_properties(consumer_properties(properties))
        on_token = self._library.token_callback(make_token) if make_token else None
        # librdkafka calls these in the polling thread.
        on_error = ErrorCallback(lambda _, code, text, __: self._on_error(code, text.decode(errors="replace")))
        on_throttle = ThrottleCallback(lambda _, __, ___, milliseconds, ____: self._on_throttle(milliseconds))
        self._callbacks = on_error, on_throttle, on_token
        with translate_client_errors():
            self._client = self._library.consumer(settings, *self._callbacks)
        self._log_lines = self._library.queue_new(self._client)
        self._library.set_log_queue(self._client, self._log_lines)
        self._queue = self._library.queue_get_consumer(self._client)

    def close(self) -> None:
        client, self._client = self._client, None
        if client is None or os.getpid() != self._pid:  # a forked process does not have librdkafka's threads
            return
        for address in self._messages[self._messages != 0].tolist():
            self._library.message_destroy(address)
        self._messages[:] = 0
        self._library.queue_destroy(self._queue)
        self._library.queue_destroy(self._log_lines)  # later log lines are dropped
        self._library.consumer_close(client)
        self._library.destroy(client)

    def __iter__(self) -> Iterator[RecordChunk]:
        """Yield chunks of at most about `MAX_CHUNK_RECORDS` records and `MAX_CHUNK_BYTES`.

        Raises OffsetGap if a range begins before Kafka's first offset, and SpecError for a batch beyond
        `receive.message.max.bytes`. Raises KafkaUnavailable if no open range advances within the time limit. Also
        raises AccessDenied and TopicMissing.
        """
        self._assign((*tp, int(self._positions[i])) for tp, i in self._open.items())
        advanced_at = self._monotonic()
        while self._open:
            progress, earlier = self._progress(), tuple(self._troubles)
            open_ranges = list(self._open.values())  # a fetch of more than remains would wait until its timeout
            unread = int((self._ends[open_ranges] - self._positions[open_ranges]).sum())
            max_records = max(1, min(MAX_FETCH_RECORDS, unread, int(MAX_FETCH_BYTES / self._bytes_per_record)))
            arrived = self._fetch(max_records, POLL_TIMEOUT_S)
            if self._failure:
                raise self._failure
            for chunk in self._take_full_chunks() if arrived else ():
                yield chunk
                advanced_at = self._monotonic()  # excludes the consumer's time
            self.on_read(int(self._at[loop.RECORDS]), self._throttled_s)
            if self._progress() != progress:
                advanced_at = self._monotonic()
                # Until then, records may come from the client's queue, or from another broker.
                if advanced_at >= self._throttled_until:
                    self._throttled_s = 0.0
                for code in earlier:
                    del self._troubles[code]
            elif self._monotonic() - advanced_at > self._no_progress_timeout_s():  # a partition may return only errors
                raise self._failure or self._stalled_error()
        yield from self._take_last_chunk()

    def _assign(self, partitions: Iterable[tuple[str, int, int]]) -> None:
        assigned = self._library.partitions(partitions)
        try:
            self._library.check(self._library.assign(self._client, assigned))
        finally:
            self._library.topic_partition_list_destroy(assigned)

    def _unassign(self, partitions: Sequence[TopicPartition]) -> None:
        ended = self._library.partitions((*tp, None) for tp in partitions)
        try:
            self._library.check_error(self._library.incremental_unassign(self._client, ended))
        finally:
            self._library.topic_partition_list_destroy(ended)
        self._open_by_topic.subtract(topic for topic, _ in partitions)
        self._set_known_topics({rkt: name for rkt, name in self._known.items() if self._open_by_topic[name]})

    def _fetch(self, max_records: int, timeout_s: float) -> int:
        messages = self._messages.ctypes.data
        count = self._library.consume_batch_queue(self._queue, int(timeout_s * 1000), messages, max_records)
        self._at[loop.NEXT], self._at[loop.COUNT] = 0, max(count, 0)
        facility, text, level = c_char_p(), c_char_p(), c_int()
        while event := self._library.queue_poll(self._log_lines, 0):
            try:
                if self._library.event_log(event, byref(facility), byref(text), byref(level)) == 0:
                    texts = [(part.value or b"").decode(errors="replace") for part in (facility, text)]
                    log.log(_LOG_LEVELS.get(level.value, logging.ERROR), "librdkafka: %s: %s", *texts)
            finally:
                self._library.event_destroy(event)
        return int(self._at[loop.COUNT])

    def _take_full_chunks(self) -> Iterator[RecordChunk]:
        state, copied = self._at, self._copied_totals()
        while reason := self._copy_records():
            if reason == loop.CHUNK_FULL:
                yield from self._take_last_chunk()
            elif reason == loop.NO_ROOM:
                message = self._next_message()
                self._columns.make_room(state, message.len, message.key_len, int(state[loop.HEADERS_NEEDED]))
            elif reason == loop.NO_RECORD:
                event = self._next_message()
                topic = self._library.topic_name(event.rkt).decode() if event.rkt else ""
                text = self._library.message_errstr(int(self._messages[self._at[loop.NEXT]])).decode(errors="replace")
                code, tp, offset = event.err, (topic, event.partition), event.offset
                self._drop_message()
                self._on_partition_event(code, text, tp, offset)
            else:
                rkt = self._next_message().rkt  # an address, which may be reused once the topic is no longer read
                name = self._library.topic_name(rkt).decode()
                if self._open_by_topic[name]:
                    self._set_known_topics({**self._known, rkt: name})
                else:
                    self._drop_message()
        records, size = self._copied_totals() - copied
        if records:
            self._bytes_per_record = max(1.0, size / records - 2)  # value and key are each followed by a newline

    def _take_last_chunk(self) -> Iterator[RecordChunk]:
        if self._at[loop.RECORDS]:
            self._before = self._copied_totals()
            needed = (self._at[loop.END_SLOTS] * 5 // 4 + _INITIAL_BYTES // 16).tolist()
            columns, self._columns = self._columns, loop.ChunkColumns(*(min(size, MAX_CHUNK_BYTES) for size in needed))
            chunk = columns.chunk(self._at)
            self._at[[loop.RECORDS, *loop.END_SLOTS]] = 0
            yield chunk

    def _copied_totals(self) -> NDArray[np.int64]:
        """Return the number of records copied so far, and the total bytes of their values, keys and headers."""
        state = self._at
        totals: NDArray[np.int64] = self._before + np.array([state[loop.RECORDS], state[loop.END_SLOTS].sum()])
        return totals

    def _copy_records(self) -> int:
        where = (self._topics, self._lookup, self._states, self._ended)
        columns, functions = self._columns.arrays(), [self._library.addresses[name] for name in loop.FUNCTIONS]
        reason = loop.copy_records(self._messages, self._at, *where, *columns, self._work, *functions)
        if number := self._at[loop.ENDED]:
            self._at[loop.ENDED] = 0
            self._finish_ranges(self._ended[:number].tolist())
        return reason

    def _next_message(self) -> Message:
        return Message.from_address(int(self._messages[self._at[loop.NEXT]]))

    def _drop_message(self) -> None:
        position = self._at[loop.NEXT]
        address = int(self._messages[position])
        self._messages[position] = 0
        self._at[loop.NEXT] += 1
        self._library.message_destroy(address)

    def _set_known_topics(self, topic_names: dict[int, str]) -> None:
        self._known = topic_names
        rows = [(rkt, *self._partitions[name]) for rkt, name in topic_names.items()]
        self._topics = np.array(rows, np.int64).reshape(-1, 3)

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

    def _finish_ranges(self, indexes: Iterable[int]) -> None:
        """Stop reading these ranges. Ranges that have already ended are ignored."""
        partitions = [(self._ranges[i].topic, self._ranges[i].partition) for i in indexes]
        ended = [tp for tp in partitions if self._open.pop(tp, None) is not None]
        if ended and self._open:  # a reader whose last range has ended is about to be closed
            self._unassign(ended)

    def _on_partition_event(self, code: int, text: str, tp: TopicPartition, offset: int) -> None:
        index = self._open.get(tp)
        if index is None:  # the range has already ended
            return
        if code == KafkaError._PARTITION_EOF:
            self._positions[index] = max(self._positions[index], min(offset, self._ends[index]))
            if offset >= self._ends[index]:
                self._finish_ranges([index])
        elif _DAMAGED_BATCH in text:
            raise KafkaUnavailable(
                f"{tp[0]}[{tp[1]}] at {self._positions[index]}: a batch of records is damaged: {text}. Make a "
                "replica with a valid copy the leader. If no replica has one, `frazil reset` skips the damaged batch"
            )
        elif code in _MISSING_OFFSET_ERRORS:
            r = self._ranges[index]
            try:
                available = f"Kafka has {format_span(*self._watermarks(r.topic, r.partition))}"
            except KafkaException as error:
                available = f"its offsets cannot be fetched now: {error.args[0].str()}"
            raise OffsetGap(
                f"{r.topic}[{r.partition}]: offset {int(self._positions[index]):,} (of the range "
                f"{format_span(r.start, r.end)}) is not in Kafka: {available}. `frazil reset` shows which offsets "
                "would be skipped, and skips them."
            )
        else:
            self._on_error(code, text, where=f"{tp[0]}[{tp[1]}]")

    def _watermarks(self, topic: str, partition: int) -> tuple[int, int]:
        """Return the partition's first offset and end offset in Kafka. Raises KafkaException."""
        assert self._client is not None
        return self._library.watermarks(self._client, topic, partition, timeout_s=WATERMARKS_TIMEOUT_S)

    def _on_error(self, code: int, text: str, where: str = "") -> None:
        """Store a fatal error for the reading loop to raise."""
        self._troubles[code] = text
        subject = where or self._topics_text()
        if code not in _SECONDARY_ERRORS and code not in self._logged:
            self._logged.add(code)
            log.warning("%s: Kafka's client reports: %s", subject, text)
        refused = to_access_denied(
            code, text, subject=f"access to {subject}", stream=self._stream, servers=self._servers
        )
        if refused:
            self._failure = refused
        elif code in _MISSING_TOPIC_ERRORS:
            self._failure = TopicMissing(f"Kafka does not know {subject}: {text}. Was the topic deleted?")
        elif code == KafkaError._BAD_COMPRESSION:
            self._failure = SpecError(
                f"{subject}: a batch of records cannot be decompressed: {text}. If the batch is not damaged, raise "
                f"{MAX_BYTES_PROPERTY} in source.properties (now {self._largest}) to three times the bytes of the "
                "batch's records"
            )

    def _stalled_error(self) -> KafkaUnavailable | SpecError:
        (topic, partition), i = next(iter(self._open.items()))
        causes = [text for code, text in self._troubles.items() if code not in _SECONDARY_ERRORS]
        reasons = causes or [*self._troubles.values()][-1:] or ["the brokers do not answer"]
        remedy = "" if causes else brokers_remedy()
        if self._throttled_s:
            reasons.append(self._throttle_text())
            remedy = "Raise the quota, or let producers send smaller batches: a batch must fit into 10 s of the quota"
        too_large = any(MAX_BYTES_PROPERTY in text for text in causes)  # permanent: reading the batch again cannot help
        return (SpecError if too_large else KafkaUnavailable)(
            f"no record arrived for {self._no_progress_timeout_s():.0f} s and {len(self._open)} ranges have not ended, "
            f"among them {topic}[{partition}] at {self._positions[i]} of {self._ends[i]}: {'; '.join(reasons)}",
            remedy=remedy,
        )
