"""Selects the dead letters of one stream by reason and time.

Reads them one file at a time, and counts them by day and reason. Also finds the selected dead letters that a replay
leaves out. Marks dead letters as discarded: they stay in the table, so audits count them.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from enum import StrEnum
from functools import partial
from typing import Annotated

import pyarrow as pa
from pydantic import Field
from pyiceberg.io.pyarrow import ArrowScan
from pyiceberg.table import Table
from pyroaring import BitMap64

import frazil.pyiceberg_fixes.data_files  # noqa: F401 - reads data files
from frazil.audit.claims import load_all_claims
from frazil.backfill.request import UtcMoment
from frazil.clock import epoch_ms
from frazil.commit.backfill_records import (
    BackfillMarker,
    BackfillState,
    branch_name,
    chunk_topic_ids,
    committed_chunks,
    load_record,
    read_backfill,
    unsettled_backfill,
)
from frazil.commit.compare_and_swap import Change, Done, swap
from frazil.commit.marked_update import require_unchanged
from frazil.commit.marker import Marker, require_own_marker
from frazil.commit.open_streams import OpenStream
from frazil.commit.row_changes import (
    DEAD_LETTER_COLUMNS,
    DeadLetterOffsets,
    DeadLetterSource,
    RowChange,
    RowChangeWriter,
    choose_dead_letters,
    dead_letters_at,
    offset_spans,
)
from frazil.errors import WriterBusy
from frazil.ingest.sealing import OMITTED, SEALED, header_part, name_part, unsealer_of
from frazil.offsets.spans import Offsets
from frazil.spec.model import StreamSpec
from frazil.spec.units import format_count
from frazil.spec.values import Model
from frazil.table.branches import head_of
from frazil.table.landed_offsets import COORDINATES, topics_filter

ERROR_CLASS_PATTERN = r"^\w+$"
ErrorClass = Annotated[str, Field(pattern=ERROR_CLASS_PATTERN)]


class Selection(Model):
    """Selects dead letters of a stream. `begin` and `end` bound the time of the rejection, `[begin, end)`."""

    reasons: tuple[ErrorClass, ...] = ()
    """Error classes to select. If empty, all are selected."""
    begin: UtcMoment | None = None
    end: UtcMoment | None = None
    discarded: bool = False

    def row_filter(self, spec: StreamSpec) -> str:
        parts = [f"stream = '{spec.name}'"]
        if self.reasons:
            parts.append(f"error_class in ({', '.join(map(repr, self.reasons))})")
        if self.begin is not None:
            parts.append(f"rejected_at >= '{self.begin.isoformat()}'")
        if self.end is not None:
            parts.append(f"rejected_at < '{self.end.isoformat()}'")
        if not self.discarded:
            parts.append("discarded_at is null")
        return " and ".join(parts)

    def __str__(self) -> str:
        """Return the options of `frazil dlq` that select these dead letters; `all` without options."""
        options = [
            *(f"--reason {reason}" for reason in sorted({*self.reasons})),
            *([f"--from {self.begin.isoformat()}"] if self.begin else ()),
            *([f"--to {self.end.isoformat()}"] if self.end else ()),
        ]
        return " ".join(options) or "all"


def read_dead_letters(table: Table, row_filter: str, columns: Sequence[str]) -> Iterator[pa.Table]:
    """Yield the selected rows of the main branch in batches, file by file."""
    head = head_of(table.metadata)
    if head is None:
        return
    scan = table.scan(row_filter=row_filter, selected_fields=tuple(columns), snapshot_id=head.snapshot_id)
    # The snapshot may be older than a column, such as `headers`, which a writer has added since.
    columns_now = table.schema().select(*columns)
    arrow = ArrowScan(table.metadata, table.io, columns_now, scan.row_filter)
    for task in scan.plan_files():
        for batch in arrow.to_record_batches([task]):
            if batch.num_rows:
                yield pa.Table.from_batches([batch])


@dataclass(frozen=True, slots=True, order=True)
class ReasonCount:
    """Dead letters with one reason that were rejected on one UTC day."""

    day: date
    reason: str
    dead_letters: int
    replayed: int
    """Dead letters that were replayed and rejected again."""
    discarded: int


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """One dead letter. Bytes that are not UTF-8 text are escaped."""

    where: str
    """The record's coordinates, as `topic[partition]@offset`."""
    rejected_at_ms: int
    reason: str
    error: str
    key: str | None
    value: str | None
    headers: dict[str, list[str | None]]
    """The values of each header name, because Kafka allows a name to repeat."""
    replays: int
    discarded: str | None
    """The user, the time and the reason, if the dead letter was discarded."""


