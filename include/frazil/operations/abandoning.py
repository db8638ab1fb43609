"""Abandon an open backfill or replay in two steps: describe what would be removed, then remove it."""

from __future__ import annotations

from frazil.backfill.commit import abandon
from frazil.commit.lane import Lane, LaneState, read_lane
from frazil.commit.opened import open_stream, read_stream
from frazil.commit.stream_tables import StreamTables
from frazil.errors import FrazilError
from frazil.operations.acts import Prepared
from frazil.spec.model import StreamSpec
from frazil.spec.units import counted


def plan_abandon(spec: StreamSpec, *, by: str = "a person") -> Prepared:
    """Read the table, and raise its errors. `by` is the user who would abandon the backfill."""
    tables = read_stream(spec).tables
    lane = read_lane(tables.main.refresh().metadata.properties, spec.name)
    if lane is None or not lane.is_open:
        return Prepared((), "", lambda: None, refused=f"{spec.name} has no backfill under way")
    return Prepared((staged_words(lane),), lane.id, lambda: _abandon(open_stream(spec).tables, lane, by=by))


def _abandon(tables: StreamTables, lane: Lane, *, by: str) -> None:
    if abandon(tables, lane, by=by).state is LaneState.PUBLISHED:
        raise FrazilError(
            f"it was not abandoned, because it was published just before: table {tables.main.identifier} has its rows"
        )


def staged_words(lane: Lane) -> str:
    """Describe the progress of an open backfill or replay."""
    what = "Replay" if lane.replays else "Backfill"
    if not lane.chunks:
        return f"{what} {lane.id} has staged nothing yet."
    return (
        f"{what} {lane.id} has staged {counted(lane.records, 'row')} in {counted(lane.files, 'file')}, "
        f"{lane.chunks:,} of about {counted(max(lane.planned, lane.chunks), 'chunk')}."
    )
