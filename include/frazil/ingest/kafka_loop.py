"""Copies librdkafka's messages into the columns of a chunk, and destroys the messages, in compiled code.

In record format 2, the byte after a record's value is the number of headers. If the byte is zero, the loop does not
request headers from librdkafka, which saves a third of the time. As a check, the loop
requests headers at every `_CHECK_INTERVAL`th offset nevertheless.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from frazil.ingest.chunk import NULL, BinaryColumn, RecordChunk
from frazil.ingest.compiled import call64, call_with_outputs, compiled, load8, load32, load64, memcpy
from frazil.ingest.range_reader import MAX_CHUNK_BYTES, MAX_CHUNK_RECORDS
from frazil.kafka.librdkafka import Message

# Reasons why the loop stops.
ALL_TAKEN, CHUNK_FULL, NO_ROOM, NO_RECORD, UNKNOWN_TOPIC = range(5)
# The loop's state: the slots of its `state`.
NEXT, COUNT, RECORDS, VALUES_END, KEYS_END, ENDED, HEADERS_END, HEADERS_NEEDED, ASKS = range(9)
FUNCTIONS = ("message_destroy", "message_timestamp", "message_leader_epoch", "message_headers", "header_get_all")
"""librdkafka's functions that the loop calls. The last arguments of `copy_records` are their addresses."""
_CHECK_INTERVAL = 64
END_SLOTS = [VALUES_END, KEYS_END, HEADERS_END]
# Columns of `ranges` and of `topics`; the ranges of a topic's partitions are `lookup[first : first + partitions]`.
POSITION, END, IS_OPEN = range(3)
_RKT, _FIRST, _PARTITIONS = range(3)

_ERR, _TOPIC, _PARTITION = Message.err.offset, Message.rkt.offset, Message.partition.offset
_PAYLOAD, _LENGTH = Message.payload.offset, Message.len.offset
_KEY, _KEY_LENGTH, _OFFSET = Message.key.offset, Message.key_len.offset, Message.offset.offset


@compiled
def write_int32(to: Any, position: Any, value: Any) -> None:
    for i in range(4):
        to[position + i] = value >> 8 * i & 255


@compiled
def c_string_length(address: Any) -> Any:
    length = np.int64(0)
    while load8(address + length) != 0:
        length += 1
    return length


@compiled
def packed_headers_size(headers: Any, get: int, work: Any) -> Any:
    """Return the number of bytes of a record's headers when packed. `work` is scratch memory of three words."""
    index, size = np.int64(0), np.int64(0)
    while call_with_outputs(get, headers, index, work.ctypes.data) & 0xFFFFFFFF == 0:
        size += 9 + c_string_length(work[0])
        if work[1] != 0:
            size += work[2]
        index += 1
    return size


@compiled
def copy_headers(headers: Any, get: int, work: Any, to: Any, position: Any) -> None:
    index = np.int64(0)
    while call_with_outputs(get, headers, index, work.ctypes.data) & 0xFFFFFFFF == 0:
        name, value = work[0], work[1]
        length, size = c_string_length(name), work[2] if value != 0 else np.int64(0)
        write_int32(to, position, length)
        write_int32(to, position + 4, size if value != 0 else NULL)
        memcpy(to.ctypes.data + position + 8, name, length)
        position += 8 + length
        memcpy(to.ctypes.data + position, value, size)
        to[position + size] = 10
        position += size + 1
        index += 1


@compiled
def has_no_headers(message: Any, leader_epoch: int) -> bool:
    """Return whether the byte after the value shows that the record has no headers.

    Returns False without a value, or without a leader epoch (an earlier record format).
    """
    payload = load64(message + _PAYLOAD)
    if payload == 0 or call64(leader_epoch, message, 0) & 0x80000000 != 0:
        return False
    return bool(load8(payload + load64(message + _LENGTH)) == 0)


