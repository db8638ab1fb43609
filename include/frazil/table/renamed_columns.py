"""Handles columns that `frazil evolve` renamed or dropped, while declarations and records still use the old names.

A table property stores the old names, and changes together with the schema. A renamed column's old name refers to the
column. A dropped column's name is ignored.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from pyiceberg.exceptions import CommitFailedException
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.types import NestedField

from frazil.errors import CommitUnavailable, SchemaIncompatible
from frazil.spec.column import METADATA_COLUMN_PROBLEM, METADATA_COLUMNS
from frazil.spec.iceberg import FORMER_COLUMNS_PROPERTY, FormerColumns, find_current_name, parse_former_columns
from frazil.spec.types import name_key
from frazil.table.catalogs import translate_catalog_errors
from frazil.table.evolution import PARTITION_NAME_PROBLEM, TOP_LEVEL_ID, ColumnHistory, partition_names

MAX_ATTEMPTS = 5


def use_current_names(declared: Schema, existing: Schema, former: FormerColumns) -> Schema:
    """Return the declared schema with the table's column names, without dropped columns."""
    names = {field.name for field in declared.fields}
    fields: list[NestedField] = []
    for field in declared.fields:
        if field.name not in former or _has_column(existing, field.name):
            fields.append(field)
        elif (
            current_name := find_current_name(existing, former[field.name])
        ) is not None and current_name not in names:
            fields.append(field.model_copy(update={"name": current_name}))
    return Schema(*fields, schema_id=declared.schema_id)


def find_dropped_columns(names: Iterable[str], existing: Schema, former: FormerColumns) -> list[str]:
    """Return the names of columns that `frazil evolve` dropped. Omits names that the table has again."""
    missing = (name for name in names if name in former and not _has_column(existing, name))
    return [name for name in missing if find_current_name(existing, former[name]) is None]


def find_aliases(existing: Schema, former: FormerColumns) -> dict[str, int]:
    """Return the former column names that records may still use, with field ids."""
    renamed = {name: i for name, i in former.items() if i is not None and not _has_column(existing, name)}
    return {name: i for name, i in renamed.items() if find_current_name(existing, i) is not None}


def _has_column(schema: Schema, name: str) -> bool:
    return any(field.name == name for field in schema.fields)


@dataclass(frozen=True, slots=True)
class ColumnChanges:
    """Requested changes: `renames` from old to new names, and columns to drop."""

    renames: Mapping[str, str]
    drops: Sequence[str]

    def of(self, names: Collection[str]) -> ColumnChanges:
        renames = {old: new for old, new in self.renames.items() if old in names}
        return ColumnChanges(renames, [name for name in self.drops if name in names])

    def __bool__(self) -> bool:
        return bool(self.renames or self.drops)


def find_change_problems(
    changes: ColumnChanges,
    table: Schema,
    former: Sequence[Schema],
    *,
    fixed: Mapping[str, str],
    specs: Collection[PartitionSpec] = (),
) -> list[str]:
    """Return why the columns cannot be renamed or dropped. `fixed` says why certain columns must not change."""
    problems = []
    history = ColumnHistory.from_schemas((*former, table))
    names = {name_key(field.name): field.name for field in table.fields}
    ids = {field.name: field.field_id for field in table.fields}
    for name in (*changes.renames, *changes.drops):
        if name not in ids:
            problems.append(f"the table has no column {name}")
        elif reason := fixed.get(name):
            problems.append(f"the column {name} cannot be changed: {reason}")
    for old, new in changes.renames.items():
        if name_key(new) in names and name_key(new) != name_key(old):
            problems.append(f"the table already has the column {names[name_key(new)]}")
        elif not new or "." in new or new != new.strip():
            problems.append(f"{new!r} is not a valid column name: it is empty, or has a dot or spaces around it")
        elif name_key(new) in METADATA_COLUMNS:
            problems.append(f"{new} {METADATA_COLUMN_PROBLEM}")
        elif new in partition_names(specs, source_id=ids.get(old)):
            problems.append(f"{new} {PARTITION_NAME_PROBLEM}")
        elif other_ids := [i for i in history.ids.get((TOP_LEVEL_ID, new), ()) if i != ids.get(old)]:
            problems.append(f"{new} was once the name of another column (field id {other_ids[0]}): choose a new name")
    new_names = list(changes.renames.values())
    keys = [*map(name_key, new_names)]
    problems += [f"{new} is the new name of two columns" for n, new in enumerate(new_names) if keys[n] in keys[:n]]
    conflicting = set(changes.drops) & set(changes.renames)
    return problems + [f"{name} cannot be both renamed and dropped" for name in sorted(conflicting)]


def check_changes(table: Table, changes: ColumnChanges, *, fixed: Mapping[str, str]) -> None:
    """Raise SchemaIncompatible, with all reasons, if a change is impossible."""
    former = sorted(table.metadata.schemas, key=lambda schema: schema.schema_id)
    specs = table.metadata.partition_specs
    if problems := find_change_problems(changes, table.schema(), former, fixed=fixed, specs=specs):
        raise SchemaIncompatible(f"{'.'.join(table.name())} was not changed: {'; '.join(problems)}")


def change_columns(table: Table, changes: ColumnChanges, *, fixed: Mapping[str, str]) -> Table:
    """Rename and drop columns in one commit. Raises SchemaIncompatible with all problems, and commit errors."""
    with translate_catalog_errors(table.catalog.name):
        for _ in range(MAX_ATTEMPTS):
            check_changes(table, changes, fixed=fixed)
            former = dict(parse_former_columns(table.properties))
            former |= {old: table.schema().find_field(old).field_id for old in changes.renames}
            former |= dict.fromkeys(changes.drops)
            former = {name: field for name, field in former.items() if name not in changes.renames.values()}
            try:
                with table.transaction() as transaction:
                    with transaction.update_schema() as update:
                        for old, new in changes.renames.items():
                            update.rename_column(old, new)
                        for name in changes.drops:
                            update.delete_column(name)
                    transaction.set_properties({FORMER_COLUMNS_PROPERTY: json.dumps(former)})
            except CommitFailedException:
                table = table.catalog.load_table(table.name())
                continue
            return table.catalog.load_table(table.name())
    raise CommitUnavailable(
        f"{'.'.join(table.name())} was changed by another process during each of {MAX_ATTEMPTS} attempts to change "
        "its columns. Try again"
    )


def copy_renames(table: Table, main: Table) -> Table:
    """Rename and drop the same columns as in the main table. Raises the errors of `change_columns`."""
    if not (former := parse_former_columns(main.properties)):
        return table
    names = {field.name for field in table.schema().fields}
    current_names = {old: find_current_name(main.schema(), field_id) for old, field_id in former.items()}
    renames = {old: new for old, new in current_names.items() if new and old in names and new not in names}
    drops = [old for old, field_id in former.items() if field_id is None and old in names]
    changes = ColumnChanges(renames, drops)
    return change_columns(table, changes, fixed={}) if changes else table


def layout_field_ids(table: Table) -> Collection[int]:
    """Return the field ids that partition specs and sort orders have ever used."""
    specs = {field.source_id for spec in table.metadata.partition_specs for field in spec.fields}
    return specs | {field.source_id for order in table.metadata.sort_orders for field in order.fields}
