"""Chooses the reader for Kafka's offset ranges: `kafka_columns`, which is fast, or `kafka_messages`, which works in
every environment.
"""

from __future__ import annotations

import logging
import os
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial

import numpy as np
from confluent_kafka import KafkaException

from frazil.ingest.chunk import RecordChunk
from frazil.ingest.contract import OffsetRange
from frazil.ingest.kafka_messages import MessageReader
from frazil.ingest.range_reader import RangeReader, consumer_properties
from frazil.kafka.librdkafka import LibraryUnusable, librdkafka
from frazil.kafka.tokens import METHOD, is_function, split_properties
from frazil.offsets.spans import TopicPartition

log = logging.getLogger(__name__)

READER_VARIABLE = "FRAZIL_KAFKA_READER"
"""Environment variable of executors. Its value `messages` selects the slower reader of message objects."""
SLOW_READER_TEXT = "Kafka records are read one by one, which costs more CPU"


def create_kafka_reader(
    properties: Mapping[str, str], ranges: Sequence[OffsetRange], *, stream: str | None = None
) -> RangeReader | MultiPassReader:
    """Return a reader of these ranges. A topic-partition may have several ranges. Raises SpecError."""
    reason = explain_slow_reader(properties)
    open_ranges: Callable[[Sequence[OffsetRange]], RangeReader]
    if reason is None:
        from frazil.ingest.kafka_columns import ColumnReader  # it needs Numba, which may not work here

        open_ranges = partial(ColumnReader, properties, stream=stream)
    else:
        open_ranges = partial(MessageReader, properties, stream=stream)
    partitions = {(r.topic, r.partition) for r in ranges}
    reader = open_ranges(ranges) if len(partitions) == len(ranges) else MultiPassReader(open_ranges, ranges)
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
    """Return why this process cannot use the fast reader, if so. Checks and logs this only once."""
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


class MultiPassReader:
    """Reads the records `[start, end)` of each range once, with one `RangeReader` after another."""

    notice: str | None = None
    on_read: Callable[[int, float], None] = staticmethod(lambda *_: None)

    def __init__(
        self, open_ranges: Callable[[Sequence[OffsetRange]], RangeReader], ranges: Sequence[OffsetRange]
    ) -> None:
        self._open_ranges = open_ranges
        self._ranges = ranges

    def __enter__(self) -> MultiPassReader:
        return self

    def __exit__(self, *_: object) -> None:
        """Do nothing: each pass closes its own reader."""

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