@compiled
def copy_records(  # noqa: PLR0912, PLR0913, PLR0915, PLR0917 - one loop does all the work per record
    messages: Any, state: Any, topics: Any, lookup: Any, ranges: Any, ended: Any,
    values: Any, value_spans: Any, keys: Any, key_spans: Any, headers: Any, header_spans: Any,
    index: Any, stamps: Any, work: Any,
    destroy: int, timestamp: int, leader_epoch: int, headers_of: int, get_header: int,
) -> int:  # fmt: skip
    """Copy the messages from `at[NEXT]` to `at[COUNT]` into columns, and return why the loop stopped.

    `messages` has addresses of `rd_kafka_message_t`. `ended` receives the indexes of the ranges that end here.
    `values`, `keys` and `headers` receive bytes; their `_spans` receive each start and length. `index` receives each
    record's range, and `stamps` its offset and timestamp (ms). `work` has three scratch words.
    """
    capacity = index.shape[0]
    i, count, record = state[NEXT], state[COUNT], state[RECORDS]
    values_end, keys_end, number_ended = state[VALUES_END], state[KEYS_END], state[ENDED]
    headers_end = state[HEADERS_END]
    known_topic, topic = np.int64(0), 0
    reason = ALL_TAKEN
    while i < count:
        if record == capacity or values_end + keys_end + headers_end >= MAX_CHUNK_BYTES:
            reason = CHUNK_FULL
            break
        message = messages[i]
        if load32(message + _ERR) != 0:
            reason = NO_RECORD
            break
        rkt = load64(message + _TOPIC)
        if rkt != known_topic:
            topic = -1
            for t in range(topics.shape[0]):
                if topics[t, _RKT] == rkt:
                    topic, known_topic = t, rkt
            if topic < 0:
                known_topic = np.int64(0)
                reason = UNKNOWN_TOPIC
                break
        partition = load32(message + _PARTITION)
        r = -1
        if 0 <= partition < topics[topic, _PARTITIONS]:
            r = lookup[topics[topic, _FIRST] + partition]
        if r >= 0:
            offset = load64(message + _OFFSET)
            end = ranges[r, END]
            if offset < end:
                payload, key = load64(message + _PAYLOAD), load64(message + _KEY)
                length = load64(message + _LENGTH) if payload != 0 else np.int64(0)
                key_length = load64(message + _KEY_LENGTH) if key != 0 else np.int64(0)
                header_list: Any = np.int64(0)
                headers_length: Any = np.int64(0)
                has_none = has_no_headers(message, leader_epoch)
                asks = not has_none or state[ASKS] != 0 or offset % _CHECK_INTERVAL == 0
                if asks and call64(headers_of, message, work.ctypes.data) & 0xFFFFFFFF == 0:
                    header_list = work[0]
                    headers_length = packed_headers_size(header_list, get_header, work)
                    if has_none and headers_length != 0:
                        state[ASKS] = 1
                if (
                    values_end + length >= values.shape[0]
                    or keys_end + key_length >= keys.shape[0]
                    or headers_end + headers_length > headers.shape[0]
                ):
                    state[HEADERS_NEEDED] = headers_length
                    reason = NO_ROOM
                    break
                memcpy(values.ctypes.data + values_end, payload, length)
                values[values_end + length] = 10
                value_spans[0, record] = values_end
                value_spans[1, record] = length if payload != 0 else NULL
                values_end += length + 1
                memcpy(keys.ctypes.data + keys_end, key, key_length)
                keys[keys_end + key_length] = 10
                key_spans[0, record] = keys_end
                key_spans[1, record] = key_length if key != 0 else NULL
                keys_end += key_length + 1
                header_spans[0, record] = headers_end
                header_spans[1, record] = headers_length if headers_length != 0 else NULL
                if headers_length != 0:
                    copy_headers(header_list, get_header, work, headers, headers_end)
                    headers_end += headers_length
                index[record] = r
                stamps[0, record] = offset
                stamps[1, record] = call64(timestamp, message, 0)
                record += 1
                ranges[r, POSITION] = offset + 1
            if offset >= end - 1 and ranges[r, IS_OPEN] != 0:
                ranges[r, IS_OPEN] = 0
                ended[number_ended] = r
                number_ended += 1
        messages[i] = 0
        call64(destroy, message, 0)
        i += 1
    state[NEXT], state[RECORDS] = i, record
    state[VALUES_END], state[KEYS_END], state[ENDED] = values_end, keys_end, number_ended
    state[HEADERS_END] = headers_end
    return reason


class ChunkColumns:
    def __init__(self, values_bytes: int, keys_bytes: int, headers_bytes: int) -> None:
        self.values = np.empty(values_bytes, np.uint8)
        self.keys = np.empty(keys_bytes, np.uint8)
        self.headers = np.empty(headers_bytes, np.uint8)
        self.value_spans = np.empty((2, MAX_CHUNK_RECORDS), np.int64)
        self.key_spans = np.empty((2, MAX_CHUNK_RECORDS), np.int64)
        self.header_spans = np.empty((2, MAX_CHUNK_RECORDS), np.int64)
        self.index = np.empty(MAX_CHUNK_RECORDS, np.int32)
        self.stamps = np.empty((2, MAX_CHUNK_RECORDS), np.int64)

    def arrays(self) -> tuple[Any, Any, Any, Any, Any, Any, Any, Any]:
        """Return the arrays in the order of the loop's arguments."""
        of_values, of_keys = (self.values, self.value_spans), (self.keys, self.key_spans)
        return (*of_values, *of_keys, self.headers, self.header_spans, self.index, self.stamps)

    def make_room(self, state: NDArray[np.int64], value_bytes: int, key_bytes: int, headers_bytes: int) -> None:
        self.values = _ensure_room(self.values, int(state[VALUES_END]), value_bytes + 1)
        self.keys = _ensure_room(self.keys, int(state[KEYS_END]), key_bytes + 1)
        self.headers = _ensure_room(self.headers, int(state[HEADERS_END]), headers_bytes)

    def chunk(self, state: NDArray[np.int64]) -> RecordChunk:
        count, end = state[RECORDS], state[HEADERS_END]
        return RecordChunk(
            BinaryColumn(self.values[: state[VALUES_END]], *self.value_spans[:, :count]),
            BinaryColumn(self.keys[: state[KEYS_END]], *self.key_spans[:, :count]),
            self.index[:count],
            *self.stamps[:, :count],
            headers=BinaryColumn(self.headers[:end], *self.header_spans[:, :count]) if end else None,
        )


def _ensure_room(data: NDArray[np.uint8], end: int, size: int) -> NDArray[np.uint8]:
    if end + size <= len(data):
        return data
    grown = np.empty(max(2 * len(data), end + size), np.uint8)
    grown[:end] = data[:end]
    return grown


def compile_loop() -> None:
    """Compile the loop, or load it from the cache."""
    empty, no_words = ChunkColumns(0, 0, 0), np.zeros(0, np.int64)
    where = (np.zeros((0, 3), np.int64), np.zeros(0, np.int32))
    functions = [0] * len(FUNCTIONS)
    copy_records(no_words, np.zeros(9, np.int64), *where, *where, *empty.arrays(), no_words, *functions)
