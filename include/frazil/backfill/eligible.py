"""Decides from the declaration whether a stream can be backfilled, or its dead letters replayed.

Pure, and without PyIceberg, because DAG files call it when they are parsed.
"""

from __future__ import annotations

from frazil.backfill.request import BackfillRequest
from frazil.errors import SpecError
from frazil.spec.formats import envelope_of
from frazil.spec.model import StreamSpec


def has_backfill(spec: StreamSpec) -> bool:
    """Return whether the declaration allows backfills."""
    return spec.coordinates


def deletes_rows(spec: StreamSpec) -> bool:
    """Return whether records of the stream can delete rows."""
    return spec.mode == "upsert" and (spec.delete is not None or envelope_of(spec.source.format) is not None)


def check_request(spec: StreamSpec, request: BackfillRequest) -> None:
    """Check that a request would not restore rows that a later record deleted. Raises SpecError.

    The table does not record deleted rows. So if a stream deletes rows, its backfill must read all later records.
    """
    bounds = ("to_time", "to_offsets", "from_event_time", "to_event_time", "files")
    given = [name.replace("_", "-") for name in bounds if getattr(request, name) is not None]
    if given and deletes_rows(spec) and not request.dead_letters:
        raise SpecError(
            f"stream {spec.name!r} deletes rows, and the table does not record deleted rows: with {', '.join(given)}, "
            "a backfill could restore rows that a later record deleted. Nothing was changed. Give only from-time or "
            "from-offsets; the backfill then reads everything up to the stream's position"
        )


def check_coordinates(spec: StreamSpec, *, table_has: bool = True) -> None:
    """Check that the table's rows have Kafka coordinates. Raises SpecError if they do not.

    `table_has` is whether the table has the columns for them; True if this is unknown.
    """
    if not (spec.coordinates and table_has):
        where = "its table does not have the columns" if spec.coordinates else "coordinates: false"
        raise SpecError(
            f"stream {spec.name!r} does not store Kafka coordinates ({where}), so frazil cannot determine which "
            "records its table has. Backfills of the stream and replays of its dead letters are not possible"
        )
