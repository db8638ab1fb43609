"""Decides from the declaration whether a stream can be backfilled, or its dead letters replayed.

Pure, and without PyIceberg: DAG files call it when they are parsed.
"""

from __future__ import annotations

from frazil.errors import SpecError
from frazil.spec.model import StreamSpec


def check_backfilled(spec: StreamSpec, *, routed: bool = False, table_has: bool = True) -> None:
    """Check that each record of the stream is a row of its table, as a backfill requires. Raises SpecError.

    `routed`: whether the marker has, or had, a route; `table_has`: as in `check_coordinates`.
    """
    if spec.mode == "upsert":
        raise SpecError(
            f"stream {spec.name!r} has mode: upsert: a backfill looks for records missing from the table, and the "
            "table "
            "of an upsert is missing every change that a later one replaced. Nothing was changed. To apply records "
            "again "
            f"that Kafka still has, move the stream back: `frazil reset {spec.name}`"
        )
    if spec.route is not None or routed:
        raise SpecError(
            f"stream {spec.name!r} has, or had, a route: what is missing from its table may be in other tables, "
            "which a backfill "
            "does not know. Let a second stream with tables of its own read those records (source.start), and copy "
            "what is missing by an engine"
        )
    if spec.dedupe is not None:
        raise SpecError(
            f"stream {spec.name!r} has dedupe: a backfill looks for records missing from the table, and would read all "
            "repeats that were dropped. Nothing was changed. To read records again that Kafka still has, move the "
            f"stream back: `frazil reset {spec.name}` drops those that the table has"
        )
    check_coordinates(spec, table_has=table_has)


def check_replayed(spec: StreamSpec, *, table_has: bool = True) -> None:
    """Check that the stream's dead letters can be replayed. Raises SpecError."""
    check_coordinates(spec, table_has=table_has)


def has_backfill(spec: StreamSpec) -> bool:
    """Whether the declaration allows a backfill."""
    try:
        check_backfilled(spec)
    except SpecError:
        return False
    return True


def check_coordinates(spec: StreamSpec, *, table_has: bool = True) -> None:
    """Check that the table's rows carry Kafka coordinates. Raises SpecError.

    `table_has`: whether the table has the columns, if that is known.
    """
    if not (spec.coordinates and table_has):
        where = "its table does not have the columns" if spec.coordinates else "coordinates: false"
        raise SpecError(
            f"stream {spec.name!r} keeps no Kafka coordinates ({where}): nothing can tell which records its "
            "table has, so it can neither be backfilled nor have its dead letters replayed"
        )
