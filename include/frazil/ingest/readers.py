"""Chooses the reader for Kafka's offset ranges: the fast one, or the one with message objects."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial

from confluent_kafka import KafkaException

from frazil.ingest.contract import OffsetRange
from frazil.ingest.kafka_messages import MessageReader
from frazil.ingest.range_passes import MultiPassReader
from frazil.ingest.range_reader import RangeReader, consumer_properties
from frazil.kafka.librdkafka import LibraryUnusable, librdkafka
from frazil.kafka.tokens import METHOD, is_function, split_properties

log = logging.getLogger(__name__)

READER_VARIABLE = "FRAZIL_KAFKA_READER"
"""Environment variable of executors. Its value `messages` selects the slower reader, which uses message objects."""
SLOW_READER_TEXT = "Kafka records are read one by one, which costs more CPU"


def create_kafka_reader(
    properties: Mapping[str, str], ranges: Sequence[OffsetRange], *, stream: str | None = None
) -> RangeReader | MultiPassReader:
    """Return a reader of these ranges. Several ranges may belong to one topic-partition. Errors name the stream.

    Raises SpecError.
    """
    reason = find_slow_reader_reason(properties)
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


def find_slow_reader_reason(properties: Mapping[str, str]) -> str | None:
    """Return why records must be read as message objects; None if the fast reader can be used."""
    if os.environ.get(READER_VARIABLE) == "messages":
        return f"the executor's {READER_VARIABLE} requests it"
    return _find_process_reason() or _find_properties_reason(properties)


def _find_properties_reason(properties: Mapping[str, str]) -> str | None:
    """Return why the fast reader cannot be used with these properties; None if it can."""
    if properties.get("sasl.mechanism", properties.get("sasl.mechanisms")) == "OAUTHBEARER":
        method = properties.get(METHOD, "default")
        if method != "oidc" and not is_function(method):
            return f"{METHOD} is {method}; with oidc or a function, librdkafka gets its tokens by itself"
    try:
        library = librdkafka()
        library.conf_destroy(library.new_configuration(split_properties(consumer_properties(properties))[0]))
    except KafkaException as error:
        return f"librdkafka's C API does not accept source.properties: {error.args[0].str()}"
    return None


@cache
def _find_process_reason() -> str | None:
    """Return why this process cannot use the fast reader; None if it can. Checks and logs this only once."""
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
