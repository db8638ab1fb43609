"""Finds a route's tables that were dropped, renamed or replaced. An operator registers the former table again, or
continues without its rows.
"""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass

from pyiceberg.catalog import Catalog
from pyiceberg.table import Table

from frazil.commit.followers import Followers, LaggingTable, TableAbsence
from frazil.commit.marker import Marker
from frazil.commit.missing_rows import find_lagging_tables, find_tables_missing_backfill
from frazil.commit.routed_table_records import (
    RoutedTableRecord,
    list_recorded_tables,
    read_table_record,
    write_table_record,
)
from frazil.commit.stream_tables import StreamTables
from frazil.commit.waiting_files import load_missing_table_note
from frazil.errors import Explanation, FrazilError, SpecError
from frazil.ingest.contract import Target
from frazil.spec.model import StreamSpec
from frazil.spec.route import value_property
from frazil.spec.units import shorten_list
from frazil.table.catalogs import find_table, list_table_names, load_catalog, translate_catalog_errors
from frazil.table.declared_tables import declare_routed_table
from frazil.table.lost_tables import TableFolder, find_newest_metadata, find_remains, read_remains, registration_command
from frazil.table.parallel import run_in_parallel
from frazil.table.storage import open_store
from frazil.table.tables import ensure_declared

MAX_NAMED = 3
"""Maximum number of dropped tables that a message names. Further tables are only counted."""


@dataclass(frozen=True, slots=True)
class DroppedTable:
    """A routed table that was dropped, renamed, or replaced by another table."""

    target: Target
    explanation: Explanation
    absence: TableAbsence

    def __str__(self) -> str:
        return str(self.explanation)


def find_dropped_tables(
    spec: StreamSpec, tables: StreamTables, loaded: Mapping[Target, Table] | None = None
) -> list[DroppedTable]:
    """Return the route's dropped and renamed tables, sorted by name. With `loaded`, includes replaced tables."""
    if not (sinks := spec.sinks).has_routed_tables:
        return []
    names = set(filter(sinks.may_include, list_recorded_tables(tables)))
    if not names:
        return []
    catalog = tables.main.current().catalog
    with translate_catalog_errors(catalog.name):
        missing = _find_missing_names(catalog, names)
    read = sorted(missing if loaded is None else names)
    records = run_in_parallel(lambda name: read_table_record(tables, name), read)
    dropped = []
    for record in records:
        if record is None or not sinks.includes(record.target, record.value):
            continue
        replacement = None if record.target in missing or loaded is None else _find_replacement(catalog, record, loaded)
        if record.target in missing or replacement is not None:
            dropped.append(_make_dropped_table(spec, tables, record, replacement))
    return dropped


def _make_dropped_table(
    spec: StreamSpec, tables: StreamTables, record: RoutedTableRecord, replacement: Table | None
) -> DroppedTable:
    absence = TableAbsence.REPLACED if replacement else TableAbsence.MISSING
    return DroppedTable(record.target, describe_dropped_table(spec, tables, record, replacement), absence)


def _find_missing_names(catalog: Catalog, names: Set[Target]) -> set[Target]:
    namespaces = {name.rpartition(".")[0] for name in names}
    listed = {name for namespace in namespaces for name in list_table_names(catalog, namespace)}
    # A listing may leave out tables that we may not see, so each missing name is requested by itself.
    unlisted = sorted(names - listed)
    existing = zip(unlisted, run_in_parallel(catalog.table_exists, unlisted), strict=True)
    return {name for name, exists in existing if not exists}


def _find_replacement(catalog: Catalog, record: RoutedTableRecord, loaded: Mapping[Target, Table]) -> Table | None:
    """Return the table that now has the recorded name, unless it is the route's own table."""
    table = loaded.get(record.target)
    if table is None:  # the template did not create the current table of this name
        with translate_catalog_errors(catalog.name):
            table = find_table(catalog, record.target)
    # A table that was dropped meanwhile is reported by the next check.
    return table if table is not None and record.is_other_table(table) else None


