"""Evolves a stream's tables to match a batch's schema drift, before the commit."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from pyiceberg.schema import Schema, index_by_id
from pyiceberg.table import Table

from frazil.ingest.contract import StagedFile
from frazil.ingest.schema_drift import SchemaDrift, find_new_fields, join_drift
from frazil.spec.iceberg import FormerColumns, find_current_name, iceberg_type, parse_former_columns
from frazil.spec.model import StreamSpec
from frazil.spec.units import format_count, shorten_list
from frazil.table.evolution import Addition, Change, Path, Promotion, RefusedField, Relaxation, walk_fields
from frazil.table.schema_update import describe_change, evolve_for_records

MAX_NAMED = 5


@dataclass(frozen=True, slots=True)
class EvolutionResult:
    changes: tuple[str, ...]
    """Descriptions of the changes. If empty, the staged batch is still valid."""
    refused: tuple[RefusedField, ...]


def ignored_fields_notice(refused: Sequence[RefusedField], *, table: str) -> str:
    fields = "; ".join(shorten_list([f"{'.'.join(r.path)[:100]!r} {r.reason}" for r in refused], MAX_NAMED, "field"))
    return f"records have fields that cannot become columns of {table}, so their values are ignored: {fields}"


def unmatched_records_notice(counted_so_far: SchemaDrift, *, table: str) -> str:
    if not counted_so_far.unknown:
        return ""
    names = counted_so_far.names
    fields = f": their fields are {', '.join(map(repr, names))}" if names else ""
    if {"schema", "payload"} <= set(names):
        remedy = "Kafka Connect wraps such records: declare source.format: {type: json, unwrap: payload}"
    else:
        remedy = "Compare the declared columns' names with the records' fields; `frazil infer` proposes columns"
    count = format_count(counted_so_far.unknown, "record", "has|have")
    return f"{count} no field that matches a column of {table}{fields}. {remedy}"


def casts_notice(counted_so_far: SchemaDrift, *, table: str) -> str:
    if not counted_so_far.cast:
        return ""
    columns = sorted(counted_so_far.cast.items(), key=lambda column: (-column[1], column[0]))
    names = ", ".join(f"{name} {count:,}" for name, count in columns[:MAX_NAMED])
    more = f" and {format_count(len(columns) - MAX_NAMED, 'more column')}" if len(columns) > MAX_NAMED else ""
    return f"fields of the records were cast to the column types of {table}, as `cast: lenient` allows: {names}{more}"


def unplaced_changes_notice(counted_so_far: SchemaDrift, *, table: str) -> str:
    if not counted_so_far.unplaced:
        return ""
    count = format_count(counted_so_far.unplaced, "change", "has|have")
    return (
        f"{count} no position in the log of {table}'s source, so Kafka's order decides: frazil knows the "
        "positions of PostgreSQL, MySQL and MariaDB. Order by a column of envelope.metadata instead, such as "
        "source.change_lsn of SQL Server or source.scn of Oracle"
    )


def evolve_table(
    table: Table, spec: StreamSpec, drift: Iterable[SchemaDrift], *, main: Table | None = None
) -> EvolutionResult:
    """Change the table as far as `evolution` allows. A routed table's columns have their names in `main`."""
    changes, refused = requested_changes(join_drift(drift))
    changes, dropped = refuse_sensitive_fields(changes, _sensitive_paths(main or table, spec))
    refused = (*refused, *dropped)
    if main is not None and (former := parse_former_columns(main.properties)):
        changes, dropped = _use_current_names(changes, main.schema(), former)
        refused = (*refused, *dropped)
    if not changes:
        return EvolutionResult((), refused)
    evolution = evolve_for_records(table, spec, changes)
    return EvolutionResult(tuple(map(describe_change, evolution.changes)), (*refused, *evolution.refused))


def columns_for_pending_files(default: Table, files: Iterable[StagedFile], *, widening: bool) -> list[Change]:
    """Return the changes that a routed table needs for files with the default table's schema."""
    schemas, additions = default.schemas(), dict[Path, list[Change]]()
    for file in files:
        empty = {i for i, values in file.value_counts.items() if values == file.null_value_counts.get(i)}
        for path, field in walk_fields(schemas.get(file.schema_id, default.schema()).as_struct(), ()):
            inside = index_by_id(Schema(field)).items()
            if not empty.issuperset(i for i, leaf in inside if leaf.field_type.is_primitive):
                wider = [Promotion(path, field.field_type)] if field.field_type.is_primitive else []
                additions[path] = [Addition(path, field.field_type, None), *(wider if widening else [])]
            if widening and not field.required:
                additions.setdefault(path, []).append(Relaxation(path))
    return [change for changes in additions.values() for change in changes]


def _sensitive_paths(table: Table, spec: StreamSpec) -> list[Path]:
    if spec.sensitive is None:
        return []
    hidden = [*spec.sensitive.dropped_fields, *(tuple(name.split(".")) for name in spec.sensitive.kept_fields)]
    schema, former = table.schema(), parse_former_columns(table.properties)
    columns = {path[0] for path in hidden} | {find_current_name(schema, former.get(path[0])) for path in hidden}
    columns.discard(None)
    return [*hidden, *((name,) for name, field in former.items() if find_current_name(schema, field) in columns)]


def _use_current_names(
    changes: Sequence[Change], main: Schema, former: FormerColumns
) -> tuple[list[Change], tuple[RefusedField, ...]]:
    """Return the changes with renamed columns' current names, and refusals for dropped columns."""
    renamed_changes: list[Change] = []
    refused: list[RefusedField] = []
    for change in changes:
        first, *nested = change.path
        kept_name = first in main.column_names or first not in former
        current_name = first if kept_name else find_current_name(main, former[first])
        if current_name is None:
            refused.append(RefusedField(change.path, "was dropped from the stream's tables"))
        elif (renamed := replace(change, path=(current_name, *nested))) not in renamed_changes:
            renamed_changes.append(renamed)
    return renamed_changes, tuple(refused)


def refuse_sensitive_fields(
    changes: Sequence[Change], hidden: Sequence[Path]
) -> tuple[list[Change], tuple[RefusedField, ...]]:
    """Return the changes without sensitive fields, and refusals of these fields. Ignores case."""
    hidden = [tuple(part.lower() for part in path) for path in hidden]
    allowed: list[Change] = []
    refused: list[RefusedField] = []
    for change in changes:
        path = tuple(part.lower() for part in change.path)
        if not isinstance(change, Addition):
            allowed.append(change)
        elif any(path[: len(hidden_path)] == hidden_path for hidden_path in hidden):
            reason = "is sensitive, so it is not added as a column; declare it to store it"
            refused.append(RefusedField(change.path, reason))
        elif any(hidden_path[: len(path)] == path for hidden_path in hidden):
            refused.append(RefusedField(change.path, "has a sensitive field; declare the column without it"))
        else:
            allowed.append(change)
    return allowed, tuple(refused)


def requested_changes(drift: SchemaDrift) -> tuple[list[Change], tuple[RefusedField, ...]]:
    """Return the changes that would accept all drift, and refusals for fields that cannot become columns."""
    changes: list[Change] = []
    refused: list[RefusedField] = []
    for field in find_new_fields(drift):
        if field.type is None:
            refused.append(RefusedField(field.path, field.problem))
        else:
            changes.append(Addition(field.path, field.type, None))
    changes += [Promotion(path, iceberg_type(kind)) for path, kind in drift.wider.items()]
    changes += [Relaxation(path) for path in drift.optional]
    return changes, tuple(refused)
