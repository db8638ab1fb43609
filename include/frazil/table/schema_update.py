"""Evolves the schema of an existing table to match a declaration, or a stream's records."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import replace

from pyiceberg.exceptions import CommitFailedException
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.types import IcebergType, NestedField

from frazil.errors import CommitUnavailable, SchemaIncompatible, SpecError
from frazil.pyiceberg_fixes import VariantType
from frazil.spec.column import METADATA_COLUMN_PROBLEM, METADATA_COLUMNS, RESERVED_COLUMNS
from frazil.spec.iceberg import format_declaration, iceberg_type, parse_former_columns
from frazil.spec.model import StreamSpec
from frazil.spec.types import UNREADABLE_TYPES, name_key
from frazil.table.catalogs import translate_catalog_errors
from frazil.table.declared_tables import DeclaredTable, declared_table, table_identifier
from frazil.table.evolution import (
    ACCEPTED_SCHEMA,
    PARTITION_NAME_PROBLEM,
    Addition,
    Change,
    Conflict,
    Promotion,
    Relaxation,
    SchemaGrowth,
    find_differences,
    partition_names,
    plan_growth,
    relax,
    walk_fields,
)
from frazil.table.renamed_columns import use_current_names

logger = logging.getLogger(__name__)

MAX_EVOLUTION_ATTEMPTS = 5


def evolve_to(table: Table, declared: DeclaredTable, stream: str) -> Table:
    for _ in range(MAX_EVOLUTION_ATTEMPTS):
        changes = find_evolutions(table, declared, stream)
        if not changes:
            return table
        try:
            _apply(table, changes)
        except CommitFailedException:
            logger.info(
                "the schema of %s changed while stream %s evolved it; trying again", table_identifier(table), stream
            )
        table = table.catalog.load_table(table.name())
    raise _evolution_failure(table, stream)


def find_evolutions(table: Table, declared: DeclaredTable, stream: str) -> list[Change]:
    """Return the changes that evolve the table to the declared schema. Raises SchemaIncompatible for unsafe ones."""
    existing = table.schema()
    wanted_schema = _adapt(_use_current_names(declared, table), existing)
    differences = find_differences(wanted_schema, existing, _former_schemas(table), user_columns=declared.user_columns)
    names = partition_names(table.metadata.partition_specs)
    conflicts = [difference for difference in differences if isinstance(difference, Conflict)]
    for added in (difference for difference in differences if isinstance(difference, Addition)):
        if not names.isdisjoint(added.full_names()):
            conflicts.append(Conflict(added.path, f"{PARTITION_NAME_PROBLEM}; give the column another name"))
        if isinstance(added.type, VariantType) and table.metadata.format_version < 3:
            problem = f"is a variant, but the table has format version {table.metadata.format_version}, not 3"
            conflicts.append(
                Conflict(added.path, f"{problem}; declare {{type: string, as: json}}, or upgrade the table")
            )
    if conflicts:
        lines = "; ".join(f"column {'.'.join(conflict.path)} {conflict.message}" for conflict in conflicts)
        name = table_identifier(table)
        raise SchemaIncompatible(f"the declared schema does not fit the table {name}: {lines}", stream=stream)
    return [difference for difference in differences if not isinstance(difference, Conflict)]


def _former_schemas(table: Table) -> list[Schema]:
    """Return the table's schemas, oldest first, from the oldest one that is still checked (`ACCEPTED_SCHEMA`)."""
    accepted = table.properties.get(ACCEPTED_SCHEMA, "")
    first = int(accepted) if accepted.isdecimal() else 0
    schemas = sorted(table.metadata.schemas, key=lambda schema: schema.schema_id)
    return [schema for schema in schemas if schema.schema_id >= first]


def _use_current_names(declared: DeclaredTable, table: Table) -> DeclaredTable:
    if not (former := parse_former_columns(table.properties)):
        return declared
    schema = use_current_names(declared.schema, table.schema(), former)
    new = {field.name for field in schema.fields} - {field.name for field in declared.schema.fields}
    relaxable = declared.relaxable and declared.relaxable | new
    return replace(declared, schema=schema, user_columns=declared.user_columns | new, relaxable=relaxable)