def find_lagging_and_dropped_tables(
    spec: StreamSpec,
    tables: StreamTables,
    default_marker: Marker,
    loaded: Mapping[Target, Table] | None = None,
    *,
    only_missing: bool = False,
) -> tuple[list[LaggingTable], list[DroppedTable]]:
    """Return tables that are missing rows, and dropped tables. `only_missing` omits existing tables."""
    dropped = {found.target: found for found in find_dropped_tables(spec, tables, loaded)}

    def explain(target: Target) -> Explanation:
        if dropped_table := dropped.get(target):
            return dropped_table.explanation
        return describe_dropped_table(spec, tables, _find_record(spec, tables, target))

    catalog, waiting = tables.main.current().catalog, Followers.load(tables, default_marker).waiting
    if only_missing:
        waiting = {target: waiting[target] for target in _find_missing_names(catalog, waiting.keys())}
    behind = find_lagging_tables(tables, default_marker, waiting, explain)
    if loaded is None:
        for b in behind:
            dropped |= _report_replacement(spec, tables, b.target)
    sentences = [
        dataclasses.replace(b, explanation=found.explanation, absence=found.absence)
        if (found := dropped.pop(b.target, None))
        else b
        for b in behind
    ]
    backfilled = [
        b
        if route_may_include(spec, tables, b.target) or catalog.table_exists(b.target)
        else dataclasses.replace(b, explanation=explain(b.target), absence=TableAbsence.MISSING)
        for b in find_tables_missing_backfill(tables, loaded or {})
    ]
    return [*sentences, *backfilled], list(dropped.values())


def _report_replacement(spec: StreamSpec, tables: StreamTables, target: Target) -> dict[Target, DroppedTable]:
    record = read_table_record(tables, target)
    if record is None or not spec.sinks.includes(record.target, record.value):
        return {}
    try:
        replacement = _find_replacement(tables.main.current().catalog, record, {})
    except Exception:  # catalogs' clients raise anything, and the missing rows are reported anyway
        return {}
    return {} if replacement is None else {target: _make_dropped_table(spec, tables, record, replacement)}


def has_other_route_value(spec: StreamSpec, table: Table, value: str | None) -> bool:
    """Return whether a table with the name for `value` has another value; False if `value` is None. Pure."""
    return value is not None and table.properties.get(value_property(spec.name)) != value


def route_may_include(spec: StreamSpec, tables: StreamTables, target: Target) -> bool:
    """Return whether the route includes this table. True also if the table's route value is unknown."""
    return _may_include(spec, RoutedTableRecord(target, _find_route_value(spec, tables, target), ""))


def _may_include(spec: StreamSpec, record: RoutedTableRecord) -> bool:
    unknown = record.value is None and spec.sinks.matches_template(record.target)
    return unknown or spec.sinks.includes(record.target, record.value)


def describe_dropped_table(
    spec: StreamSpec, tables: StreamTables, record: RoutedTableRecord, replacement: Table | None = None
) -> Explanation:
    """Return what happened to a table of the route, and what to do. `replacement` is a table that now has the name."""
    target, catalog, has = record.target, tables.main.catalog_name, _may_include(spec, record)
    tag = f" (created for {record.value!r})" if record.value is not None else ""
    owner = f" of the route of {spec.name!r}{tag}" if has else f"{tag}, which the route of {spec.name!r} no longer has,"
    newest, has_files = _find_leftovers(tables, record)
    if replacement is not None:
        problem = f"was dropped or renamed, and another table now has its name in the catalog {catalog!r}"
        begin = (
            f"Drop the new table without purging it (in Spark `DROP TABLE {target}`, without PURGE); then, if the "
            "former table was renamed, rename it back"
        )
        first, on = "register the former table again", "continue with the new table"
        if has_other_route_value(spec, replacement, record.value):
            on = f"keep the new table as it is, and let records of {record.value!r} become dead letters"
    else:
        problem = f"is not in the catalog {catalog!r}: it was dropped or renamed"
        begin = "If it was renamed, rename it back"
        first, on = "register it again", "continue with an empty table" if has else "discard the rows that wait for it"
    ways = [f"{on}: `frazil route {spec.name} --give-up {target}`"]
    if newest is not None:  # the command contains the folder's path
        ways.insert(0, f"if it was dropped, {first}: `{registration_command(catalog, target, newest)}`")
    elif record.location:
        ways.insert(0, f"{'its remaining files are' if has_files else 'no files were found'} in {record.location}")
    remedy = f"{begin}; {'or ' if len(ways) == 1 else ''}{'; or '.join(ways)}"
    return Explanation(f"table {target}{owner} {problem}", remedy)


