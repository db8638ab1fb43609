"""Chooses a task's reader: files, `kafka_columns` (fast), or `kafka_messages` (works in every environment)."""

from __future__ import annotations

import logging
import os
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial

import numpy as np
from confluent_kafka import KafkaException
from pyiceberg.io import load_file_io
from pyiceberg.schema import Schema

from frazil.ingest.chunk import RecordChunk
from frazil.ingest.contract import OffsetRange, StageContext, StageTask
from frazil.ingest.coordinates import record_schema
from frazil.ingest.kafka_messages import MessageReader
from frazil.ingest.range_reader import RangeReader, RecordReader, consumer_properties
from frazil.ingest.record_files import FileReader
from frazil.ingest.sealing import Unsealer
from frazil.kafka.librdkafka import LibraryUnusable, librdkafka
from frazil.kafka.tokens import METHOD, is_function, split_properties
from frazil.offsets.spans import TopicPartition
from frazil.spec.references import resolve_properties

log = logging.getLogger(__name__)

READER_VARIABLE = "FRAZIL_KAFKA_READER"
"""Environment variable of executors. Its value `messages` selects the slower reader of message objects."""
SLOW_READER_TEXT = "Kafka records are read one by one, which costs more CPU"


def open_reader(context: StageContext, task: StageTask) -> RecordReader:
    if not context.files:
        return create_kafka_reader(resolve_properties(context.kafka, os.environ), task.ranges, stream=context.stream)
    io = load_file_io(dict(context.main.io), location=context.files[0].path)
    schema = record_schema(context.main.schema, context.coordinates)
    if context.transform:
        schema = Schema.model_validate_json(context.transform.records_json)
    unseal = Unsealer(context.sensitive.get("secret"), sensitive=bool(context.sensitive))
    return FileReader(context.files, task.ranges, io=io, schema=schema, unseal=unseal)


def create_kafka_reader(
    properties: Mapping[str, str], ranges: Sequence[OffsetRange], *, stream: str | None = None
) -> RecordReader:
    """Return a reader of these ranges. A topic-partition may have several ranges. Raises SpecError."""
    reason = explain_slow_reader(properties)
    kind: type[RangeReader] = MessageReader
    if reason is None:
        from frazil.ingest.kafka_columns import ColumnReader  # it needs Numba, which may not work here

        kind = ColumnReader
    open_ranges = partial(kind, properties, stream=stream)
    partitions = {(r.topic, r.partition) for r in ranges}
    is_one_pass = len(partitions) == len(ranges)
    reader: RecordReader = open_ranges(ranges) if is_one_pass else MultiPassReader(open_ranges, ranges)
    reader.notice = reason and f"{SLOW_READER_TEXT}: {reason}"
    return reader


def explain_slow_reader(properties: Mapping[str, str]) -> str | None:
    """Return why records must be read as message objects; None if the fast reader can be used."""
    if os.environ.get(READER_VARIABLE) == "messages":
        return f"the executor's {READER_VARIABLE} requests it"
    return _explain_unusable_process() or _explain_unsupported_properties(properties)


def _explain_unsupported_properties(properties: Mapping[str, str]) -> str | None:
    if properties.get("sasl.mechanism", properties.get("sasl.mechanisms")) == "OAUTHBEARER":
        method = properties.get(METHOD, "default")
        if method != "oidc" and not is_function(method):
            return f"{METHOD} is {method}, and the faster reader supports only oidc or a function"
    try:
        library = librdkafka()
        library.conf_destroy(library.new_configuration(split_properties(consumer_properties(properties))[0]))
    except KafkaException as error:
        return f"librdkafka's C API does not accept source.properties: {error.args[0].str()}"
    return None


@cache
def _explain_unusable_process() -> str | None:
    """Return why this process cannot use the fast reader; None if it can. Checks and logs the reason only once."""
    try:
        librdkafka()
        from frazil.ingest.kafka_columns import compile_loop  # importing it may fail, and takes a moment

        compile_loop()
    except LibraryUnusable as error:
        reason = f"librdkafka: {error}"
    except Exception as error:
        reason = f"the reading loop cannot be compiled on this host: {type(error).__name__}: {error}"
    else:
        return None
    log.warning("%s: %s", SLOW_READER_TEXT, reason)
    return reason


class MultiPassReader(RecordReader):
    """Reads the records `[start, end)` of each range once, with one `RangeReader` after another."""

    def __init__(
        self, open_ranges: Callable[[Sequence[OffsetRange]], RangeReader], ranges: Sequence[OffsetRange]
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
    seen: dict[TopicPartition, int] = defaultdict(int)
    found: list[list[int]] = []
    for index, r in enumerate(ranges):
        tp = (r.topic, r.partition)
        if seen[tp] == len(found):
            found.append([])
        found[seen[tp]].append(index)
        seen[tp] += 1
    return found
