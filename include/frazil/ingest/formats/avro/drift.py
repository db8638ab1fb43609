"""Finds fields of a writer's Avro schema that the table does not have, and columns that need a wider type."""

from __future__ import annotations

from collections.abc import Iterator

from pyiceberg import types as iceberg

from frazil.ingest.formats.avro.program import filled_columns
from frazil.ingest.formats.avro.schema import AvroType
from frazil.ingest.schema_drift import MAX_NESTING, MIXED, FoundType, ListOf, MapOf, Path, SchemaDrift, struct_of

_SCALAR_TYPES = {
    "boolean": "boolean",
    "int": "int",
    "long": "long",
    "float": "float",
    "double": "double",
    "bytes": "binary",
    "string": "string",
    "enum": "string",
}
_WIDER_TYPES: dict[tuple[str, type[iceberg.IcebergType]], str] = {
    ("long", iceberg.IntegerType): "long",
    ("double", iceberg.FloatType): "double",
}
_MAX_DIGITS = 38
_MAX_PARTS = 10_000


def find_drift(written: AvroType, struct: iceberg.StructType, *, widening: bool) -> SchemaDrift:
    found = list(_find_changes(written, struct, (), frozenset()))
    new = {path: found_type for path, found_type, _ in found if found_type is not None}
    wider = {path: kind for path, _, kind in found if kind} if widening else {}
    return SchemaDrift(new, wider)


def _find_changes(
    written: AvroType, kind: iceberg.IcebergType, path: Path, inside: frozenset[int]
) -> Iterator[tuple[Path, FoundType, str]]:
    """Yield `(path, type, "")` for a new field, and `(path, None, wider type)` for a column that needs a wider type."""
    if written.kind == "union":
        for branch in written.parts:
            yield from _find_changes(branch, kind, path, inside)
        return
    match written.kind, kind:
        case "record", iceberg.StructType() if id(written) not in inside:
            columns = {field.name: field.field_type for field in kind.fields}
            filled = filled_columns(written, columns)
            for i, (part, names) in enumerate(zip(written.parts, written.fields, strict=True)):
                if i in filled:
                    yield from _find_changes(part, columns[filled[i]], (*path, filled[i]), inside | {id(written)})
                else:
                    found_type = column_type_of(part, inside | {id(written)}) if has_few_parts(part) else MIXED
                    yield (*path, names[0]), found_type, ""
        case "array", iceberg.ListType():
            yield from _find_changes(written.parts[0], kind.element_type, (*path, "element"), inside)
        case "map", iceberg.MapType():
            yield from _find_changes(written.parts[0], kind.value_type, (*path, "value"), inside)
        case _, iceberg.DecimalType() if written.logical == "decimal" and written.scale == kind.scale:
            if kind.precision < written.precision <= _MAX_DIGITS:
                yield path, None, f"decimal({written.precision}, {written.scale})"
        case _ if not written.logical and (wider := _WIDER_TYPES.get((written.kind, type(kind)))):
            yield path, None, wider


def column_type_of(written: AvroType, inside: frozenset[int] = frozenset()) -> FoundType:  # noqa: PLR0911 - a table
    """Return the type for an Avro type; None for `null`, MIXED if recursive. `inside` has the enclosing types' ids."""
    if id(written) in inside or len(inside) > MAX_NESTING:
        return MIXED
    within = inside | {id(written)}
    match written.kind:
        case "null":
            return None
        case "union":
            branches = [part for part in written.parts if part.kind != "null"]
            return None if not branches else column_type_of(branches[0], within) if len(branches) == 1 else MIXED
        case "record":
            names = (names[0] for names in written.fields)
            parts = (column_type_of(part, within) for part in written.parts)
            return struct_of(dict(zip(names, parts, strict=True)))
        case "array":
            return ListOf(column_type_of(written.parts[0], within))
        case "map":
            return MapOf(column_type_of(written.parts[0], within))
    match written.logical:
        case "date":
            return "date"
        case "decimal":
            fits = written.precision <= _MAX_DIGITS
            return f"decimal({written.precision}, {written.scale})" if fits else MIXED
        case "time-millis" | "time-micros":
            return MIXED  # Spark cannot read a table with a column of times
        case logical if logical:
            return "timestamp" if logical.startswith("local-") else "timestamptz"
    if written.kind == "fixed":
        return f"fixed[{written.size}]" if written.size else MIXED  # Parquet has no column of length 0
    return _SCALAR_TYPES[written.kind]


def has_few_parts(written: AvroType) -> bool:
    """Return whether the type has at most `_MAX_PARTS` parts, counting a named type each time that it is used."""
    left, count = [(written, 0)], 0
    while left:
        one, depth = left.pop()
        count += 1
        if count > _MAX_PARTS:
            return False
        if depth <= MAX_NESTING:
            left += [(part, depth + 1) for part in one.parts]
    return True