def describe_unknown_table(spec: StreamSpec, tables: StreamTables, target: Target) -> str:
    """Return what to do about a declared table that is missing and was never loaded."""
    record = _find_record(spec, tables, target)
    if record.location:
        return str(describe_dropped_table(spec, tables, record))
    return (
        f"{target} is not in the catalog {tables.main.catalog_name!r}, and has no files left: the writer's next "
        "start creates it, empty. If it was renamed, rename it back first"
    )


def _find_record(spec: StreamSpec, tables: StreamTables, target: Target) -> RoutedTableRecord:
    record = read_table_record(tables, target)
    if record is not None:
        return record
    value = _find_route_value(spec, tables, target)
    try:
        remains = find_remains(tables.main.current().catalog, declare_routed_table(spec, target, value))
    except (FrazilError, OSError):
        remains = None
    return RoutedTableRecord(target, value, "" if remains is None else remains.location)


def _find_leftovers(tables: StreamTables, record: RoutedTableRecord) -> tuple[str | None, bool]:
    """Return the path of the newest readable metadata file, and whether any files of the table remain."""
    if not record.location:
        return None, False
    try:
        folder = TableFolder(record.location, open_store(record.location, tables.main.io_properties))
        if record.uuid is not None:
            newest = find_newest_metadata(folder.store, folder.location, record.uuid)
            return (newest.path, True) if newest and newest.snapshots else (None, False)
        remains = read_remains(folder)
    except (FrazilError, OSError):
        return None, False
    return (remains.newest.path if remains and remains.newest else None), remains is not None


def shorten_dropped_tables(dropped: Sequence[DroppedTable]) -> list[str]:
    return shorten_list([*map(str, dropped)], MAX_NAMED, "table")


def recreate_table(spec: StreamSpec, tables: StreamTables, identifier: Target) -> None:
    """Create a missing table of the route, empty and without a marker. Raises SpecError for an unknown route value."""
    value = dropped_table_value(spec, tables, identifier)
    catalog, declared = load_catalog(spec.table.catalog), declare_routed_table(spec, identifier, value)
    remains = find_remains(catalog, declared)
    if remains is not None:
        declared = dataclasses.replace(declared, location=f"{remains.location.rstrip('/')}-{uuid.uuid4().hex[:8]}")
    write_table_record(tables, identifier, value, ensure_declared(catalog, declared, spec.name))


def dropped_table_value(spec: StreamSpec, tables: StreamTables, identifier: Target) -> str | None:
    """Return the route value of a dropped table; None for a table that the route names. Raises SpecError if unknown."""
    if identifier in spec.sinks.named_tables:
        return None
    if (value := _find_route_value(spec, tables, identifier)) is not None:
        return value
    raise SpecError(
        f"table {identifier} was dropped, and the route value for which it was created is unknown. Add the table to "
        "route.tables until it exists again"
    )


def _find_route_value(spec: StreamSpec, tables: StreamTables, identifier: Target) -> str | None:
    """Return the table's route value, according to its note, record or name; None if unknown."""
    records = load_missing_table_note(tables, identifier), read_table_record(tables, identifier)
    values = (*(table.value for table in records if table), spec.sinks.extract_value(identifier))
    return next((value for value in values if value is not None), None)
