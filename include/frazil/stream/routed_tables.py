"""The tables of a stream's route: which table a route value has, how tasks write to it, and how it is created."""

from __future__ import annotations

import dataclasses
import logging
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from pyiceberg.catalog import Catalog
from pyiceberg.table import Table

from frazil.commit.commit_checks import check_fence
from frazil.commit.followers import MAX_PARALLEL_COMMITS, LaggingTable, require_marker
from frazil.commit.journal import Journal
from frazil.commit.marker import BatchKey, Marker, property_name, read_marker
from frazil.commit.marker_changes import is_ahead, write_first_marker
from frazil.commit.routed_table_records import (
    RoutedTableRecord,
    list_recorded_tables,
    read_table_record,
    write_table_record,
)
from frazil.commit.stream_tables import StreamTables
from frazil.commit.sweep import batch_folder
from frazil.commit.waiting_files import (
    MissingTableNote,
    all_files_wait,
    is_waiting_file,
    load_missing_table_note,
    load_missing_table_notes,
    write_missing_table_note,
)
from frazil.errors import (
    AdoptionRequired,
    Explanation,
    Fenced,
    RouteBehind,
    SchemaIncompatible,
    TableLost,
    error_text,
)
from frazil.ingest.contract import StageContext, Target, TargetTable
from frazil.ingest.schema_drift import SchemaDrift
from frazil.spec.model import StreamSpec
from frazil.spec.route import value_property
from frazil.spec.sinks import Sinks
from frazil.spec.units import format_count
from frazil.stream.dropped_tables import describe_dropped_table, has_other_route_value
from frazil.stream.evolve import EvolutionResult, columns_for_pending_files, evolve_table
from frazil.stream.route_values import RouteValues
from frazil.stream.stage_context import staged_target
from frazil.table.catalogs import explain_table_error, find_table, load_catalog, translate_catalog_errors
from frazil.table.declared_tables import declare_routed_table, list_matching_names, table_identifier
from frazil.table.parallel import run_in_parallel
from frazil.table.renamed_columns import copy_renames
from frazil.table.schema_update import evolve_for_records
from frazil.table.tables import ensure_declared, evolve_to_declaration

log = logging.getLogger(__name__)


def create_missing_table(spec: StreamSpec, tables: StreamTables, target: Target, journals: Sequence[Journal]) -> None:
    """Create or load a routed table for which rows of these batches wait, and write its first marker.

    Raises RouteBehind if the table was dropped or belongs to someone else, and AdoptionRequired if the table is ahead
    of the default table.
    """
    catalog, default_marker = load_catalog(spec.table.catalog), tables.marker()
    value = _route_value_in_note(spec, tables, target)
    declared = declare_routed_table(spec, target, value)
    with translate_catalog_errors(catalog.name):
        if (table := find_table(catalog, target)) is None:
            _check_not_dropped(spec, tables, target)
            _check_no_files_in_dropped_table(tables, target, journals)
            table = ensure_declared(catalog, declared, spec.name)
        if has_other_route_value(spec, table, value):
            raise RouteBehind(
                f"table {target} exists, but was not created for these rows",
                remedy="To write them there, add the table to route.tables. To continue without them, run "
                f"`frazil route {spec.name} --give-up {target}`",
            )
        _check_not_replaced(spec, tables, read_table_record(tables, target), table)
        table = evolve_to_declaration(copy_renames(table, tables.main.current()), declared, spec.name)
        if spec.evolution.mode != "off":
            staged = (file for journal in journals for file in journal.staged_for(target))
            files = [file for file in staged if is_waiting_file(tables, file)]
            widening = spec.evolution.mode == "full"
            evolve_for_records(table, spec, columns_for_pending_files(tables.main.refresh(), files, widening=widening))
            table = catalog.load_table(target)
    write_table_record(tables, target, value, table)
    handle = tables.handle(target)
    handle.set_current(table)
    marker = read_marker(handle.current().properties, spec.name)
    if default_marker is None:
        raise Fenced(f"stream {spec.name!r} was forgotten while rows waited for {target}")
    if marker is None:
        _check_no_files_in_dropped_table(tables, target, journals)
        write_first_marker(tables, handle, default_marker, previous_batch=journals[0])
    elif is_ahead(marker, default_marker):
        raise _table_ahead_error(spec, target, marker)


