"""What the audit compares, read from both tables and the commit records: coordinate columns only, a file at a time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from pyiceberg.io.pyarrow import ArrowScan
from pyiceberg.table import Table

from frazil.commit.audit import CommittedRange, Evidence, InKafka
from frazil.commit.history import records
from frazil.commit.journal import JournalStore
from frazil.commit.marker import Fate, Marker
from frazil.commit.offset_tally import OffsetTally
from frazil.ingest.contract import TopicPartition

COORDINATES = ("kafka_topic", "kafka_partition", "kafka_offset")


@dataclass(frozen=True, slots=True)
class Claims:
    """What the commit records of a stream say."""

    ranges: Mapping[TopicPartition, tuple[CommittedRange, ...]]
    records: int
    rejected: int


def claims(journals: JournalStore, marker: Marker) -> Claims:
    """Read every commit record up to the marker; journals that wait, or never were committed, claim nothing."""
    ranges: dict[TopicPartition, list[CommittedRange]] = defaultdict(list)
    landed = rejected = 0
    for record in records(journals):
        if marker.settled is None or record.key > marker.settled or marker.fate(record.key) is Fate.NEVER:
            continue
        landed, rejected = landed + record.records, rejected + record.rejected
        for p in record.progress:
            topic_id = record.source.topic_ids.get(p.topic, "")
            ranges[p.topic_partition].append(CommittedRange(p.start, p.end, p.records, p.rejected, topic_id))
    return Claims({tp: tuple(found) for tp, found in ranges.items()}, landed, rejected)


def has_coordinates(table: Table) -> bool:
    names = {field.name for field in table.schema().fields}
    return names.issuperset(COORDINATES)


def tally_rows(table: Table, topics: Collection[str]) -> dict[TopicPartition, OffsetTally]:
    """The offsets of the rows that came from these topics."""
    found: dict[TopicPartition, OffsetTally] = defaultdict(OffsetTally)
    for batch in _batches(table, topics, COORDINATES):
        for (topic, partition), offsets in _by_partition(batch):
            found[topic, partition].add(offsets)
    return dict(found)


def tally_dead_letters(
    table: Table, topics: Collection[str], *, topic_ids: Mapping[str, str]
) -> dict[TopicPartition, OffsetTally]:
    """The same of the dead letters of the topics with these ids; letters of topics that are gone are another's."""
    found: dict[TopicPartition, OffsetTally] = defaultdict(OffsetTally)
    for batch in _batches(table, topics, (*COORDINATES, "topic_id")):
        wanted = [topic_ids.get(t) for t in batch.column("kafka_topic").to_pylist()]
        ids = batch.column("topic_id").to_pylist()
        current = pa.array([mine in {None, theirs} for mine, theirs in zip(ids, wanted, strict=True)], pa.bool_())
        for (topic, partition), offsets in _by_partition(batch.filter(current)):
            found[topic, partition].add(offsets)
    return dict(found)


def gather(
    marker: Marker,
    claimed: Claims,
    *,
    rows: Mapping[TopicPartition, OffsetTally],
    dead_letters: Mapping[TopicPartition, OffsetTally],
    kafka: Mapping[TopicPartition, InKafka],
) -> tuple[Evidence, ...]:
    """One piece of evidence for every topic-partition that anything is known of, sorted."""
    return tuple(
        Evidence(
            topic=tp[0],
            partition=tp[1],
            marker=marker.offsets.get(tp, 0),
            topic_id=marker.source.topic_ids.get(tp[0], ""),
            ranges=claimed.ranges.get(tp, ()),
            rows=rows.get(tp) or OffsetTally(),
            dead_letters=dead_letters.get(tp) or OffsetTally(),
            kafka=kafka.get(tp),
        )
        for tp in sorted(marker.offsets.keys() | claimed.ranges.keys() | rows.keys())
    )


def _batches(table: Table, topics: Collection[str], columns: tuple[str, ...]) -> Iterator[pa.RecordBatch]:
    """File by file: PyIceberg's own reader would begin all of them at once, and hold what it read."""
    # Kafka allows no quotes in a topic's name.
    scan = table.scan(
        row_filter=f"kafka_topic in ({', '.join(repr(t) for t in sorted(topics))})", selected_fields=columns
    )
    arrow = ArrowScan(table.metadata, table.io, scan.projection(), scan.row_filter)
    for task in scan.plan_files():
        yield from arrow.to_record_batches([task])


def _by_partition(batch: pa.RecordBatch) -> Iterator[tuple[TopicPartition, np.ndarray]]:
    encoded = batch.column("kafka_topic").dictionary_encode()
    codes = encoded.indices.to_numpy(zero_copy_only=False)
    partitions = batch.column("kafka_partition").to_numpy(zero_copy_only=False)
    offsets = batch.column("kafka_offset").to_numpy(zero_copy_only=False)
    names = encoded.dictionary.to_pylist()
    for code in np.unique(codes):
        of_topic = codes == code
        for partition in np.unique(partitions[of_topic]):
            yield (names[code], int(partition)), offsets[of_topic & (partitions == partition)]
