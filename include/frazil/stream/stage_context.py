"""Builds the staging context from the tables' state, for all tasks of a batch or of a backfill's chunk."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any

from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.types import NestedField

from frazil.commit.journal import NO_RULES, RuleHashes
from frazil.commit.marker import BatchKey
from frazil.commit.merging import current_column_name, merge_config
from frazil.commit.staging_targets import target_table
from frazil.commit.stream_tables import StreamTables
from frazil.commit.sweep import batch_folder
from frazil.ingest.contract import (
    ChangeRules,
    Destinations,
    KeyColumns,
    StageContext,
    StageResult,
    Target,
    TargetTable,
    Transform,
)
from frazil.ingest.formats.fields import Unit, may_have_aliases
from frazil.spec.column import COORDINATES, LINE_COLUMN
from frazil.spec.formats import dump_portable_format
from frazil.spec.iceberg import parse_former_columns
from frazil.spec.model import StreamSpec
from frazil.spec.upsert import Delete, find_tombstone_fields
from frazil.table.catalogs import translate_catalog_errors
from frazil.table.renamed_columns import find_aliases
from frazil.table.tables import check_rows_fit


def build_stage_context(
    spec: StreamSpec,
    tables: StreamTables,
    key: BatchKey,
    *,
    kafka_properties: Mapping[str, str],
    topic_ids: Mapping[str, str],
) -> StageContext:
    """Build a batch's staging context. Raises SchemaIncompatible if the declared columns no longer fit a table."""
    # The tables are refreshed, so that changes by others since the last commit apply to the next batch.
    with translate_catalog_errors(tables.main.catalog_name):
        loaded = {target: handle.refresh() for target, handle in tables.targets.items()}
    check_rows_fit(loaded["main"], loaded["dead-letters"], spec)
    main = loaded["main"]
    other_names = find_aliases(main.schema(), parse_former_columns(main.properties))
    dead_letters = target_table(loaded["dead-letters"], folder=batch_folder(loaded["dead-letters"], tables.stream, key))
    units = current_units(spec, main.schema(), other_names)
    without = {
        main.schema().find_field(name).field_id
        for name, unit in units.items()
        if not spec.transform and not may_have_aliases(unit)
    }
    other_names = {name: field_id for name, field_id in other_names.items() if field_id not in without}
    targets = {"main": staged_target(spec, main, batch_folder(main, tables.stream, key)), "dead-letters": dead_letters}
    declared = build_declared_context(spec, main.schema(), other_names, targets=targets, units=units)
    kafka, ids = dict(kafka_properties), dict(topic_ids)
    return replace(declared, epoch=key.epoch, batch=key.batch, kafka=kafka, topic_ids=ids)


def build_declared_context(
    spec: StreamSpec,
    schema: Schema,
    other_names: Mapping[str, int],
    *,
    targets: Mapping[Target, TargetTable],
    units: Mapping[str, Unit],
) -> StageContext:
    """Build a context for a table of this schema, without batch, Kafka properties and topic ids."""
    changes = change_rules(spec, schema, other_names)
    return StageContext(
        stream=spec.name,
        epoch=0,
        batch=0,
        kafka={},
        format=dump_portable_format(spec.value_format),
        event_time_column=spec.event_time.column,
        coordinates=spec.coordinates or changes is not None,
        targets=targets,
        topic_ids={},
        units=units,
        aliases=other_names,
        is_lenient=spec.cast == "lenient" and spec.evolution.mode != "off",
        key_header_columns=spec.key_header_columns,
        key_columns=key_columns(spec),
        transform=current_transform(spec, schema, other_names),
        sensitive=sensitive_fields(spec, schema, other_names),
        max_future_us=spec.watermark.max_future // timedelta(microseconds=1),
        changes=changes,
    )


def hash_rules(spec: StreamSpec, context: StageContext, results: Iterable[StageResult]) -> RuleHashes:
    """Return the hashes of the declared rules.

    Empty unless the commit compares records of the topic with the table's rows. If an upgrade changes the hashes,
    audits compare no values of earlier batches, as after a changed declaration.
    """
    if not spec.sinks.mode.merges or not context.is_in_topic_format:
        return NO_RULES
    sensitive, keys, transform = context.sensitive.get("fields", {}), context.key_columns, context.transform
    secrets = sorted({result.secret for result in results} - {""})
    by_column = (sensitive, context.key_header_columns, {} if transform else context.units)
    of_keys = (keys.columns, keys.format, keys.is_whole) if keys else None
    # With a transform, units are of fields, not of columns.
    of_all = (transform.records_json, transform.where, transform.unnested, context.units) if transform else None
    expressions = {column.name: column.declared for column in transform.columns} if transform else {}
    common = _sha256((context.format, context.is_lenient, of_keys, of_all))

    def rules(column: NestedField) -> str:
        by_path = [
            {path: rule for path, rule in paths.items() if path.split(".")[0] == column.name} for paths in by_column
        ]
        sealed = [secrets for path in by_path[0] if sensitive[path]["as"] != "mask"]
        names = sorted(name for name, field_id in context.aliases.items() if field_id == column.field_id)
        # If the id differs, the column was dropped and added again.
        field = column.field_id, str(column.field_type), column.write_default, column.required
        return _sha256((common, by_path, sealed, names, field, expressions.get(column.name)))

    columns = {column.name: rules(column) for column in context.main.schema.fields}
    return RuleHashes(columns, _hash_deciding_rules(spec, context, columns))


