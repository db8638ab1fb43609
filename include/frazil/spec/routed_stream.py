"""A stream as the tables that it feeds see it: its own, and those of its route."""

from __future__ import annotations

from frazil.spec.model import StreamSpec, Table


class RoutedStream(StreamSpec):
    """A stream as one of the tables of its route sees it: that is its `table`.

    It has windows only if the route says so. No one declares one.
    """

    default_table: str
    """The stream's own table, which has its position."""


def seen_by(spec: StreamSpec, table: str) -> StreamSpec | None:
    """The stream as a table sees it that it, or its route, names; None if neither does."""
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
    """That no window of its table is signalled, and what to declare so that some are."""
    declare = "declare `complete: hour` or `day`"
    if isinstance(spec, RoutedStream):
        declare = f"name it in route.complete of stream {spec.name!r}"
    return f"no window of {spec.table.identifier} is ever complete: {declare}"


def with_windows(spec: StreamSpec) -> list[StreamSpec]:
    """The stream as its own table sees it, and as those tables of its route do whose windows are signalled."""
    views = (seen_by(spec, table) for table in (spec.route.complete if spec.route else ()))
    return [spec, *(view for view in views if view is not None)]
