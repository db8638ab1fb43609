"""Turns rejected records into rows of the dead-letter table, and summarises them for the circuit breaker."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.schema import Schema
from pyroaring import BitMap64

from frazil.errors import SpecError
from frazil.ingest.calendar_limits import MILLISECONDS, range_error
from frazil.ingest.chunk import RecordChunk, unpack_headers
from frazil.ingest.contract import OffsetRange, Reject, Rejects
from frazil.ingest.decode import Rejection
from frazil.ingest.formats.fields import fill_nulls, find_defaults
from frazil.ingest.sealing import header_part, name_part
from frazil.offsets.spans import TopicPartition
from frazil.safe_text import escape_unsafe
from frazil.spec.iceberg import DEAD_LETTER_SCHEMA

MAX_ERROR_CHARACTERS = 1000
_FILLED_COLUMNS = frozenset(DEAD_LETTER_SCHEMA.column_names).difference(
    ("replays", "discarded_at", "discarded_by", "discard_reason")  # filled by replays and discards
)

SealPart = Callable[[bytes | None, str], bytes | None]
"""Returns what a dead letter stores for a part of a record, given the part and its name (`sealing.name_part`)."""


class ExistingDeadLetters:
    """Finds the records of a chunk that are already dead letters, by their coordinates."""

    def __init__(self, ranges: Sequence[OffsetRange], existing: Mapping[TopicPartition, bytes]) -> None:
        """`existing` has the offsets of dead letters by topic-partition, as serialised `BitMap64`s."""
        by_range = {i: existing.get((r.topic, r.partition)) for i, r in enumerate(ranges)}
        self._held = {i: BitMap64.deserialize(offsets) for i, offsets in by_range.items() if offsets}

    def __call__(self, chunk: RecordChunk) -> NDArray[np.bool_]:
        selected = np.zeros(len(chunk), np.bool_)
        for index, existing in self._held.items():
            positions = np.flatnonzero(chunk.range_index == index)
            selected[positions] = [offset in existing for offset in chunk.offsets[positions].tolist()]
        return selected


class DeadLetterTable:
    def __init__(
        self,
        schema: Schema,
        ranges: Sequence[OffsetRange],
        *,
        stream: str,
        topic_ids: Mapping[str, str],
        seal: SealPart | None = None,
    ) -> None:
        """Raises SpecError if users added a required column to the table."""
        added = Schema(*(field for field in schema.fields if field.name not in DEAD_LETTER_SCHEMA.column_names))
        self._defaults = find_defaults(added)
        filled = _FILLED_COLUMNS | self._defaults.keys()
        strange = [f.name for f in schema.fields if f.required and f.name not in filled]
        if strange:
            raise SpecError(
                f"the dead-letter table's column {strange[0]} is required, but frazil does not fill it. Make "
                "the column optional, or restore its old name"
            )
        self._schema = schema_to_pyarrow(schema, include_field_ids=True)
        self._ranges = ranges
        self._stream = stream
        self._topic_ids = topic_ids
        self._seal = seal

    def rows(self, chunk: RecordChunk, rejections: Sequence[Rejection], rejected_at_us: int) -> pa.Table:
        """Return one row for each rejection. Columns that users added to the table get their default, or null."""
        ranges = [self._ranges[chunk.range_index[r.index]] for r in rejections]
        stamps = [int(chunk.timestamps_ms[r.index]) for r in rejections]
        texts = zip(rejections, stamps, strict=True)
        columns: dict[str, list[Any]] = {
            "kafka_topic": [r.topic for r in ranges],
            "kafka_partition": [r.partition for r in ranges],
            "kafka_offset": [int(chunk.offsets[r.index]) for r in rejections],
            "topic_id": [self._topic_ids.get(r.topic) for r in ranges],
            "kafka_timestamp": [s * 1000 if 0 <= s <= MILLISECONDS[1] else None for s in stamps],
            "key": [self._seal_part(chunk.keys[r.index], chunk, r.index, "key") for r in rejections],
            "value": [self._seal_part(chunk.values[r.index], chunk, r.index, "value") for r in rejections],
            "error_class": [_storable_text(r.error_class) for r in rejections],
            "error": [_storable_text(r.error) + _timestamp_remark(r, stamp) for r, stamp in texts],
            "rejected_at": [rejected_at_us] * len(rejections),
            "stream": [self._stream] * len(rejections),
            "headers": [self._headers(chunk, r.index) for r in rejections],
        }
        absent = [None] * len(rejections)
        arrays = [pa.chunked_array([pa.array(columns.get(field.name, absent), field.type)]) for field in self._schema]
        arrays = [*map(fill_nulls, arrays, map(self._defaults.get, self._schema.names))]
        return pa.Table.from_arrays(arrays, schema=self._schema)

    def _headers(self, chunk: RecordChunk, index: int) -> list[dict[str, Any]] | None:
        headers = None if chunk.headers is None else chunk.headers[index]
        if headers is None:
            return None
        parts = [(name, value, header_part(name)) for name, value in unpack_headers(headers)]
        return [{"name": name, "value": self._seal_part(value, chunk, index, part)} for name, value, part in parts]

    def _seal_part(self, value: bytes | None, chunk: RecordChunk, index: int, part: str) -> bytes | None:
        if self._seal is None:
            return value
        range_ = self._ranges[chunk.range_index[index]]
        return self._seal(value, name_part(range_.topic, range_.partition, int(chunk.offsets[index]), part))


def _timestamp_remark(rejection: Rejection, stamp_ms: int) -> str:
    if stamp_ms <= MILLISECONDS[1] or rejection.error.startswith("kafka_timestamp: "):
        return ""
    return f"; {range_error('kafka_timestamp', stamp_ms, 'milliseconds')}"


def _storable_text(text: str) -> str:
    """Shorten the text, and escape unpaired surrogates, which a string column cannot store."""
    return text[:MAX_ERROR_CHARACTERS].encode("utf-8", "backslashreplace").decode()


MAX_SAMPLES = 3
"""Maximum number of samples per error class."""
MAX_SAMPLE_CHARACTERS = 300


class RejectSplitter:
    """Counts rejected records, and separately those that an operator accepted."""

    def __init__(self, ranges: Sequence[OffsetRange], accepted: Mapping[TopicPartition, int]) -> None:
        """`accepted`: the offset per topic-partition before which an operator accepted rejected records."""
        self._from = [accepted.get((r.topic, r.partition), 0) for r in ranges]
        self.new, self.accepted = RejectCounter(ranges), RejectCounter(ranges)

    def add(self, chunk: RecordChunk, rejections: Iterable[Rejection]) -> None:
        for rejection in rejections:
            index, offset = int(chunk.range_index[rejection.index]), int(chunk.offsets[rejection.index])
            (self.accepted if offset < self._from[index] else self.new).add(index, offset, rejection)


class RejectCounter:
    def __init__(self, ranges: Sequence[OffsetRange]) -> None:
        self._ranges = ranges
        self._counts: Counter[str] = Counter()
        self._first: dict[int, Reject] = {}
        self._samples: dict[str, list[Reject]] = {}

    def add(self, index: int, offset: int, rejection: Rejection) -> None:
        """Count a rejected record. `index` is the index of the record's offset range."""
        self._counts[rejection.error_class] += 1
        first = self._first.get(index)
        samples = self._samples.setdefault(rejection.error_class, [])
        if (first is None or offset < first.offset) or len(samples) < MAX_SAMPLES:
            range_ = self._ranges[index]
            text = escape_unsafe(rejection.error[:MAX_SAMPLE_CHARACTERS].replace("\n", " "), lines=False)
            reject = Reject(range_.topic, range_.partition, offset, rejection.error_class, text)
            if first is None or offset < first.offset:
                self._first[index] = reject
            if len(samples) < MAX_SAMPLES:
                samples.append(reject)

    def result(self) -> Rejects:
        samples = tuple(reject for few in self._samples.values() for reject in few)
        return join_rejects([Rejects(self._counts, tuple(self._first.values()), samples)])


def join_rejects(parts: Iterable[Rejects]) -> Rejects:
    """Join the summaries of several tasks. The samples of an error class are sorted by topic, partition and offset."""
    counts: Counter[str] = Counter()
    first: dict[TopicPartition, Reject] = {}
    samples: dict[str, list[Reject]] = {}
    for part in parts:
        counts.update(part.counts)
        for reject in part.first:
            tp = (reject.topic, reject.partition)
            first[tp] = min(first.get(tp, reject), reject, key=attrgetter("offset"))
        for reject in part.samples:
            samples.setdefault(reject.error_class, []).append(reject)
    few = (reject for of_class in samples.values() for reject in sorted(of_class, key=_sort_key)[:MAX_SAMPLES])
    return Rejects(dict(counts.most_common()), tuple(sorted(first.values(), key=_sort_key)), tuple(few))


def _sort_key(reject: Reject) -> tuple[str, int, int]:
    return (reject.topic, reject.partition, reject.offset)
