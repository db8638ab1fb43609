"""A view of a stream for one of its tables: its own table, or a table of its route."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeGuard

from frazil.spec.model import StreamSpec, Table
from frazil.spec.route import VALUE_PLACEHOLDER
from frazil.spec.sinks import Sinks


class RoutedStream(StreamSpec):
    """A view of a stream for one table of its route: its `table` is the routed table. Never declared.

    The table has windows if the route's `complete` lists the table. If `complete` lists the template, tables that only
    the template matches have windows too. If `table` is the template itself, the view stands for all tables of the
    template that `complete` does not list.
    """

    default_table: str
    """Identifier of the stream's own table, which has the stream's marker."""

    @property
    def is_from_template(self) -> bool:
        """Whether only the route's template can have created the table. The table's properties show whether it did."""
        return self.table.identifier not in self.sinks.named_tables

    @property
    def sinks(self) -> Sinks:
        return Sinks.of(self, default_table=self.default_table)

    @property
    def signal_name(self) -> str:
        """The route's template if its tables share a DAG; otherwise the table."""
        table, template = self.table.identifier, self.sinks.template
        if template is None or not self.is_from_template or (self.route and table in self.route.complete):
            return table
        return template

    def for_member(self, table: str) -> RoutedStream:
        return self.model_copy(update={"table": Table.model_construct(identifier=table, catalog=self.table.catalog)})


def is_template_view(spec: StreamSpec | None) -> TypeGuard[RoutedStream]:
    """Return whether the stream's `table` is its route's template, which stands for all tables of the template."""
    return isinstance(spec, RoutedStream) and spec.table.identifier == spec.sinks.template


def view_from_table(spec: StreamSpec, table: str) -> StreamSpec | None:
    """Return the stream's view for a table that it or its route names, or that a signalled template matches."""
    if spec.table.identifier == table:
        return spec
    route = spec.route
    if route is None:
        return None
    is_named = table in spec.sinks.named_tables
    has_windows = table in route.complete or (not is_named and route.template in route.complete)
    if not is_named and not (has_windows and (table == route.template or spec.sinks.matches_template(table))):
        return None
    values = {name: getattr(spec, name) for name in StreamSpec.model_fields}
    values["table"] = Table.model_construct(identifier=table, catalog=spec.table.catalog)
    if not has_windows:
        values["complete"] = "none"
    return RoutedStream.model_construct(spec.model_fields_set, **values, default_table=spec.table.identifier)


def find_feeding_streams(specs: Iterable[StreamSpec], table: str) -> list[StreamSpec]:
    """Return the streams that name a table or, if none does, the streams whose template matches the table's name."""
    views = [view for spec in sorted(specs, key=lambda s: s.name) if (view := view_from_table(spec, table)) is not None]
    return [view for view in views if not (isinstance(view, RoutedStream) and view.is_from_template)] or views


def never_complete_message(spec: StreamSpec) -> str:
    declare = "declare `complete: hour` or `day`"
    if isinstance(spec, RoutedStream):
        declare = f"add it to route.complete of stream {spec.name!r}"
    return f"no window of {spec.table.identifier} is ever complete: {declare}"


def list_windowed_views(spec: StreamSpec) -> list[StreamSpec]:
    """Return the stream, and its view from each routed table whose windows are signalled."""
    views = (view_from_table(spec, table) for table in (spec.route.complete if spec.route else ()))
    return [spec, *(view for view in views if view is not None)]


def partitions_dag_id(table: str) -> str:
    """Return a partition DAG's id. `table` is a table, or a stream: all tables of its template share one DAG.

    Only a table's name contains a dot, so the ids differ.
    """
    return f"frazil_partitions_{table}"


def partitions_dag_of(spec: StreamSpec) -> str:
    return partitions_dag_id(spec.name if VALUE_PLACEHOLDER in spec.signal_name else spec.table.identifier)