def _hash_deciding_rules(spec: StreamSpec, context: StageContext, columns: Mapping[str, str]) -> str:
    delete = spec.delete or Delete.model_construct()
    of_rows = (spec.order_by, delete.column) if spec.dedupe is None else (spec.event_time.column,)
    name_of = partial(current_column_name, context.main.schema, context.aliases)
    deciding = [None if name is None else (name, columns.get(name_of(name))) for name in (*spec.sinks.key, *of_rows)]
    return _sha256((deciding, delete.values, delete.tombstones, spec.dedupe and spec.dedupe.within))


def _sha256(rules: object) -> str:
    return hashlib.sha256(json.dumps(rules, sort_keys=True, default=str).encode()).hexdigest()[:8]


def key_columns(spec: StreamSpec) -> KeyColumns | None:
    if not spec.key_columns:
        return None
    return KeyColumns(
        spec.key_columns, dump_portable_format(spec.key_format), is_whole=spec.whole_key_column is not None
    )


def staged_target(spec: StreamSpec, table: Table, folder: str) -> TargetTable:
    merging = merge_config(spec)
    return target_table(table, folder=folder) if merging is None else merging.staging_target(table, folder=folder)


def add_routed_targets(
    context: StageContext, spec: StreamSpec, tables: Mapping[Target, Table], destinations: Destinations
) -> StageContext:
    """Return the context with the route's tables. A table that is not in `tables` has the default table's layout."""
    routed = {
        target: staged_target(spec, tables[target], "") if target in tables else context.main
        for target in destinations.targets.values()
    }
    return replace(context, targets={**context.targets, **routed}, destinations=destinations)


def stage_below(context: StageContext, folder: str) -> StageContext:
    """Return the context with the files of each target in a subfolder of `folder`."""
    return replace(context, targets={t: replace(table, folder=f"{folder}/{t}") for t, table in context.targets.items()})


def change_rules(spec: StreamSpec, table: Schema, other_names: Mapping[str, int]) -> ChangeRules | None:
    """Return how records change rows, with current column names; None for append streams."""
    if not spec.sinks.mode.replaces_rows:
        return None
    delete, name_of = spec.delete or Delete.model_construct(), partial(current_column_name, table, other_names)
    key = tuple(map(name_of, spec.key))
    added = {*key, *COORDINATES, LINE_COLUMN}
    return ChangeRules(
        key=key,
        required=tuple(field.name for field in table.fields if field.required and field.name not in added),
        delete_column=None if delete.column is None else name_of(delete.column),
        delete_values=delete.values,
        tombstones=delete.tombstones,
        key_fields=tuple(map(name_of, find_tombstone_fields(spec))),
    )


def sensitive_fields(spec: StreamSpec, table: Schema, other_names: Mapping[str, int]) -> dict[str, Any]:
    if (declared := spec.sensitive) is None:
        return {}
    fields = {
        _current_path(table, other_names, path): {"as": rule.as_, "keep-last": rule.keep_last}
        for path, rule in declared.kept_fields.items()
    }
    dropped = [".".join(path) for path in declared.dropped_fields]
    return {"fields": fields, "dropped": dropped, "secret": declared.secret, "dead-letters": declared.dead_letters}


def current_transform(spec: StreamSpec, table: Schema, other_names: Mapping[str, int]) -> Transform | None:
    if spec.transform is None:
        return None
    from frazil.ingest.transform_check import check_transform  # DuckDB, only where a transform is declared

    transform = check_transform(spec).transform
    columns = (replace(c, name=current_column_name(table, other_names, c.name)) for c in transform.columns)
    return replace(transform, columns=tuple(columns))


def current_units(spec: StreamSpec, table: Schema, other_names: Mapping[str, int]) -> Mapping[str, Unit]:
    if spec.transform:
        return spec.units
    columns = {*table.column_names}
    units = {_current_path(table, other_names, path): unit for path, unit in spec.units.items()}
    return {path: unit for path, unit in units.items() if path in columns}


def _current_path(table: Schema, other_names: Mapping[str, int], path: str) -> str:
    first, *nested = path.split(".")
    return ".".join([current_column_name(table, other_names, first), *nested])
