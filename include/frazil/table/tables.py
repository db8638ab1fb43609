"""Creates a stream's missing tables, checks and evolves existing ones, and returns their folders."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NamespaceAlreadyExistsError, NoSuchTableError, TableAlreadyExistsError
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.sorting import SortField, SortOrder
from sqlalchemy.exc import IntegrityError

from frazil.errors import SchemaIncompatible, TableLost, restart_hint
from frazil.spec.addresses import FOLDER_PROPERTIES, find_path_problem
from frazil.spec.iceberg import check_variants, parse_former_columns
from frazil.spec.model import StreamSpec
from frazil.table.catalogs import find_table, open_existing_catalog, translate_catalog_errors
from frazil.table.declared_tables import (
    WRITTEN_VERSIONS,
    DeclaredTable,
    declared_dead_letters,
    declared_table,
    table_identifier,
)
from frazil.table.lost_tables import STATE_FOLDER, explain_lost_table, find_remains
from frazil.table.renamed_columns import find_dropped_columns
from frazil.table.schema_update import check_readable_schema, evolve_to, find_evolutions

logger = logging.getLogger(__name__)

CREATION_TIMEOUT_S = 1.0
"""How long (s) to wait for another process that is creating the table."""


def ensure_table(catalog: Catalog, spec: StreamSpec) -> Table:
    """Return the stream's table, after creating or safely evolving it. Differences in layout are only logged.

    Raises SpecError for a new column that an engine cannot read, and TableLost if a new table would share a folder.
    Also raises SchemaIncompatible, AccessDenied and CommitUnavailable.
    """
    table = ensure_declared(catalog, declared_table(spec), spec.name)
    for difference in _layout_differences(table, spec):
        logger.warning("%s", difference)
    return table


def _layout_differences(table: Table, spec: StreamSpec) -> Iterator[str]:
    declared = declared_table(spec)
    layout = _layout_terms(table.spec(), table.sort_order(), table.schema())
    layout["format version"] = [str(table.metadata.format_version)]
    terms = _layout_terms(declared.partitioning, declared.order, declared.schema)
    if "format-version" in spec.table.properties:
        terms["format version"] = [spec.table.properties["format-version"]]
    for word, wanted in terms.items():
        if wanted and wanted != layout[word]:
            yield (
                f"the declared {word} is [{', '.join(wanted)}], but table {table_identifier(table)} has "
                f"[{', '.join(layout[word])}], which is not changed. Change the declaration, or write to a new table"
            )
    names = [column.name for column in spec.columns]
    for name in find_dropped_columns(names, table.schema(), parse_former_columns(table.properties)):
        yield (
            f"the declared column {name} was dropped from table {table_identifier(table)} with `frazil evolve`, so its "
            "values are ignored. Remove it from the declaration, or declare a column of another name"
        )


def ensure_dead_letters(catalog: Catalog, spec: StreamSpec) -> Table:
    """Return the stream's dead-letter table, created if missing. Raises the errors of `ensure_table`."""
    return ensure_declared(catalog, declared_dead_letters(spec), spec.name)


def check_declaration_fits(table: Table, spec: StreamSpec) -> None:
    """Raise SchemaIncompatible if the table contradicts the declaration. Ignores missing columns."""
    find_evolutions(table, declared_table(spec), spec.name)


def check_existing_tables(spec: StreamSpec) -> list[str]:
    """Return differences from the declared layout. Raises SchemaIncompatible if a writer would refuse the tables."""
    catalog, warnings = open_existing_catalog(spec.table.catalog), list[str]()
    for declared in (declared_table(spec), declared_dead_letters(spec)):
        with translate_catalog_errors(catalog.name):
            if (table := find_table(catalog, declared.identifier)) is None:
                continue
            _check_evolvable(table)
            find_evolutions(table, declared, spec.name)
            if declared.identifier == spec.table.identifier:
                warnings += _layout_differences(table, spec)
    return warnings


def check_rows_fit(
    main: Table, dead_letters: Table, spec: StreamSpec, *, start_hint: Callable[[StreamSpec], str] | None = None
) -> None:
    """Raise SchemaIncompatible if declared rows no longer fit the table or the dead-letter table.

    `start_hint` returns how a user starts a new writer; by default, of a stream whose writer runs.
    """
    for table, declared in ((main, declared_table(spec)), (dead_letters, declared_dead_letters(spec))):
        _check_writable(table)
        if missing := find_evolutions(table, declared, spec.name):
            columns = ", ".join(".".join(change.path) for change in missing)
            raise SchemaIncompatible(
                f"the columns of table {table_identifier(table)} are not all as declared yet ({columns}); the writer's "
                f"next start changes them: {start_hint(spec) if start_hint else restart_hint(spec.name)}",
                stream=spec.name,
            )
    schema, former = main.schema(), parse_former_columns(main.properties)
    ids = {former.get(name) or schema.find_field(name).field_id for name in spec.key}
    if spec.sinks.mode.replaces_rows and schema.identifier_field_ids and ids != set(schema.identifier_field_ids):
        names = schema.identifier_field_names()
        raise SchemaIncompatible(
            f"the declared key is {', '.join(spec.key)}, but the identifier fields of table {table_identifier(main)} "
            f"are {', '.join(sorted(names))}. Declare these as the key, or write to a new table",
            stream=spec.name,
        )


