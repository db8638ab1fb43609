"""Finds dead letters that a replay leaves out, with the reasons."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from enum import StrEnum

import pyarrow as pa

from frazil.audit.claims import load_all_claims
from frazil.backfill.rules import require_own_marker
from frazil.commit.marker import Marker
from frazil.commit.open_streams import OpenStream
from frazil.dead_letters.selection import Selection, read_dead_letters
from frazil.ingest.sealing import OMITTED
from frazil.offsets.spans import TopicPartition
from frazil.spec.model import StreamSpec
from frazil.spec.units import format_count
from frazil.table.file_bounds import COORDINATES

COORDINATES_AND_TOPIC_ID = (*COORDINATES, "topic_id")


class LeftOutReason(StrEnum):
    """Why a replay leaves out a dead letter."""

    NOT_KEPT = "not-kept"
    """No part of the record was kept."""
    RECREATED = "topic-recreated"
    """The topic was recreated, and has other records at these offsets."""
    TO_BE_READ = "to-be-read"
    """A reset moved the stream's position back before the record, or the batch was never committed."""
    TWO_RECORDS = "two-records"
    """Kafka assigned the offset to a second record."""
    FORMER_TOPIC = "former-topic"
    """The topic was deleted, so the record's offset does not show which change is newer."""


_SENTENCES: Mapping[LeftOutReason, str] = {
    LeftOutReason.NOT_KEPT: (
        "cannot be replayed: the record itself was not stored, because the stream has sensitive fields "
        "(sensitive.dead-letters: omit)"
    ),
    LeftOutReason.RECREATED: "{is_are} left out: the topic has been recreated, and has other records at these offsets",
    LeftOutReason.TO_BE_READ: "{is_are} left out: the stream's writer will read {its_their} again",
    LeftOutReason.TWO_RECORDS: (
        "{is_are} left out: Kafka's log was truncated, or a forgotten stream's topic recreated, and a second record "
        "has the same offset"
    ),
    LeftOutReason.FORMER_TOPIC: (
        "{is_are} left out: the topic was recreated, and offsets of the former topic do not show which change is "
        "newer. Send {its_their} again"
    ),
}


def left_out_messages(found: Mapping[LeftOutReason, int], stream: str) -> list[str]:
    sentences = []
    for reason, count in ((reason, found.get(reason, 0)) for reason in LeftOutReason):
        if count:
            is_are, its_their = ("is", "its record") if count == 1 else ("are", "their records")
            what = _SENTENCES[reason].format(is_are=is_are, its_their=its_their)
            sentences.append(f"{format_count(count, 'dead letter')} of stream {stream} {what}.")
    return sentences


def count_left_out(opened: OpenStream, selection: Selection) -> Counter[LeftOutReason]:
    """Count the selected dead letters that a replay would leave out now. Raises AdoptionRequired."""
    marker, former, spec = load_own_marker(opened), find_former_ends(opened), opened.spec
    columns = (*COORDINATES_AND_TOPIC_ID, "value") if may_omit_records(spec) else COORDINATES_AND_TOPIC_ID
    counts: Counter[LeftOutReason] = Counter()
    for rows in read_dead_letters(opened.tables.dead_letters.current(), selection.row_filter(spec), columns):
        counts.update(filter(None, find_left_out_reasons(rows, marker, former, omits=may_omit_records(spec))))
    return counts


def load_own_marker(opened: OpenStream) -> Marker:
    """Return the stream's marker. Raises AdoptionRequired if the stream has no marker."""
    return require_own_marker(opened.spec.name, opened.tables.marker())


def find_former_ends(opened: OpenStream) -> Mapping[TopicPartition, int]:
    """Return the end offsets of deleted topics of the same names, from all commit records.

    Empty unless this is an upsert stream.
    """
    if not opened.spec.sinks.mode.replaces_rows:
        return {}
    marker = load_own_marker(opened)
    claimed = load_all_claims(opened.tables.journals, marker, opened.tables.main.current().metadata)
    return {tp: of.max() + 1 for tp, of in claimed.former_offsets(marker.source.topic_ids).items() if of}


def may_omit_records(spec: StreamSpec) -> bool:
    """Return whether dead letters of the stream may be stored without any part of their record."""
    return spec.sensitive is not None


def find_left_out_reasons(
    rows: pa.Table, marker: Marker, former: Mapping[TopicPartition, int], *, omits: bool
) -> list[LeftOutReason | None]:
    """Return why each row is left out; None if it is replayed. `rows` need the column `value` only with `omits`."""
    values = rows["value"].to_pylist() if omits else [None] * rows.num_rows
    places = zip(*(rows[name].to_pylist() for name in COORDINATES_AND_TOPIC_ID), strict=True)
    return [
        LeftOutReason.NOT_KEPT if value == OMITTED else _reason_for(place, marker, former)
        for place, value in zip(places, values, strict=True)
    ]


def _reason_for(
    place: tuple[str, int, int, str | None], marker: Marker, former: Mapping[TopicPartition, int]
) -> LeftOutReason | None:
    topic, partition, offset, topic_id = place
    if topic_id not in {None, marker.source.topic_ids.get(topic)}:
        return LeftOutReason.RECREATED
    if offset >= marker.offsets.get((topic, partition), 0):
        return LeftOutReason.TO_BE_READ
    if any(start <= offset < end for start, end in marker.rewritten.get((topic, partition), ())):
        return LeftOutReason.TWO_RECORDS
    if offset < former.get((topic, partition), 0):
        return LeftOutReason.FORMER_TOPIC
    return None