def count_by_day(table: Table, spec: StreamSpec, selection: Selection) -> list[ReasonCount]:
    counts: dict[tuple[date, str], Counter[str]] = defaultdict(Counter)
    aggregates = [([], "count_all"), ("replays", "count"), ("discarded_at", "count")]
    columns = ("error_class", "rejected_at", "replays", "discarded_at")
    for rows in read_dead_letters(table, selection.row_filter(spec), columns):
        days = rows.append_column("day", rows["rejected_at"].cast(pa.date32()))
        for row in days.group_by(["day", "error_class"]).aggregate(aggregates).to_pylist():
            counts[row.pop("day"), row.pop("error_class")].update(row)
    names = ("count_all", "replays_count", "discarded_at_count")
    return sorted(ReasonCount(*key, *(count[name] for name in names)) for key, count in counts.items())


def read_samples(
    table: Table, spec: StreamSpec, selection: Selection, *, limit: int, decrypt: bool = False
) -> list[DeadLetter]:
    """Return the first `limit` dead letters. With `decrypt`, raises SpecError if the secret is wrong."""
    row_filter = selection.row_filter(spec)
    coordinates = _first_rows(read_dead_letters(table, row_filter, COORDINATES), limit)
    if coordinates is None:
        return []
    discards = ("discarded_at", "discarded_by", "discard_reason")
    columns = (*COORDINATES, "rejected_at", "error_class", "error", "key", "value", "replays", *discards)
    # A table of an earlier version gets `headers` at its writer's next start.
    headers = ("headers",) if "headers" in table.schema().column_names else ()
    row_filter = f"{row_filter} and {_coordinates_filter(coordinates)}"
    rows = _first_rows(read_dead_letters(table, row_filter, (*columns, *headers)), limit)
    return [] if rows is None else list(_parse_rows(rows, spec, decrypt=decrypt))


def _first_rows(pieces: Iterable[pa.Table], limit: int) -> pa.Table | None:
    first: pa.Table | None = None
    for piece in pieces:
        together = piece if first is None else pa.concat_tables([first, piece])
        first = together.sort_by([(name, "ascending") for name in COORDINATES]).slice(0, limit)
    return first


def _coordinates_filter(coordinates: pa.Table) -> str:
    """Return a row filter around these coordinates, so that the scan skips other files."""
    partitions = ", ".join(map(str, sorted({*coordinates["kafka_partition"].to_pylist()})))
    offsets = coordinates["kafka_offset"].to_pylist()
    return (
        f"{topics_filter({*coordinates['kafka_topic'].to_pylist()})} and kafka_partition in ({partitions}) "
        f"and kafka_offset >= {min(offsets)} and kafka_offset <= {max(offsets)}"
    )


def _parse_rows(rows: pa.Table, spec: StreamSpec, *, decrypt: bool) -> Iterator[DeadLetter]:
    unseal = unsealer_of(spec)

    def text(value: bytes | None, part_name: str) -> str | None:
        return _format_bytes(unseal(value, part_name) if decrypt else value)

    for row in rows.to_pylist():
        moment: datetime | None = row["discarded_at"]
        part_name = partial(name_part, row["kafka_topic"], row["kafka_partition"], row["kafka_offset"])
        headers: dict[str, list[str | None]] = {}
        for header in row.get("headers") or ():
            value = text(header["value"], part_name(header_part(header["name"])))
            headers.setdefault(header["name"], []).append(value)
        yield DeadLetter(
            where=f"{row['kafka_topic']}[{row['kafka_partition']}]@{row['kafka_offset']}",
            rejected_at_ms=epoch_ms(row["rejected_at"]),
            reason=row["error_class"],
            error=row["error"],
            key=text(row["key"], part_name("key")),
            value=text(row["value"], part_name("value")),
            headers=headers,
            replays=row["replays"] or 0,
            discarded=f"{row['discarded_by']}, {moment.isoformat()}: {row['discard_reason']}" if moment else None,
        )


