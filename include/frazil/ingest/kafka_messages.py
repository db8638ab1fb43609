"""Reads offset ranges as confluent-kafka message objects, if `kafka_columns` cannot be used."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, repeat
from operator import itemgetter
from typing import Any

import numpy as np
from confluent_kafka import Consumer, KafkaError, Message
from confluent_kafka import TopicPartition as KafkaTopicPartition
from numpy.typing import NDArray

from frazil.ingest.chunk import BinaryColumn, RecordChunk, pack_headers
from frazil.ingest.contract import OffsetRange
from frazil.ingest.range_reader import (
    MAX_CHUNK_BYTES,
    MAX_CHUNK_RECORDS,
    WATERMARKS_TIMEOUT_S,
    RangeReader,
    consumer_properties,
)
from frazil.kafka.client import translate_client_errors
from frazil.kafka.tokens import create_client
from frazil.offsets.spans import TopicPartition


class MessageReader(RangeReader):
    def __init__(self, properties: Mapping[str, str], ranges: Sequence[OffsetRange], **limits: Any) -> None:
        super().__init__(properties, ranges, **limits)
        self._topic_rows = {topic: row for row, topic in enumerate(self._partitions)}
        # The last row is for unknown topics, which have no partitions.
        self._firsts, self._sizes = np.array([*self._partitions.values(), (0, 0)], np.int32).T
        self._batch: list[Message] = []
        self._unfinished = _UnfinishedChunk()
        with translate_client_errors():
            callbacks = {"error_cb": self._on_client_error, "throttle_cb": self._on_throttle_event}
            self._consumer = create_client(Consumer, {**consumer_properties(properties), **callbacks})

    def close(self) -> None:
        self._consumer.close()

    def _assign(self, places: Iterable[tuple[str, int, int]]) -> None:
        self._consumer.assign([KafkaTopicPartition(*place) for place in places])

    def _unassign(self, partitions: Sequence[TopicPartition]) -> None:
        self._consumer.incremental_unassign([KafkaTopicPartition(*place) for place in partitions])

    def _watermarks(self, of: OffsetRange) -> tuple[int, int]:
        place = KafkaTopicPartition(of.topic, of.partition)
        low, high = self._consumer.get_watermark_offsets(place, timeout=WATERMARKS_TIMEOUT_S)
        return int(low), int(high)

    def _fetch(self, wanted: int, timeout_s: float) -> int:
        self._batch = self._consumer.consume(wanted, timeout_s)
        return len(self._batch)

    def _on_client_error(self, error: KafkaError) -> None:
        self._on_error(error.code(), error.str())

    def _on_throttle_event(self, event: Any) -> None:
        self._on_throttle(round(event.throttle_time * 1000))

    def _count_pending(self) -> int:
        return self._unfinished.records

    def _take_full_chunks(self) -> Iterator[RecordChunk]:
        batch, self._batch = self._batch, []
        records, size = self._unfinished.records, self._unfinished.bytes
        # `any` tests the errors' truth: comparing a KafkaError with None fails in confluent-kafka 2.16.
        if any(map(Message.error, batch)):
            begin = 0
            for place, event in enumerate(batch):
                error: Any = event.error()
                if error:
                    self._add_batch(batch[begin:place])
                    begin = place + 1
                    at = (str(event.topic()), int(event.partition() or 0))
                    self._on_partition(error.code(), error.str(), at, int(event.offset() or 0))
            self._add_batch(batch[begin:])
        else:
            self._add_batch(batch)
        records, size = self._unfinished.records - records, self._unfinished.bytes - size
        if records:
            self._bytes_per_record = max(1.0, size / records)
        if self._unfinished.records >= MAX_CHUNK_RECORDS or self._unfinished.bytes >= MAX_CHUNK_BYTES:
            yield from self._take_last_chunk()

    def _take_last_chunk(self) -> Iterator[RecordChunk]:
        if self._unfinished.records:
            pending, self._unfinished = self._unfinished, _UnfinishedChunk()
            yield pending.chunk()

    def _add_batch(self, batch: list[Message]) -> None:
        if not batch:
            return
        row: Any = self._topic_rows.get
        rows = np.fromiter(map(row, map(Message.topic, batch), repeat(-1)), np.int32, len(batch))
        partitions = np.fromiter(map(Message.partition, batch), np.int32, len(batch))
        known = (partitions >= 0) & (partitions < self._sizes[rows])
        places = np.where(known, self._firsts[rows] + partitions, 0)
        index = np.where(known, self._lookup[places], np.int32(-1))
        offsets = np.fromiter(map(Message.offset, batch), np.int64, len(batch))
        wanted, ends = index >= 0, self._ends[index]
        if (last := wanted & (offsets >= ends - 1)).any():
            self._finish_ranges(np.unique(index[last]).tolist())
        inside = wanted & (offsets < ends)
        if not inside.all():  # some messages belong to no range, or follow a range's end
            batch = [m for m, keep in zip(batch, inside.tolist(), strict=True) if keep]
            index, offsets = index[inside], offsets[inside]
        self._positions[index] = offsets + 1  # for each range, the last offset in the batch is the highest
        self._unfinished.add(batch, index, offsets)


class _UnfinishedChunk:
    def __init__(self) -> None:
        self.records = self.bytes = 0
        self._texts: tuple[list[bytes | None], ...] = ([], [], [])
        """Values, keys and headers."""
        self._numbers: tuple[list[NDArray[Any]], ...] = ([], [], [])
        """Range indexes, offsets and timestamps, one array for each call of `add`."""

    def add(self, messages: list[Message], index: NDArray[np.int32], offsets: NDArray[np.int64]) -> None:
        """Copy the needed attributes of the messages, so that the messages can be freed at once."""
        values, keys = list(map(Message.value, messages)), list(map(Message.key, messages))
        found: Iterable[Any] = map(Message.headers, messages)
        headers = [pack_headers(some) if some else None for some in found]
        stamps = map(itemgetter(1), map(Message.timestamp, messages))
        self.records += len(values)
        self.bytes += sum(map(len, filter(None, chain(values, keys, headers))))
        for column, texts in zip(self._texts, (values, keys, headers), strict=True):
            column.extend(texts)
        numbers: tuple[NDArray[Any], ...] = (index, offsets, np.fromiter(stamps, np.int64))
        for parts, part in zip(self._numbers, numbers, strict=True):
            parts.append(part)

    def chunk(self) -> RecordChunk:
        values, keys, headers = map(BinaryColumn.of, self._texts)
        numbers = map(np.concatenate, self._numbers)
        return RecordChunk(values, keys, *numbers, headers=headers if any(self._texts[2]) else None)
