"""Marks dead letters as discarded, with the user and the reason. They stay in the table, so audits count them."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from datetime import UTC, datetime

import pyarrow as pa
from pyiceberg.table import Table
from pyroaring import BitMap64

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
from frazil.commit.compare_and_swap import Change, Done, commit_snapshot
from frazil.commit.marked_update import require_unchanged
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
from frazil.dead_letters.selection import Selection, read_dead_letters
from frazil.errors import WriterBusy


@dataclass(frozen=True, slots=True)
class DiscardMark:
    by: str
    reason: str
    at_ms: int


def discard(opened: OpenStream, selection: Selection, mark: DiscardMark) -> int:
    """Mark the selected dead letters in one commit. Return how many were not marked before. Raises WriterBusy."""
    handle = opened.tables.dead_letters
    dead_letters = find_identities(opened, selection)
    own, default_marker = handle.current().properties, opened.tables.main.refresh().properties
    decided = unsettled_backfill(default_marker, own, opened.spec.name, abandoned=True)
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
    return commit_snapshot(handle, propose, (writer,), retry_policy=opened.tables.retry_policy)


def _remove_replayed(opened: OpenStream, dead_letters: DeadLetterOffsets, replay: BackfillMarker) -> DeadLetterOffsets:
    """Return the dead letters that this replay has not turned into rows."""
    if replay.state is not BackfillState.PUBLISHED:
        return dead_letters
    journals = opened.tables.journals
    rows = dead_letters_at(load_record(journals, replay).replayed, chunk_topic_ids(committed_chunks(journals, replay)))
    left = {source: offsets - rows.get(source, BitMap64()) for source, offsets in dead_letters.items()}
    return {source: offsets for source, offsets in left.items() if offsets}


def _check_not_replayed(backfill: BackfillMarker | None, decided: BackfillMarker | None) -> None:
    if backfill and backfill.is_open and backfill.replays and (decided is None or backfill.id != decided.id):
        raise WriterBusy(
            f"dead letters of stream {backfill.stream!r} are being replayed, so none was discarded. Wait until the "
            "replay has ended. If the replay was interrupted, finish it with "
            f"`{backfill.command}`, or end it with `frazil backfill {backfill.stream} --abandon`. "
            "Then discard the dead letters"
        )


def find_identities(opened: OpenStream, selection: Selection) -> DeadLetterOffsets:
    found: dict[DeadLetterSource, BitMap64] = defaultdict(BitMap64)
    table = opened.tables.dead_letters.refresh()
    for rows in read_dead_letters(table, selection.row_filter(opened.spec), DEAD_LETTER_COLUMNS):
        for topic, partition, topic_id, offset in zip(*(rows[n].to_pylist() for n in DEAD_LETTER_COLUMNS), strict=True):
            found[topic, partition, topic_id].add(offset)
    return dict(found)


def _add_mark(rows: pa.Table, mark: DiscardMark) -> pa.Table:
    at = datetime.fromtimestamp(mark.at_ms / 1000, UTC)
    marks = {"discarded_at": at, "discarded_by": mark.by, "discard_reason": mark.reason}
    for name, value in marks.items():
        place = rows.schema.get_field_index(name)
        column = pa.array([value] * rows.num_rows, rows.schema.field(name).type)
        rows = rows.set_column(place, rows.schema.field(name), column)
    return rows
