"""Describes a stream's tables as frazil would create them, even if they exist.

The properties of a table, not only its name, show whether a route's template created it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass, field

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import ForbiddenError
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.sorting import SortOrder

from frazil.errors import AccessDenied
from frazil.spec import iceberg
from frazil.spec.model import StreamSpec
from frazil.spec.route import value_property
from frazil.spec.sinks import Sinks
from frazil.table.catalogs import explain_table_error, find_table, list_table_names
from frazil.table.parallel import run_in_parallel

FORMAT_VERSION = 2
"""Default Iceberg format version of new tables."""
WRITTEN_VERSIONS = (2, 3)

DEFAULT_PROPERTIES = {
    "format-version": str(FORMAT_VERSION),
    "write.parquet.compression-codec": "zstd",
    # One commit per minute writes 1,440 metadata files per day. Keep the last hundred.
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "100",
    # Compaction loses some races against a writer that commits every few seconds. Iceberg's default is 4 retries.
    "commit.retry.num-retries": "10",
}
"""Default properties of every table that frazil creates."""
MAIN_PROPERTIES = DEFAULT_PROPERTIES | {
    # Version 2 needs half the bytes and a third less CPU. Signals and dead letters are few, and every reader must be
    # able to read them.
    "write.parquet.format-version": "v2",
}
"""Default properties of a stream's main table and routed tables."""


@dataclass(frozen=True, slots=True)
class DeclaredTable:
    identifier: str
    schema: Schema
    partitioning: PartitionSpec
    order: SortOrder = field(default_factory=lambda: SortOrder(order_id=0))
    properties: dict[str, str] = field(default_factory=lambda: dict(DEFAULT_PROPERTIES))
    location: str | None = None
    user_columns: frozenset[str] = frozenset()
    """Columns that the user declared. All others are frazil's."""
    relaxable: frozenset[str] = frozenset()
    """Columns, with nested fields, that are declared `not null`, but may be optional in a table that has evolved."""


def declared_table(spec: StreamSpec) -> DeclaredTable:
    schema, names = iceberg.table_schema(spec), frozenset(column.name for column in spec.columns)
    return DeclaredTable(
        identifier=spec.table.identifier,
        schema=schema,
        partitioning=iceberg.partition_spec(spec, schema),
        order=iceberg.sort_order(spec, schema),
        properties=MAIN_PROPERTIES | spec.table.properties,
        location=spec.table.location,
        user_columns=names,
        # Every row must have the event time and the key.
        relaxable=names - {spec.event_time.column, *spec.key} if spec.evolution.mode == "full" else frozenset(),
    )


def declared_dead_letters(spec: StreamSpec) -> DeclaredTable:
    return DeclaredTable(
        identifier=spec.dead_letter_table,
        schema=iceberg.DEAD_LETTER_SCHEMA,
        partitioning=iceberg.DEAD_LETTER_PARTITION_SPEC,
    )


def table_identifier(table: Table) -> str:
    return ".".join(table.name())


OWN_FOLDERS = frozenset({"write.data.path", "write.metadata.path", "write.object-storage.path"})
"""Properties of the main table that name the table's folders. Other tables do not get these properties."""


def declare_routed_table(spec: StreamSpec, identifier: str, value: str | None = None) -> DeclaredTable:
    """Return the declaration of a routed table. `value` is the route value if the template creates the table."""
    declared = declared_table(spec)
    properties = {name: text for name, text in declared.properties.items() if name not in OWN_FOLDERS}
    if value is not None:
        properties[value_property(spec.name)] = value
    return dataclasses.replace(declared, identifier=identifier, location=None, properties=properties)


def list_matching_names(catalog: Catalog, sinks: Sinks) -> list[str]:
    if sinks.template is None:
        return []
    return sorted(filter(sinks.matches_template, list_table_names(catalog, sinks.template.rpartition(".")[0])))


def load_route_tables(catalog: Catalog, sinks: Sinks, *, names: Iterable[str] | None = None) -> dict[str, Table]:
    """Load the existing tables of a route, or those in `names`. Omits tables that the template did not create."""

    def load(identifier: str) -> Table | None:
        try:
            table = find_table(catalog, identifier)
        except ForbiddenError as error:
            raise AccessDenied(f"table {identifier}: {explain_table_error(error)}") from error
        return table if table is not None and sinks.owns(identifier, table.properties) else None

    names = sorted({*sinks.named_tables, *list_matching_names(catalog, sinks)} if names is None else names)
    loaded = run_in_parallel(load, names) if names else []
    return {name: table for name, table in zip(names, loaded, strict=True) if table is not None}
