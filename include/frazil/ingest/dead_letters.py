"""Rejected records as rows of the dead-letter table: where they were, what they were, and why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.schema import Schema

from frazil.errors import SpecError
from frazil.ingest.contract import OffsetRange, TopicPartition
from frazil.ingest.decode import Rejection
from frazil.ingest.kafka import Chunk
from frazil.ingest.ranges import MILLISECONDS, OUT_OF_RANGE, said

MAX_ERROR_CHARACTERS = 1000
COLUMNS = (
    "kafka_topic",
    "kafka_partition",
    "kafka_offset",
    "topic_id",
    "kafka_timestamp",
    "key",
    "value",
    "error_class",
    "error",
    "rejected_at",
)


class DeadLetterTable:
    """Turns rejections into Arrow tables of the dead-letter table's schema."""

    def __init__(
        self,
        schema: Schema,
        ranges: Sequence[OffsetRange],
        *,
        topic_ids: Mapping[str, str],
        floors: Mapping[TopicPartition, int],
    ) -> None:
        """`floors`: dead letters below these offsets are in the table already, and are not written again.

        Raises SpecError where the table has a required column that frazil has nothing for.
        """
        strange = [f.name for f in schema.fields if f.required and f.name not in COLUMNS]
        if strange:
            raise SpecError(
                f"the dead-letter table's column {strange[0]} is required, and frazil has nothing to put there. Make "
                "it optional, or give it its old name again"
            )
        self._schema = schema_to_pyarrow(schema, include_field_ids=True)
        self._ranges = ranges
        self._topic_ids = topic_ids
        self._floors = np.array([floors.get((r.topic, r.partition), 0) for r in ranges], np.int64)

    def rows(self, chunk: Chunk, rejections: Sequence[Rejection], rejected_at_us: int) -> pa.Table:
        """The chunk's rejections at or above their floors; columns that the table has beside ours are null."""
        new = [r for r in rejections if chunk.offsets[r.index] >= self._floors[chunk.range_index[r.index]]]
        ranges = [self._ranges[chunk.range_index[r.index]] for r in new]
        stamps = [int(chunk.timestamps_ms[r.index]) for r in new]
        values = (
            [r.topic for r in ranges],
            [r.partition for r in ranges],
            [int(chunk.offsets[r.index]) for r in new],
            [self._topic_ids.get(r.topic) for r in ranges],
            [s * 1000 if 0 <= s <= MILLISECONDS[1] else None for s in stamps],
            [chunk.keys[r.index] for r in new],
            [chunk.values[r.index] for r in new],
            [_text(r.error_class) for r in new],
            [_text(r.error) + _unheld(r, stamp) for r, stamp in zip(new, stamps, strict=True)],
            [rejected_at_us] * len(new),
        )
        columns: dict[str, list[Any]] = dict(zip(COLUMNS, values, strict=True))
        absent = [None] * len(new)
        arrays = [pa.array(columns.get(field.name, absent), field.type) for field in self._schema]
        return pa.Table.from_arrays(arrays, schema=self._schema)


def _unheld(rejection: Rejection, stamp_ms: int) -> str:
    """A Kafka timestamp that its column cannot hold, said beside the reason: it would be nowhere otherwise."""
    if stamp_ms <= MILLISECONDS[1] or rejection.error_class == OUT_OF_RANGE:
        return ""
    return f"; {said('kafka_timestamp', stamp_ms, 'milliseconds')}"


def _text(text: str) -> str:
    """What a string column can hold: an error may quote half of a surrogate pair."""
    return text[:MAX_ERROR_CHARACTERS].encode("utf-8", "backslashreplace").decode()
