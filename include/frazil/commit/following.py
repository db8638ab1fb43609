"""Lets a routed table start to follow the default table, or continue without the rows that wait for it."""

from __future__ import annotations

import dataclasses

from pyiceberg.table import Table

from frazil.commit.followers import NOTHING
from frazil.commit.journal import Journal
from frazil.commit.marked_update import commit_of
from frazil.commit.marker import BatchKey, Marker, read_marker
from frazil.commit.marker_change import change_marker
from frazil.commit.stream_tables import StreamTables
from frazil.commit.swap import Done, TableHandle, commit_snapshots
from frazil.commit.waiting_files import (
    Note,
    note_of,
    write_note,
)
from frazil.errors import MarkerUnreadable
from frazil.ingest.contract import Target


def begin_following(
    tables: StreamTables, handle: TableHandle, default_marker: Marker, *, before: Journal | None = None
) -> None:
    """Write a table's first marker, before any file is staged for the table: no earlier batch has rows for it.

    With `before`, the marker ends before that batch, whose rows are the first that wait for the table.
    """
    first = _with_all_of(default_marker)
    if before is not None:
        starts = {p.topic_partition: p.start for p in before.progress}
        settled = BatchKey(before.key.epoch, before.key.batch - 1)
        first = dataclasses.replace(first, settled=settled, offsets={**first.offsets, **starts})

    def decide(_: Table, found: Marker | None) -> Marker | Done[Marker]:
        return first if found is None else Done(found)

    commit = commit_of(tables, handle, decide, files=(), summary={"frazil.operation": "follow"})
    commit_snapshots((commit,), retry_policy=tables.retry_policy)


def give_up(tables: StreamTables, target: Target, default_marker: Marker) -> None:
    """Let a table continue as it is, without its waiting rows of the default table's batches.

    `default_marker` names the last of these batches. Accepts a rollback of the table, and batches in the table that the
    default table does not have. Safe while a writer runs: the batches that it commits to the table meanwhile stay.
    Raises the same errors as `swap`.
    """

    def decide(table: Table) -> Marker:
        try:
            before = read_marker(table.metadata.properties, tables.stream)
        except MarkerUnreadable:
            before = None
        now = tables.marker()  # read after the table: of the same stream, it is never behind it
        if before is None or now is None or is_ahead(before, now) or not is_ahead(before, default_marker):
            return _with_all_of(default_marker)
        return before.with_snapshots(-1, -1, open_snapshot_id=None)

    change_marker(tables, tables.handle(target), decide, operation="give-up")


def give_up_beside(tables: StreamTables, target: Target, default_marker: Marker) -> None:
    """Discard the rows that wait for a missing table. If the table is created later, it begins with later batches."""
    note = note_of(tables, target) or Note(target, None, "its rows were given up")
    write_note(tables, dataclasses.replace(note, given_up=default_marker.settled))


def is_ahead(table: Marker, default_marker: Marker) -> bool:
    """Whether a table has batches that the default table does not have, because the default table was recreated or
    forgotten.
    """
    return (table.settled or NOTHING) > (default_marker.settled or NOTHING)


def _with_all_of(default_marker: Marker) -> Marker:
    """Return the marker of a table that has all batches of the default table."""
    return Marker(
        default_marker.stream,
        default_marker.at,
        settled=default_marker.settled or NOTHING,
        offsets=dict(default_marker.offsets),
        source=default_marker.source,
        batches=dict(default_marker.batches),
    )
