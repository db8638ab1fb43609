"""A stream from the perspective of one of its tables: its own table, or a table of its route."""

from __future__ import annotations

from frazil.spec.model import StreamSpec, Table


class RoutedStream(StreamSpec):
    """A stream as seen by one table of its route, which replaces the stream's `table`.

    The table has windows only if the route declares them in `complete`. Users never declare a RoutedStream.
    """

    default_table: str
    """The stream's own table, which has the stream's marker."""


def seen_by(spec: StreamSpec, table: str) -> StreamSpec | None:
    """Return the stream from the perspective of a table; None if neither the stream nor its route names the table.

    For a table of the route, this is a copy with that table as its own.
    """
    if spec.table.identifier == table:
        return spec
    if spec.route is None or table not in spec.route.tables.values():
        return None
    values = {name: getattr(spec, name) for name in StreamSpec.model_fields}
    values["table"] = Table(identifier=table, catalog=spec.table.catalog)
    if table not in spec.route.complete:
        values["complete"] = "none"
    return RoutedStream.model_construct(spec.model_fields_set, **values, default_table=spec.table.identifier)


def never_complete(spec: StreamSpec) -> str:
    """Return the message that no window of the stream's table ever completes, and what to declare instead."""
    declare = "declare `complete: hour` or `day`"
    if isinstance(spec, RoutedStream):
        declare = f"name it in route.complete of stream {spec.name!r}"
    return f"no window of {spec.table.identifier} is ever complete: {declare}"


def with_windows(spec: StreamSpec) -> list[StreamSpec]:
    """Return the stream, and a copy (see `seen_by`) for each table of its route whose windows are signalled."""
    views = (seen_by(spec, table) for table in (spec.route.complete if spec.route else ()))
    return [spec, *(view for view in views if view is not None)]
