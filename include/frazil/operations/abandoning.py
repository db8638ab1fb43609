"""Abandon an open backfill or replay in two steps: describe what would be removed, then remove it."""

from __future__ import annotations

from frazil.backfill.commit import abandon
from frazil.commit.backfill_marker import BackfillMarker, BackfillState, read_backfill
from frazil.commit.opened import open_stream, read_stream
from frazil.commit.stream_tables import StreamTables
from frazil.errors import FrazilError
from frazil.operations.acts import Prepared
from frazil.spec.model import StreamSpec
from frazil.spec.units import counted


def plan_abandon(spec: StreamSpec, *, by: str = "a person") -> Prepared:
    """Read the table, and return what abandoning its backfill would do. Raises the errors of reading the table.

    `by` is the user who would abandon the backfill.
    """
    tables = read_stream(spec).tables
    backfill = read_backfill(tables.main.refresh().metadata.properties, spec.name)
    if backfill is None or not backfill.is_open:
        return Prepared((), "", lambda: None, refused=f"{spec.name} has no backfill under way")
    return Prepared((staged_words(backfill),), backfill.id, lambda: _abandon(open_stream(spec).tables, backfill, by=by))


def _abandon(tables: StreamTables, backfill: BackfillMarker, *, by: str) -> None:
    if abandon(tables, backfill, by=by).state is BackfillState.PUBLISHED:
        raise FrazilError(
            f"it was not abandoned, because it was published just before: table {tables.main.identifier} has its rows"
        )


def staged_words(backfill: BackfillMarker) -> str:
    """Describe the progress of an open backfill or replay."""
    what = "Replay" if backfill.replays else "Backfill"
    if not backfill.chunks:
        return f"{what} {backfill.id} has staged nothing yet."
    return (
        f"{what} {backfill.id} has staged {counted(backfill.records, 'row')} in {counted(backfill.files, 'file')}, "
        f"{backfill.chunks:,} of about {counted(max(backfill.planned, backfill.chunks), 'chunk')}."
    )
