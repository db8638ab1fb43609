"""Writes a routed table's first marker, or discards the rows that wait for a routed table so that its commits
resume.
"""

from __future__ import annotations

import dataclasses

from pyiceberg.table import Table

from frazil.commit.followers import NO_BATCH
from frazil.commit.journal import Journal
from frazil.commit.marked_update import prepare_commit
from frazil.commit.marker import BatchKey, Marker, read_marker
from frazil.commit.marker_change import change_marker
from frazil.commit.stream_tables import StreamTables
from frazil.commit.swap import Done, TableHandle, commit_snapshots
from frazil.commit.waiting_files import Note, load_note, write_note
from frazil.errors import MarkerUnreadable
from frazil.ingest.contract import Target


def write_first_marker(
    tables: StreamTables, handle: TableHandle, default_marker: Marker, *, before: Journal | None = None
) -> None:
    """Write a table's first marker, before any file is staged for the table.

    The marker covers all batches of the default table, because no earlier batch has rows for this table. If rows
    already wait for the table, `before` is the first batch that has such rows; the marker then only covers earlier
    batches.
    """
    first = _up_to_date_marker(default_marker)
    if before is not None:
        starts = {p.topic_partition: p.start for p in before.progress}
        settled = BatchKey(before.key.epoch, before.key.batch - 1)
        first = dataclasses.replace(first, settled=settled, offsets={**first.offsets, **starts})

    def decide(_: Table, found: Marker | None) -> Marker | Done[Marker]:
        return first if found is None else Done(found)

    commit = prepare_commit(tables, handle, decide, files=(), summary={"frazil.operation": "follow"})
    commit_snapshots((commit,), retry_policy=tables.retry_policy)


def give_up(tables: StreamTables, target: Target, default_marker: Marker) -> None:
    """Discard a table's waiting rows of the default table's batches, so that commits to the table resume.

    `default_marker` names the last of these batches. Accepts that the table was rolled back, or has batches that the
    default table does not have. Safe while a writer runs: batches that it commits in the meantime stay. Raises the same
    errors as `swap`.
    """

    def decide(table: Table) -> Marker:
        try:
            before = read_marker(table.metadata.properties, tables.stream)
        except MarkerUnreadable:
            before = None
        now = tables.marker()  # read after the routed table, so it is never behind that table's marker
        if before is None or now is None or is_ahead(before, now) or not is_ahead(before, default_marker):
            return _up_to_date_marker(default_marker)
        return before.with_snapshots(-1, -1, open_snapshot_id=None)

    change_marker(tables, tables.handle(target), decide, operation="give-up")


def give_up_waiting_rows(tables: StreamTables, target: Target, default_marker: Marker) -> None:
    """Discard the rows that wait for a missing table. If the table is created later, it only gets later batches."""
    note = load_note(tables, target) or Note(target, None, "the rows for this table were discarded")
    write_note(tables, dataclasses.replace(note, given_up=default_marker.settled))


def is_ahead(table: Marker, default_marker: Marker) -> bool:
    """Return whether a table has batches that the default table does not have.

    This happens if the default table was recreated, or its stream was forgotten.
    """
    return (table.settled or NO_BATCH) > (default_marker.settled or NO_BATCH)


def _up_to_date_marker(default_marker: Marker) -> Marker:
    """Return the marker of a table that has all batches of the default table."""
    return Marker(
        default_marker.stream,
        default_marker.at,
        settled=default_marker.settled or NO_BATCH,
        offsets=dict(default_marker.offsets),
        source=default_marker.source,
        batches=dict(default_marker.batches),
    )