def _format_bytes(value: bytes | None) -> str | None:
    if value == OMITTED:
        return "(not kept)"
    if value is not None and value.startswith(SEALED):
        return "(encrypted)"
    return None if value is None else value.decode("utf-8", "backslashreplace")


COORDINATES_AND_TOPIC_ID = (*COORDINATES, "topic_id")


class LeftOutReason(StrEnum):
    CONTENT_OMITTED = "not-kept"
    RECREATED = "topic-recreated"
    TO_BE_READ = "to-be-read"
    TWO_RECORDS = "two-records"
    FORMER_TOPIC = "former-topic"


_SENTENCES: Mapping[LeftOutReason, str] = {
    LeftOutReason.CONTENT_OMITTED: (
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


def left_out_messages(counts: Mapping[LeftOutReason, int], stream: str) -> list[str]:
    sentences = []
    for reason, count in ((reason, counts.get(reason, 0)) for reason in LeftOutReason):
        if count:
            is_are, its_their = ("is", "its record") if count == 1 else ("are", "their records")
            sentence = _SENTENCES[reason].format(is_are=is_are, its_their=its_their)
            sentences.append(f"{format_count(count, 'dead letter')} of stream {stream} {sentence}.")
    return sentences


def count_left_out(opened: OpenStream, selection: Selection) -> Counter[LeftOutReason]:
    """Count the selected dead letters that a replay would leave out now. Raises AdoptionRequired."""
    spec, former = opened.spec, find_former_ends(opened)
    marker = require_own_marker(spec.name, opened.tables.marker())
    columns = (*COORDINATES_AND_TOPIC_ID, "value") if may_omit_records(spec) else COORDINATES_AND_TOPIC_ID
    counts: Counter[LeftOutReason] = Counter()
    for rows in read_dead_letters(opened.tables.dead_letters.current(), selection.row_filter(spec), columns):
        counts.update(filter(None, find_left_out_reasons(rows, marker, former, omits=may_omit_records(spec))))
    return counts


def find_former_ends(opened: OpenStream) -> Offsets:
    """Return the end offsets of deleted topics with the same names; empty unless this is an upsert stream."""
    if not opened.spec.sinks.mode.replaces_rows:
        return {}
    marker = require_own_marker(opened.spec.name, opened.tables.marker())
    claimed = load_all_claims(opened.tables.journals, marker, opened.tables.main.current().metadata)
    return {tp: offsets.max() + 1 for tp, offsets in claimed.former_offsets(marker.source.topic_ids).items() if offsets}


def may_omit_records(spec: StreamSpec) -> bool:
    return spec.sensitive is not None


def find_left_out_reasons(
    rows: pa.Table, marker: Marker, former: Offsets, *, omits: bool
) -> list[LeftOutReason | None]:
    """Return why each row is left out, or None for a row to replay. With `omits`, `rows` need the column `value`."""
    values = rows["value"].to_pylist() if omits else [None] * rows.num_rows
    coordinates = zip(*(rows[name].to_pylist() for name in COORDINATES_AND_TOPIC_ID), strict=True)
    return [
        LeftOutReason.CONTENT_OMITTED if value == OMITTED else _reason_for(record, marker, former)
        for record, value in zip(coordinates, values, strict=True)
    ]


def _reason_for(record: tuple[str, int, int, str | None], marker: Marker, former: Offsets) -> LeftOutReason | None:
    topic, partition, offset, topic_id = record
    if topic_id not in {None, marker.source.topic_ids.get(topic)}:
        return LeftOutReason.RECREATED
    if offset >= marker.offsets.get((topic, partition), 0):
        return LeftOutReason.TO_BE_READ
    if any(start <= offset < end for start, end in marker.rewritten.get((topic, partition), ())):
        return LeftOutReason.TWO_RECORDS
    if offset < former.get((topic, partition), 0):
        return LeftOutReason.FORMER_TOPIC
    return None


@dataclass(frozen=True, slots=True)
class DiscardMark:
    by: str
    reason: str
    at_ms: int


def discard(opened: OpenStream, selection: Selection, mark: DiscardMark) -> int:
    """Mark the selected dead letters in one commit. Return how many were not marked before. Raises WriterBusy."""
    handle = opened.tables.dead_letters
    dead_letters = find_identities(opened, selection)
    properties, default_marker = handle.current().properties, opened.tables.main.refresh().properties
    decided = unsettled_backfill(default_marker, properties, opened.spec.name, abandoned=True)
    if decided is not None and dead_letters:
        dead_letters = _remove_replayed(opened, dead_letters, decided)
    if not dead_letters:
        return 0
    is_selected = choose_dead_letters(opened.spec.name, dead_letters)
    change = RowChange(
        offset_spans(dead_letters),
        lambda rows: is_selected(rows) & rows["discarded_at"].is_null().to_numpy(),
        lambda rows: _add_mark(rows, mark),
        extra_columns=("discarded_at",),
    )
    writer = RowChangeWriter(change)
    summary = {
        "frazil.operation": "discard-dead-letters",
        "frazil.dead-letters-of": opened.spec.name,
        "frazil.discarded-by": mark.by,
        "frazil.reason": mark.reason[:200],
    }
    branch = branch_name(opened.spec.name)

    def propose(table: Table) -> Done[int] | Change[int]:
        _check_not_replayed(read_backfill(table.metadata.properties, opened.spec.name), decided)
        prepared = writer.prepare(table, summary=summary, now_ms=opened.tables.clock_ms())
        # The branch moves when a replay begins.
        return Change((*prepared.requirements, require_unchanged(table, branch)), prepared.updates, writer.rows)

    handle.forget()
    return swap(handle, propose, (writer,), retry_policy=opened.tables.retry_policy)


def _remove_replayed(opened: OpenStream, dead_letters: DeadLetterOffsets, replay: BackfillMarker) -> DeadLetterOffsets:
    """Return the dead letters that this replay has not turned into rows."""
    if replay.state is not BackfillState.PUBLISHED:
        return dead_letters
    journals = opened.tables.journals
    rows = dead_letters_at(load_record(journals, replay).replayed, chunk_topic_ids(committed_chunks(journals, replay)))
    remaining = {source: offsets - rows.get(source, BitMap64()) for source, offsets in dead_letters.items()}
    return {source: offsets for source, offsets in remaining.items() if offsets}


def _check_not_replayed(backfill: BackfillMarker | None, decided: BackfillMarker | None) -> None:
    if backfill and backfill.is_open and backfill.replays and (decided is None or backfill.id != decided.id):
        raise WriterBusy(
            f"dead letters of stream {backfill.stream!r} are being replayed, so none was discarded. Wait until the "
            "replay has ended. If the replay was interrupted, finish it with "
            f"`{backfill.command}`, or end it with `frazil backfill {backfill.stream} --abandon`. "
            "Then discard the dead letters"
        )


def find_identities(opened: OpenStream, selection: Selection) -> DeadLetterOffsets:
    identities: dict[DeadLetterSource, BitMap64] = defaultdict(BitMap64)
    table = opened.tables.dead_letters.refresh()
    for rows in read_dead_letters(table, selection.row_filter(opened.spec), DEAD_LETTER_COLUMNS):
        for topic, partition, topic_id, offset in zip(*(rows[n].to_pylist() for n in DEAD_LETTER_COLUMNS), strict=True):
            identities[topic, partition, topic_id].add(offset)
    return dict(identities)


def _add_mark(rows: pa.Table, mark: DiscardMark) -> pa.Table:
    moment = datetime.fromtimestamp(mark.at_ms / 1000, UTC)
    marks = {"discarded_at": moment, "discarded_by": mark.by, "discard_reason": mark.reason}
    for name, value in marks.items():
        index = rows.schema.get_field_index(name)
        column = pa.array([value] * rows.num_rows, rows.schema.field(name).type)
        rows = rows.set_column(index, rows.schema.field(name), column)
    return rows
