"""The looks behind the overview: each reads one thing, may take as long as its catalog does, and raises what it raises.

They are asked through `frazil.operations.answers`, which bounds the wait.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from frazil import clock
from frazil.commit.marker import read_marker
from frazil.errors import MarkerUnreadable
from frazil.host.launcher import Observation
from frazil.host.launchers import open_launcher
from frazil.offsets.spans import TopicPartition
from frazil.operations.overview import Windows
from frazil.operations.stream_view import History, history_of
from frazil.partitions.completeness import complete_to, moment
from frazil.partitions.windows import Window
from frazil.signals.completion import assess
from frazil.spec.model import StreamSpec
from frazil.spec.references import kafka_properties
from frazil.status.stream import StreamStatus, stream_status
from frazil.table.catalogs import existing_catalog
from frazil.table.tables import load_stream_table

KAFKA_ANSWERS_WITHIN_S = 5.0


def look_at_stream(spec: StreamSpec) -> StreamStatus:
    """Where a stream stands now."""
    return stream_status(spec, now_ms=clock.now_ms())


def look_at_windows(specs: Sequence[StreamSpec]) -> Windows | None:
    """How far a table is complete; None if it does not exist. `specs` are all streams that feed it."""
    seen = assess(existing_catalog(specs[0].table.catalog), specs)
    if seen is None:
        return None
    bound, cursor = complete_to(seen.feeds), seen.signals.cursor
    held = sorted(Window(us, cursor.grain).key for us in cursor.held) if cursor else []
    complete = None if bound is None else moment(seen.grain.floor(bound))
    return Windows(seen.grain, complete, seen.decision.reason, tuple(held))


def look_at_history(spec: StreamSpec) -> History | None:
    """What the table's metadata tells of a stream; None if it does not exist."""
    table = load_stream_table(spec)
    if table is None:
        return None
    try:
        marker = read_marker(table.properties, spec.name)
    except MarkerUnreadable:  # the status says so
        marker = None
    return history_of(table.metadata, spec, marker, now_ms=clock.now_ms())


def look_at_writers(spec: StreamSpec) -> Observation:
    """The run folder of this host."""
    return open_launcher(spec.name).observe()


def look_at_topics(spec: StreamSpec) -> Mapping[TopicPartition, int]:
    """Where each topic-partition ends in Kafka. Raises what an unreachable Kafka raises."""
    from frazil.kafka.admin import KafkaOffsets  # noqa: PLC0415 - librdkafka, which few looks need

    properties = {**kafka_properties(spec, os.environ), "log_level": "0"}
    with KafkaOffsets(properties, spec.source.reads, timeout_s=KAFKA_ANSWERS_WITHIN_S) as kafka:
        return kafka.ends(kafka.describe().partitions)
