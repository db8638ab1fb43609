"""Rejected records as rows of the dead-letter table: where they were, what they were, and why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.schema import Schema

from frazil.ingest.contract import OffsetRange, TopicPartition
from frazil.ingest.decode import Rejection
from frazil.ingest.kafka import Chunk

MAX_ERROR_CHARACTERS = 1000


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
        """`floors`: dead letters below these offsets are in the table already, and are not written again."""
        self._schema = schema_to_pyarrow(schema, include_field_ids=True)
        self._ranges = ranges
        self._topic_ids = topic_ids
        self._floors = np.array([floors.get((r.topic, r.partition), 0) for r in ranges], np.int64)

    def rows(self, chunk: Chunk, rejections: Sequence[Rejection], rejected_at_us: int) -> pa.Table:
        """The chunk's rejections at or above their floors; columns that the table has beside ours are null."""
        new = [r for r in rejections if chunk.offsets[r.index] >= self._floors[chunk.range_index[r.index]]]
        ranges = [self._ranges[chunk.range_index[r.index]] for r in new]
        stamps = [int(chunk.timestamps_ms[r.index]) for r in new]
        columns = {
            "kafka_topic": [r.topic for r in ranges],
            "kafka_partition": [r.partition for r in ranges],
            "kafka_offset": [int(chunk.offsets[r.index]) for r in new],
            "topic_id": [self._topic_ids.get(r.topic) for r in ranges],
            "kafka_timestamp": [None if stamp < 0 else stamp * 1000 for stamp in stamps],
            "key": [chunk.keys[r.index] for r in new],
            "value": [chunk.values[r.index] for r in new],
            "error_class": [r.error_class for r in new],
            "error": [r.error[:MAX_ERROR_CHARACTERS] for r in new],
            "rejected_at": [rejected_at_us] * len(new),
        }
        absent = [None] * len(new)
        arrays = [pa.array(columns.get(field.name, absent), field.type) for field in self._schema]
        return pa.Table.from_arrays(arrays, schema=self._schema)