def is_foreign_table(spec: StreamSpec, tables: StreamTables, target: Target) -> bool:
    """Return whether another stream or user created the table, although its name matches the route's template."""
    properties = tables.handle(target).current().properties
    if target in spec.sinks.named_tables or property_name(spec.name) in properties:
        return False
    record = read_table_record(tables, target)
    value = record.value if record else _route_value_in_note(spec, tables, target)
    written = properties.get(value_property(spec.name))
    return written is None or value not in {None, written}


def _route_value_in_note(spec: StreamSpec, tables: StreamTables, target: Target) -> str | None:
    """Return the route value in a missing table's note; None if the route names the table."""
    note = None if target in spec.sinks.named_tables else load_missing_table_note(tables, target)
    return None if note is None else note.value


def _check_no_files_in_dropped_table(tables: StreamTables, target: Target, journals: Sequence[Journal]) -> None:
    """Raise RouteBehind if uncommitted batches have files in the table's folder from before it was dropped."""
    if not all_files_wait(tables, journals, target):
        raise RouteBehind(f"table {target} was dropped after rows of uncommitted batches were written into its folder")


def _check_not_dropped(spec: StreamSpec, tables: StreamTables, target: Target) -> None:
    """Raise TableLost if this missing table of the route once existed. A new table would not have its rows."""
    if (record := read_table_record(tables, target)) is not None:
        raise _dropped_table_error(spec, tables, record)


def _check_not_replaced(spec: StreamSpec, tables: StreamTables, record: RoutedTableRecord | None, table: Table) -> None:
    if record is not None and record.is_other_table(table):
        raise _dropped_table_error(spec, tables, record, table)


def _dropped_table_error(
    spec: StreamSpec, tables: StreamTables, record: RoutedTableRecord, replacement: Table | None = None
) -> TableLost:
    dropped = describe_dropped_table(spec, tables, record, replacement)
    return TableLost(dropped.reason, remedy=dropped.remedy)


def _table_ahead_error(spec: StreamSpec, target: Target, marker: Marker) -> AdoptionRequired:
    return AdoptionRequired(
        f"table {target} has batch {marker.settled} of stream {spec.name!r}, and {spec.table.identifier} does not: "
        "the table was replaced, or the stream was forgotten. Records that are read again would be written to "
        f"{target} a second time",
        remedy=f"To continue nevertheless: `frazil route {spec.name} --give-up {target}`",
    )


def _run_many(action: Callable[[str], None], names: Sequence[str]) -> None:
    if names:
        with ThreadPoolExecutor(min(MAX_PARALLEL_COMMITS, len(names)), "route") as pool:
            list(pool.map(action, names))  # unlike `run_in_parallel`, an error cancels the calls that have not begun