def data_location(table: Table) -> str:
    """Return the folder of a table's data files, without a trailing slash."""
    return (table.properties.get("write.data.path") or f"{table.location().rstrip('/')}/data").rstrip("/")


def state_location(table: Table, stream: str) -> str:
    """Return `<location>/_frazil/<stream>`. Spark's remove_orphan_files skips names with a leading underscore."""
    return f"{table.location().rstrip('/')}/{STATE_FOLDER}/{stream}"


def may_delete_files(properties: Mapping[str, str]) -> bool:
    """Return whether `gc.enabled` is true. Otherwise, another table may share the files."""
    return properties.get("gc.enabled", "true").lower() == "true"


def ensure_declared(catalog: Catalog, declared: DeclaredTable, stream: str) -> Table:
    """Return a declared table of a stream, created if missing. Raises the errors of `ensure_table`."""
    with translate_catalog_errors(catalog.name):
        table = find_table(catalog, declared.identifier)
        return evolve_to_declaration(_create(catalog, declared) if table is None else table, declared, stream)


def evolve_to_declaration(table: Table, declared: DeclaredTable, stream: str) -> Table:
    """Evolve a loaded table to its declaration, if safe. Raises SchemaIncompatible."""
    _check_evolvable(table)
    return evolve_to(table, declared, stream)


def _check_evolvable(table: Table) -> None:
    _check_writable(table)
    folders = {"location": table.location(), **{name: table.properties.get(name, "") for name in FOLDER_PROPERTIES}}
    for name, folder in folders.items():
        if problem := find_path_problem(folder):
            raise SchemaIncompatible(f"{table_identifier(table)}: {name} {folder!r} {problem}, or write to a new table")


def _check_writable(table: Table) -> None:
    version = table.metadata.format_version
    if version not in WRITTEN_VERSIONS:
        upgrade = "upgrade it (ALTER TABLE … SET TBLPROPERTIES ('format-version' = '2'))"
        raise SchemaIncompatible(
            f"{table_identifier(table)} has Iceberg format version {version}, but frazil writes versions "
            f"{' and '.join(map(str, WRITTEN_VERSIONS))}: {upgrade if version < 2 else 'write to a new table'}"
        )
    try:
        check_variants(table.schema())
    except SchemaIncompatible as error:
        raise SchemaIncompatible(f"{table_identifier(table)}: {error}") from None


def _create(catalog: Catalog, declared: DeclaredTable) -> Table:
    """Create the namespace and the table, and return it. Another process may create it first."""
    check_readable_schema(declared.schema, declared.identifier)
    parts = declared.identifier.split(".")
    for namespace in (tuple(parts[:depth]) for depth in range(1, len(parts))):
        # Another process may create the namespace after the check: SqlCatalog's primary key refuses a second one.
        with suppress(NamespaceAlreadyExistsError, IntegrityError):
            if not catalog.namespace_exists(namespace):
                catalog.create_namespace(namespace)
    remains = find_remains(catalog, declared)
    try:
        if remains is not None:
            # The table may have been created since the search, so that the files belong to it.
            return catalog.load_table(declared.identifier)
        return catalog.create_table(
            declared.identifier,
            declared.schema,
            location=declared.location,
            partition_spec=declared.partitioning,
            sort_order=declared.order,
            properties={**declared.properties},  # PyIceberg removes the format version
        )
    except TableAlreadyExistsError:
        return catalog.load_table(declared.identifier)
    except NoSuchTableError:
        if remains is None:
            raise
        if table := _wait_for_creation(catalog, declared.identifier):
            return table
        raise TableLost(explain_lost_table(catalog, declared.identifier, remains)) from None


def _wait_for_creation(catalog: Catalog, identifier: str) -> Table | None:
    """Wait for a table that another process is creating, and return it; None after a timeout."""
    deadline_s = time.monotonic() + CREATION_TIMEOUT_S
    while time.monotonic() < deadline_s:
        time.sleep(0.1)
        if (table := find_table(catalog, identifier)) is not None:
            return table
    return None


def _layout_terms(partitioning: PartitionSpec, order: SortOrder, schema: Schema) -> dict[str, list[str]]:
    def term(field: PartitionField | SortField) -> str:
        return f"{field.transform}({schema.find_column_name(field.source_id)})"

    sorts = [f"{term(field)} {field.direction.value} {field.null_order.value}" for field in order.fields]
    return {"partitioning": [term(field) for field in partitioning.fields], "sort order": sorts}


def load_stream_table(spec: StreamSpec) -> Table | None:
    """Load the stream's table, if it exists. Creates nothing, not even a catalog."""
    catalog = open_existing_catalog(spec.table.catalog)
    with translate_catalog_errors(catalog.name):
        return find_table(catalog, spec.table.identifier)
