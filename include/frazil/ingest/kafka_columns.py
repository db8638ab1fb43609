"""Reads offset ranges into columns with librdkafka's C API and a compiled loop. The loop destroys each message once,
and zeroes its address in `_messages`. Python handles events, records that do not fit, and unknown topics.
"""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from ctypes import byref, c_char_p, c_int
from typing import Any

import numpy as np
from numpy.typing import NDArray

from frazil.ingest import kafka_loop as loop
from frazil.ingest.chunk import BinaryColumn, RecordChunk
from frazil.ingest.contract import OffsetRange
from frazil.ingest.range_reader import (
    MAX_CHUNK_BYTES,
    MAX_CHUNK_RECORDS,
    MAX_FETCH_RECORDS,
    WATERMARKS_TIMEOUT_S,
    RangeReader,
    consumer_properties,
)
from frazil.kafka.client import translate_client_errors
from frazil.kafka.librdkafka import ErrorCallback, Message, ThrottleCallback, librdkafka
from frazil.kafka.tokens import split_properties
from frazil.offsets.spans import TopicPartition

log = logging.getLogger(__name__)

_LOG_LEVELS = {4: logging.WARNING, 5: logging.INFO, 6: logging.INFO, 7: logging.DEBUG}
"""Python's level for each syslog level. More severe levels are logged as errors."""
_INITIAL_BYTES = 2**20
"""Bytes for the values, and for the keys, of the first chunk. Later chunks begin with the previous chunk's size."""


def compile_loop() -> None:
    """Compile the loop, or load it from the cache. Call this before fetching messages, so that failures occur early."""
    empty, no_words = _ChunkColumns(0, 0, 0), np.zeros(0, np.int64)
    where = (np.zeros((0, 3), np.int64), np.zeros(0, np.int32))
    functions = [0] * len(loop.FUNCTIONS)
    loop.copy_records(no_words, np.zeros(9, np.int64), *where, *where, *empty.arrays(), no_words, *functions)