@dataclass(slots=True)
class RoutedTables(RouteValues):
    """The tables of one stream's route, as known to its writer. Rows for tables in `absent` wait."""

    catalog: Catalog
    tables: StreamTables
    behind: Mapping[Target, LaggingTable] = field(default_factory=dict)
    """Tables that are missing rows."""
    absent: dict[Target, Explanation] = field(default_factory=dict)
    """Tables that cannot be used, and why. Each reason names the table."""
    _recorded: set[Target] = field(default_factory=set)
    _layouts: dict[Target, tuple[str, TargetTable]] = field(default_factory=dict)
    """Each table's layout, and the location of the metadata from which the layout was made."""
    sinks: Sinks = field(init=False)

    def __post_init__(self) -> None:
        self.sinks = self.spec.sinks

    def open(self, default_marker: Marker) -> None:
        """Load the route's existing tables, and create the declared ones. An error usually concerns only its own table.

        Raises AdoptionRequired for a table that is ahead of the default table. A table that commits atomically with the
        default table also raises the errors of `ensure_declared`, and RouteBehind if rows wait and the table was
        replaced.
        """
        self._recorded |= list_recorded_tables(self.tables)
        with translate_catalog_errors(self.catalog.name):
            declared = sorted(self.sinks.named_tables)
            self.targets.update(self.sinks.by_value)
            _run_many(lambda name: self._try_prepare(name, None, default_marker), declared)
            self._load_template_tables(default_marker)
            self._retry_unread(default_marker)
            # Earlier writers could not create the tables in notes.
            noted = [(note.value, note.target) for note in load_missing_table_notes(self.tables)]
            missing = [value for value, target in noted if value is not None and self.route.makes(value, target)]
            self.create_tables([*missing, *self._values_of_dropped()], default_marker)
        log.info(
            "the route of stream %r has %s", self.spec.name, format_count(len(set(self.targets.values())), "table")
        )

    def _retry_unread(self, default_marker: Marker) -> None:
        """Load the template's unread tables again, even for disallowed values. Rows of tables that stay unread wait."""
        names = sorted(self.unread & self._recorded)
        records = filter(None, run_in_parallel(lambda name: read_table_record(self.tables, name), names))
        values = [m.value for m in records if m.value is not None and self.route.derive_table_name(m.value) == m.target]
        _run_many(lambda value: self._try_create(value, default_marker), [v for v in values if v not in self.targets])

    def _values_of_dropped(self) -> list[str]:
        """Return the route values of dropped tables that an operator must decide about."""
        existing = {*self.targets.values(), *self.unread}
        names = [n for n in sorted(self._recorded - existing) if self.sinks.matches_template(n)]
        records = (read_table_record(self.tables, name) for name in names)
        return [m.value for m in records if m and m.value is not None and self.sinks.includes(m.target, m.value)]

    def _try_prepare(self, target: Target, value: str | None, default_marker: Marker) -> None:
        def prepare() -> None:
            if value is None:
                self._prepare_table(self._load_or_create_table(target, None), None, default_marker)
            else:
                self._create_for_value(value, default_marker)

        self._try_table(target, value, prepare)

    def _load_or_create_table(self, identifier: Target, value: str | None) -> Table:
        """Load the table. Create it if the route never had it. Raises TableLost if the table was dropped."""
        table = find_table(self.catalog, identifier)
        if table is None:
            if identifier in self._recorded:
                _check_not_dropped(self.spec, self.tables, identifier)
            table = ensure_declared(self.catalog, declare_routed_table(self.spec, identifier, value), self.spec.name)
        return table

    def _try_table(self, target: Target, value: str | None, action: Callable[[], None]) -> None:
        """Run `action`. If it fails, the table becomes `absent`; an atomic table's error is raised."""
        try:
            action()
        except (AdoptionRequired, Fenced):
            raise
        except Exception as error:  # catalogs' clients raise anything
            atomic = self.spec.commit.atomic
            if atomic is True or (atomic and target in atomic):
                raise
            cause = explain_table_error(error)
            if not isinstance(error, RouteBehind | SchemaIncompatible | TableLost):  # these name the table
                cause = dataclasses.replace(cause, reason=f"table {target} cannot be loaded or created: {cause.reason}")
            if target not in self.absent:
                log.warning("rows for table %s wait next to the default table: %s", target, cause)
            write_missing_table_note(self.tables, MissingTableNote(target, value, cause.reason, remedy=cause.remedy))
            self.absent[target] = cause
        else:
            if self.absent.pop(target, None):
                log.warning("table %s can be used again", target)

    def retry_absent(self, default_marker: Marker) -> None:
        values = self._template_values()

        absent = [target for target in sorted(self.absent) if target not in self.behind]
        with translate_catalog_errors(self.catalog.name):
            _run_many(lambda target: self._try_prepare(target, values.get(target), default_marker), absent)

    def _template_values(self) -> dict[Target, str]:
        return {target: value for value, target in self.targets.items() if value not in self.sinks.by_value}

    def _load_template_tables(self, default_marker: Marker) -> None:
        def load_existing(identifier: str) -> None:
            try:
                table = find_table(self.catalog, identifier)
            except Exception as error:  # catalogs' clients raise anything; its record has the table's value
                log.warning("table %s cannot be loaded: %s", identifier, error_text(error))
                self.unread.add(identifier)
                return
            if table is None:
                return
            value = self.sinks.find_value(identifier, table.properties)
            if value is not None and value not in self.targets:
                self.targets[value] = identifier
                self._try_table(identifier, value, lambda: self._prepare_table(table, value, default_marker))

        _run_many(load_existing, list_matching_names(self.catalog, self.sinks))

    def create_tables(self, values: Iterable[str], default_marker: Marker) -> None:
        with translate_catalog_errors(self.catalog.name):
            _run_many(lambda value: self._try_create(value, default_marker), self.find_new(values))

    def _try_create(self, value: str, default_marker: Marker) -> None:
        identifier = self.route.derive_table_name(value)
        self._try_prepare(identifier, value, default_marker)
        if identifier in self.absent:
            self.targets[value] = identifier

    def _create_for_value(self, value: str, default_marker: Marker) -> None:
        """Load or create the template's table for a route value. Refuses an existing table with another route value."""
        identifier = self.route.derive_table_name(value)
        self._check_no_waiting_rows(identifier)
        table = self._load_or_create_table(identifier, value)
        if table.properties.get(value_property(self.spec.name)) != value:
            self.targets.pop(value, None)
            self.refuse_foreign(value, identifier)
            return
        self._prepare_table(table, value, default_marker)
        self.targets[value] = identifier
        log.info("created table %s for the value %r", identifier, value)

    def _prepare_table(self, table: Table, value: str | None, default_marker: Marker) -> None:
        """Evolve a table; write its record and first marker if missing. Raises TableLost, RouteBehind and others."""
        identifier = table_identifier(table)
        record = read_table_record(self.tables, identifier) if identifier in self._recorded else None
        _check_not_replaced(self.spec, self.tables, record, table)
        table = copy_renames(table, self.tables.main.current())
        table = evolve_to_declaration(table, declare_routed_table(self.spec, identifier, value), self.spec.name)
        if record is None or record.uuid is None:
            write_table_record(self.tables, identifier, value, table)
            self._recorded.add(identifier)
        handle = self.tables.handle(identifier)
        handle.set_current(table)
        marker = read_marker(handle.current().properties, self.spec.name)
        if marker is not None and is_ahead(marker, default_marker):
            # A replay may run while a writer does, which may have committed to the default table since.
            current = check_fence(self.tables.marker(), stream=self.spec.name, epoch=default_marker.key.epoch)
            if is_ahead(marker, current):
                raise _table_ahead_error(self.spec, identifier, marker)
        if marker is None:
            self._check_no_waiting_rows(identifier)
            write_first_marker(self.tables, handle, default_marker)

    def _check_no_waiting_rows(self, identifier: str) -> None:
        """Raise RouteBehind if rows wait for a table without a marker: its first marker would discard the rows."""
        if behind := self.behind.get(identifier):
            fix = "Restore the former table" if behind.absence else "Fix the table"
            remedy = behind.find_remedy(self.spec.name, fix)
            raise RouteBehind(behind.explain().reason, stream=self.spec.name, remedy=remedy)

    def evolve_tables(
        self, drift: Mapping[Target, Sequence[SchemaDrift]], main: Table
    ) -> dict[Target, EvolutionResult | None]:
        """Evolve routed tables by a batch's drift. If a table fails, it becomes `absent`, with the result None."""
        evolutions = dict[Target, EvolutionResult | None].fromkeys(drift)
        values = self._template_values()

        def change(target: Target) -> None:
            table = self.tables.handle(target).refresh()
            # A table without this stream's marker must not change.
            require_marker(table, self.spec.name)
            evolutions[target] = evolve_table(table, self.spec, drift[target], main=main)

        _run_many(lambda target: self._try_table(target, values.get(target), lambda: change(target)), sorted(drift))
        return evolutions

    def add_targets(self, context: StageContext, key: BatchKey) -> StageContext:
        """Return the context with the routed tables. Rows for absent tables are written next to the default table."""
        waiting_layout = dataclasses.replace(context.main, folder=self.tables.waiting_folder(key))
        values = self._template_values()
        routed = {
            target: waiting_layout
            if target in self.absent
            else self._try_layout(target, values.get(target), key) or waiting_layout
            for target in sorted(set(self.targets.values()))
        }
        return dataclasses.replace(context, targets={**context.targets, **routed}, destinations=self.destinations())

    def _try_layout(self, target: Target, value: str | None, key: BatchKey) -> TargetTable | None:
        loaded = list[TargetTable]()
        self._try_table(target, value, lambda: loaded.append(self._layout(target, key)))
        return loaded[0] if loaded else None

    def _layout(self, target: Target, key: BatchKey) -> TargetTable:
        """Return the layout in which tasks write to a table, cached until its metadata changes."""
        table = self.tables.handle(target).current()
        folder = batch_folder(table, self.tables.stream, key)
        location, layout = self._layouts.get(target, ("", None))
        if layout is None or location != table.metadata_location:
            layout = staged_target(self.spec, table, folder)
            # Equal strings share one object, so that they are sent to the tasks only once.
            names = ("schema_json", "spec_json", "sort_order_json")
            shared: dict[str, Any] = {name: sys.intern(getattr(layout, name)) for name in names}
            layout = dataclasses.replace(layout, **shared)
            self._layouts[target] = (table.metadata_location, layout)
        return dataclasses.replace(layout, folder=folder)