def _adapt(declared: DeclaredTable, existing: Schema) -> Schema:
    """Return the declared schema. frazil's columns and relaxable columns become optional if they are in the table."""
    existing_fields = {field.name: field for field in existing.fields}

    def adapt_field(field: NestedField) -> NestedField:
        existing_field = existing_fields.get(field.name)
        if existing_field is not None and field.name in declared.relaxable:
            return relax(field, existing_field)
        is_required = field.name not in RESERVED_COLUMNS if existing_field is None else existing_field.required
        if is_required or field.name in declared.user_columns:
            return field
        return field.model_copy(update={"required": False})

    return Schema(*map(adapt_field, declared.schema.fields), schema_id=declared.schema.schema_id)


def check_readable_schema(added: Schema, table: str) -> None:
    """Raise SpecError for a new column that some engines cannot read."""
    for field in added.fields:
        if name_key(field.name) in METADATA_COLUMNS:
            raise SpecError(
                f"schema.{field.name}: cannot be added to the table {table}: {METADATA_COLUMN_PROBLEM}; rename it"
            )
    for path in added.column_names:
        if reason := UNREADABLE_TYPES.get(str(added.find_type(path))):
            raise SpecError(f"schema.{path}: {added.find_type(path)} cannot be added to the table {table}: {reason}")


def undeclared_columns(table: Table, spec: StreamSpec) -> tuple[str, ...]:
    """Return the undeclared columns and nested fields that a stream fills, as `gate: string` or `home.zip: string`."""
    # Building a schema is slow, and an open page calls this for many streams.
    declared = {column.name: iceberg_type(column.type) if "<" in column.type else None for column in spec.columns}
    if parse_former_columns(table.properties):
        fields = _use_current_names(declared_table(spec), table).schema.fields
        declared = {field.name: field.field_type for field in fields}
    undeclared: list[NestedField] = []
    for field in table.schema().fields:
        if field.name in declared:
            undeclared += _undeclared_fields(field, declared[field.name])
        elif field.name not in RESERVED_COLUMNS:
            undeclared.append(field)
    return tuple(map(format_declaration, undeclared))


def _undeclared_fields(column: NestedField, declared: IcebergType | None) -> Iterator[NestedField]:
    """Yield a column's undeclared fields: those missing in the `declared` type. Each name is the field's path."""
    declared_paths = {(), *(path for path, _ in walk_fields(declared, ()))} if declared else set()
    for path, field in walk_fields(column.field_type, ()):
        if path not in declared_paths and path[:-1] in declared_paths:
            yield field.model_copy(update={"name": ".".join((column.name, *path))})


def evolve_for_records(table: Table, spec: StreamSpec, changes: Sequence[Change]) -> SchemaGrowth:
    """Change a stream's table for its records, in one update. Raises CommitUnavailable, AccessDenied."""
    fixed = frozenset({spec.event_time.column, *RESERVED_COLUMNS})
    with translate_catalog_errors(table.catalog.name):
        for _ in range(MAX_EVOLUTION_ATTEMPTS):
            evolution = plan_growth(
                table.schema(),
                _former_schemas(table),
                changes,
                max_columns=spec.evolution.max_columns,
                fixed=fixed,
                partition_names=partition_names(table.metadata.partition_specs),
            )
            if not evolution.changes:
                return evolution
            try:
                _apply(table, evolution.changes)
            except CommitFailedException:
                logger.info("the schema of %s changed while stream %s evolved it", table_identifier(table), spec.name)
            else:
                return evolution
            table = table.catalog.load_table(table.name())
    raise _evolution_failure(table, spec.name)


def _evolution_failure(table: Table, stream: str) -> CommitUnavailable:
    return CommitUnavailable(
        f"the schema of {table_identifier(table)} changed during each of {MAX_EVOLUTION_ATTEMPTS} attempts to evolve "
        "it",
        stream=stream,
    )


def _apply(table: Table, changes: Sequence[Change]) -> None:
    """Make the changes in one update, and log them. Raises SpecError for a column that some engines cannot read."""
    for change in changes:
        if not isinstance(change, Relaxation):
            check_readable_schema(Schema(NestedField(-1, ".".join(change.path), change.type)), table_identifier(table))
    with table.update_schema() as update:
        for change in changes:
            match change:
                case Addition():
                    update.add_column(change.path, change.type, doc=change.doc, required=False)
                case Promotion():
                    update.update_column(change.path, field_type=change.type)
                case Relaxation():
                    update.make_column_optional(change.path)
    for change in changes:
        logger.info("%s: %s", table_identifier(table), describe_change(change))


def describe_change(change: Change) -> str:
    column = f"column {'.'.join(change.path)}"
    match change:
        case Addition():
            return f"added {column} {change.type}"
        case Promotion():
            return f"widened {column} to {change.type}"
    return f"made {column} optional"
