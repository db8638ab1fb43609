"""Reads the dead-letter table to find records that are already dead letters and will be read from Kafka again.

Whether a record is rejected depends on the current schema. But a dead letter stays a dead letter: even if the schema
now accepts such a record, staging does not write it again to either table.
"""

from __future__ import annotations

from pyiceberg.table import Table
from pyroaring import BitMap64

from frazil.commit.marker import Marker, keep_same_topics
from frazil.kafka.identity import SourceIdentity
from frazil.offsets.spans import TopicPartition
from frazil.table.branches import head_of
from frazil.table.landed_offsets import RowSelection, tally_rows


def existing_dead_letters(table: Table, dead_letters: Marker | None, marker: Marker) -> dict[TopicPartition, BitMap64]:
    """Return the offsets of records, from a stream's position on, that are already dead letters.

    Reads the dead-letter table only if its own marker, `dead_letters`, is ahead of the stream's marker: after a reset,
    or when only the main table is missing a batch. If a log was truncated, two records have had the same offset, so
    dead letters at such offsets are left out.
    """
    ends = keep_same_topics(dead_letters.offsets, dead_letters.source, marker.source) if dead_letters else {}
    ahead = {tp: [(marker.offsets.get(tp, 0), end)] for tp, end in ends.items() if end > marker.offsets.get(tp, 0)}
    if not ahead:
        return {}
    wanted = RowSelection({topic for topic, _ in ahead}, ahead, marker.source.topic_ids, stream=marker.stream)
    return {tp: found.seen - _rewritten_offsets(marker, tp) for tp, found in tally_rows(table, wanted).items()}


def dead_letter_ends(table: Table, stream: str, source: SourceIdentity) -> dict[TopicPartition, int]:
    """Return each topic-partition's offset after its last dead letter, for a dead-letter table without a marker.

    Reads the coordinates of all dead letters in the table.
    """
    head = head_of(table.metadata)
    if head is None or (head.summary and head.summary.get("total-records") == "0"):
        return {}
    found = tally_rows(table, RowSelection(source.topic_ids.keys(), topic_ids=source.topic_ids, stream=stream))
    return {tp: int(tally_.seen.max()) + 1 for tp, tally_ in found.items() if tally_.seen}


def _rewritten_offsets(marker: Marker, tp: TopicPartition) -> BitMap64:
    offsets = BitMap64()
    for start, end in marker.rewritten.get(tp, ()):
        offsets.add_range(start, end)
    return offsets
