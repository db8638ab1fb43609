"""Opens a task's reader of files or of Kafka. Reads several ranges of a topic-partition in several passes."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
from pyiceberg.io import load_file_io
from pyiceberg.schema import Schema

from frazil.ingest.chunk import RecordChunk
from frazil.ingest.contract import OffsetRange, StageContext, StageTask
from frazil.ingest.coordinates import record_schema
from frazil.ingest.range_reader import RecordReader
from frazil.ingest.record_files import FileColumns, FileReader
from frazil.ingest.sealing import Unsealer
from frazil.offsets.spans import TopicPartition
from frazil.spec.references import resolve_properties


def open_reader(context: StageContext, task: StageTask) -> RecordReader:
    if not context.files:
        return create_kafka_reader(resolve_properties(context.kafka, os.environ), task.ranges, stream=context.stream)
    io = load_file_io(dict(context.main.io), location=context.files[0].path)
    schema = record_schema(context.main.schema, context.coordinates)
    if context.transform:
        schema = Schema.model_validate_json(context.transform.records_json)
    unseal = Unsealer(context.sensitive.get("secret"), sensitive=bool(context.sensitive))
    columns = FileColumns.of(schema, context.record_units)
    return FileReader(context.files, task.ranges, io=io, columns=columns, unseal=unseal)


def create_kafka_reader(
    properties: Mapping[str, str], ranges: Sequence[OffsetRange], *, stream: str | None = None
) -> RecordReader:
    """Return a reader of these ranges. A topic-partition may have several ranges. Raises SpecError."""
    from frazil.ingest.kafka_columns import ColumnReader  # loads Numba, for the processes that read

    open_ranges = partial(ColumnReader, properties, stream=stream)
    partitions = {(r.topic, r.partition) for r in ranges}
    return open_ranges(ranges) if len(partitions) == len(ranges) else MultiPassReader(open_ranges, ranges)


class MultiPassReader(RecordReader):
    """Reads the records `[start, end)` of each range once, with one `ColumnReader` after another."""

    def __init__(
        self, open_ranges: Callable[[Sequence[OffsetRange]], RecordReader], ranges: Sequence[OffsetRange]
    ) -> None:
        self._open_ranges = open_ranges
        self._ranges = ranges

    def __iter__(self) -> Iterator[RecordChunk]:
        for turn in group_into_passes(self._ranges):
            index = np.array(turn, np.int32)
            with self._open_ranges([self._ranges[i] for i in turn]) as reader:
                reader.on_read = self.on_read
                for chunk in reader:
                    yield replace(chunk, range_index=index[chunk.range_index])


def group_into_passes(ranges: Sequence[OffsetRange]) -> list[list[int]]:
    """Group the indexes of the ranges into passes, each with at most one range per topic-partition."""
    counts: dict[TopicPartition, int] = defaultdict(int)
    passes: list[list[int]] = []
    for index, r in enumerate(ranges):
        tp = (r.topic, r.partition)
        if counts[tp] == len(passes):
            passes.append([])
        passes[counts[tp]].append(index)
        counts[tp] += 1
    return passes