class ColumnReader(RangeReader):
    """Reads records into columns through librdkafka's C API. Raises EnvironmentUnusable if the API cannot be used."""

    def __init__(self, properties: Mapping[str, str], ranges: Sequence[OffsetRange], **limits: Any) -> None:
        super().__init__(properties, ranges, **limits)
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
        self._columns = _ChunkColumns(_INITIAL_BYTES, _INITIAL_BYTES, _INITIAL_BYTES // 16)
        self._client: int | None = None
        settings, make_token = split_properties(consumer_properties(properties))
        on_token = self._library.token_callback(make_token) if make_token else None
        self._callbacks = ErrorCallback(self._on_client_error), ThrottleCallback(self._on_throttle_event), on_token
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

    def _assign(self, places: Iterable[tuple[str, int, int]]) -> None:
        assigned = self._library.partitions(places)
        try:
            self._library.check(self._library.assign(self._client, assigned))
        finally:
            self._library.topic_partition_list_destroy(assigned)

    def _unassign(self, partitions: Sequence[TopicPartition]) -> None:
        ended = self._library.partitions((*place, None) for place in partitions)
        try:
            self._library.check_error(self._library.incremental_unassign(self._client, ended))
        finally:
            self._library.topic_partition_list_destroy(ended)
        self._open_by_topic.subtract(topic for topic, _ in partitions)
        self._set_known_topics({rkt: name for rkt, name in self._known.items() if self._open_by_topic[name]})

    def _watermarks(self, of: OffsetRange) -> tuple[int, int]:
        assert self._client is not None
        return self._library.watermarks(self._client, of.topic, of.partition, timeout_s=WATERMARKS_TIMEOUT_S)

    def _fetch(self, wanted: int, timeout_s: float) -> int:
        messages = self._messages.ctypes.data
        count = self._library.consume_batch_queue(self._queue, int(timeout_s * 1000), messages, wanted)
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
        at, before = self._at, self._copied_totals()
        while why := self._copy_records():
            if why == loop.CHUNK_FULL:
                yield from self._take_last_chunk()
            elif why == loop.NO_ROOM:
                message = self._next_message()
                self._columns.make_room(at, message.len, message.key_len, int(at[loop.HEADERS_NEEDED]))
            elif why == loop.NO_RECORD:
                event = self._next_message()
                topic = self._library.topic_name(event.rkt).decode() if event.rkt else ""
                text = self._library.message_errstr(int(self._messages[self._at[loop.NEXT]])).decode(errors="replace")
                code, place, offset = event.err, (topic, event.partition), event.offset
                self._drop_message()
                self._on_partition(code, text, place, offset)
            else:
                rkt = self._next_message().rkt  # an address, which may be reused once the topic is no longer read
                name = self._library.topic_name(rkt).decode()
                if self._open_by_topic[name]:
                    self._set_known_topics({**self._known, rkt: name})
                else:
                    self._drop_message()
        records, size = self._copied_totals() - before
        if records:
            self._bytes_per_record = max(1.0, size / records - 2)  # value and key are each followed by a newline

    def _take_last_chunk(self) -> Iterator[RecordChunk]:
        if self._at[loop.RECORDS]:
            self._before = self._copied_totals()
            needed = (self._at[loop.END_SLOTS] * 5 // 4 + _INITIAL_BYTES // 16).tolist()
            columns, self._columns = self._columns, _ChunkColumns(*(min(size, MAX_CHUNK_BYTES) for size in needed))
            chunk = columns.chunk(self._at)
            self._at[[loop.RECORDS, *loop.END_SLOTS]] = 0
            yield chunk

    def _copied_totals(self) -> NDArray[np.int64]:
        """Return the number of records copied so far, and the total bytes of their values, keys and headers."""
        at = self._at
        taken: NDArray[np.int64] = self._before + np.array([at[loop.RECORDS], at[loop.END_SLOTS].sum()])
        return taken

    def _copy_records(self) -> int:
        where = (self._topics, self._lookup, self._states, self._ended)
        columns, functions = self._columns.arrays(), [self._library.addresses[name] for name in loop.FUNCTIONS]
        why = loop.copy_records(self._messages, self._at, *where, *columns, self._work, *functions)
        if number := self._at[loop.ENDED]:
            self._at[loop.ENDED] = 0
            self._finish_ranges(self._ended[:number].tolist())
        return why

    def _next_message(self) -> Message:
        return Message.from_address(int(self._messages[self._at[loop.NEXT]]))

    def _drop_message(self) -> None:
        place = self._at[loop.NEXT]
        address = int(self._messages[place])
        self._messages[place] = 0
        self._at[loop.NEXT] += 1
        self._library.message_destroy(address)

    def _set_known_topics(self, known: dict[int, str]) -> None:
        self._known = known
        rows = [(rkt, *self._partitions[name]) for rkt, name in known.items()]
        self._topics = np.array(rows, np.int64).reshape(-1, 3)

    def _on_client_error(self, _: int, code: int, text: bytes, __: int) -> None:
        """Forward a client's error. librdkafka calls this in the polling thread."""
        self._on_error(code, text.decode(errors="replace"))

    def _on_throttle_event(self, _: int, __: bytes, ___: int, milliseconds: int, ____: int) -> None:
        self._on_throttle(milliseconds)

    def _count_pending(self) -> int:
        return int(self._at[loop.RECORDS])


class _ChunkColumns:
    def __init__(self, values_bytes: int, keys_bytes: int, headers_bytes: int) -> None:
        self.values = np.empty(values_bytes, np.uint8)
        self.keys = np.empty(keys_bytes, np.uint8)
        self.headers = np.empty(headers_bytes, np.uint8)
        self.value_places = np.empty((2, MAX_CHUNK_RECORDS), np.int64)
        self.key_places = np.empty((2, MAX_CHUNK_RECORDS), np.int64)
        self.header_places = np.empty((2, MAX_CHUNK_RECORDS), np.int64)
        self.index = np.empty(MAX_CHUNK_RECORDS, np.int32)
        self.places = np.empty((2, MAX_CHUNK_RECORDS), np.int64)

    def arrays(self) -> tuple[Any, Any, Any, Any, Any, Any, Any, Any]:
        """Return the arrays in the order of the loop's arguments."""
        of_values, of_keys = (self.values, self.value_places), (self.keys, self.key_places)
        return (*of_values, *of_keys, self.headers, self.header_places, self.index, self.places)

    def make_room(self, at: NDArray[np.int64], value_bytes: int, key_bytes: int, headers_bytes: int) -> None:
        self.values = _ensure_room(self.values, int(at[loop.VALUES_END]), value_bytes + 1)
        self.keys = _ensure_room(self.keys, int(at[loop.KEYS_END]), key_bytes + 1)
        self.headers = _ensure_room(self.headers, int(at[loop.HEADERS_END]), headers_bytes)

    def chunk(self, at: NDArray[np.int64]) -> RecordChunk:
        count, end = at[loop.RECORDS], at[loop.HEADERS_END]
        return RecordChunk(
            BinaryColumn(self.values[: at[loop.VALUES_END]], *self.value_places[:, :count]),
            BinaryColumn(self.keys[: at[loop.KEYS_END]], *self.key_places[:, :count]),
            self.index[:count],
            *self.places[:, :count],
            headers=BinaryColumn(self.headers[:end], *self.header_places[:, :count]) if end else None,
        )


def _ensure_room(data: NDArray[np.uint8], end: int, more: int) -> NDArray[np.uint8]:
    if end + more <= len(data):
        return data
    grown = np.empty(max(2 * len(data), end + more), np.uint8)
    grown[:end] = data[:end]
    return grown
