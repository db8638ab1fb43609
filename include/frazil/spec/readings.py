"""Rules for how columns are read from records: from which field, and by which conversions."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import TYPE_CHECKING

from frazil.spec.formats import envelope_of
from frazil.spec.inconsistent import Problem
from frazil.spec.paths import FieldPath
from frazil.spec.upsert import find_tombstone_fields

if TYPE_CHECKING:
    from frazil.spec.column import Column
    from frazil.spec.model import StreamSpec

FORMATS_WITH_FIELD_NAMES = frozenset({"json", "avro", "protobuf"})
"""Formats whose records name their fields, so that fields without a column can be found."""


def find_problems(spec: StreamSpec) -> Iterator[Problem]:
    """Yield a problem for each reading setting that is not possible for its column."""
    if spec.source.columns:
        for column in spec.columns:
            for key in column.reading_settings():
                what = "describes a record's field, but a transform computes this column; move it to source.schema"
                yield Problem(f"schema.{column.name}.{key}", None, what)
    place = "source.schema" if spec.source.columns else "schema"
    read: defaultdict[str | int, dict[FieldPath, str]] = defaultdict(dict)  # by first step: overlapping paths share it
    by_name = {column.name: column for column in spec.record_columns}
    for column in spec.record_columns:
        if column.name in spec.beside_value or column.name == spec.rest:
            how = "a key or header" if column.name in spec.beside_value else "all other fields"
            for key in column.reading_settings():
                what = f"applies to fields of the value, but this column stores {how}; leave it out"
                yield Problem(f"{place}.{column.name}.{key}", None, what)
            continue
        if reason := _find_from_problem(spec, column):
            yield Problem(f"{place}.{column.name}.from", column.from_, reason)
        for key, value, reason in _find_conversion_problems(spec, column):
            yield Problem(f"{place}.{column.name}.{key}", value, reason)
        own = column.path
        neighbours = read[own[0]]
        for path, other in neighbours.items():
            outer = by_name[other] if len(path) < len(own) else column
            if _paths_overlap(path, own, spec.source.format.type) and not (
                len(path) != len(own) and _is_readable_json_text(spec, outer)
            ):
                named = column if column.from_ else by_name[other]
                what = f"is also read by the column {other if named is column else column.name}; keep only one of them"
                yield Problem(f"{place}.{named.name}.from", named.from_, f"{what}, or compute both with a transform")
        neighbours[own] = column.name


def _paths_overlap(one: FieldPath, other: FieldPath, form: str) -> bool:
    """Return whether two paths lead to the same field, or one field contains the other."""
    length = min(len(one), len(other))
    if form == "json" or len(one) == len(other):
        return one[:length] == other[:length]
    return all(a == b or (isinstance(a, int) and isinstance(b, int)) for a, b in zip(one, other, strict=False))


def _is_readable_json_text(spec: StreamSpec, column: Column) -> bool:
    """Return whether a column stores JSON text from which other columns can also be read."""
    return column.as_ == "json" and spec.source.format.type == "json" and envelope_of(spec.source.format) is None


def _find_from_problem(spec: StreamSpec, column: Column) -> str | None:  # noqa: PLR0911 - a table
    """Return why a column's `from` is not possible; None if it is possible or not declared."""
    if column.from_ is None:
        return None
    declared = spec.source.format
    if declared.type == "csv":
        return (
            "needs records whose fields have names; for csv, list the column at its position in source.format.columns"
        )
    if declared.type not in FORMATS_WITH_FIELD_NAMES:
        return f"needs records whose fields have names, but source.format is {declared.type}; leave it out"
    if envelope := envelope_of(declared):
        if column.name in envelope.metadata:
            return "applies to fields of the row, but envelope.metadata fills this column; leave it out"
        if len(column.path) > 1:
            return (
                "refers to a nested field, but an envelope's rows are compared by column; use a top-level field of "
                "`after`"
            )
    if column.name in find_tombstone_fields(spec):
        return (
            "cannot be used for this key column, which tombstones fill by field name; give the column the field's name"
        )
    dropped = spec.sensitive.dropped if spec.sensitive else ()
    path = tuple(str(step).lower() for step in column.path)
    if any(path[: len(one)] == tuple(name.lower() for name in one) for one in dropped):
        return "is a sensitive field that is dropped; remove the column, or protect the field in another way"
    return None


def _find_conversion_problems(spec: StreamSpec, column: Column) -> Iterator[tuple[str, object, str]]:
    """Yield each conversion that is not possible for a column: its key, its value and the reason."""
    declared = spec.source.format
    reading = column.reading_settings(spec.cast)
    conversions = [key for key in ("cast", "rounding", "null-if", "default") if reading.get(key) is not None]
    for key in [key for key in conversions if key != "default"] if declared.type == "csv" else ():
        instead = "set source.format.null instead, or use a transform" if key == "null-if" else "use a transform"
        yield key, reading[key], f"cannot be used with source.format csv, whose values have no types; {instead}"
    for key in conversions if declared.type in {"string", "bytes"} else ():
        yield (
            key,
            reading[key],
            f"needs records whose fields have names, but source.format is {declared.type}; leave it out",
        )
    if envelope_of(declared) and "cast" in reading:
        yield (
            "cast",
            "lenient",
            "has no effect in an envelope, whose types are those of the source's table; leave it out",
        )
    if "<" in column.type:
        written = {"cast": column.cast == "lenient", "null-if": column.null_if, "default": column.default is not None}
        for key in [key for key, is_written in written.items() if is_written]:
            yield (
                key,
                None,
                f"needs a column of a primitive type, but this one is {column.type}; read its fields with `from`",
            )
        return
    kind = column.type.partition("(")[0]
    if column.rounding and kind != "decimal":
        yield "rounding", column.rounding, f"needs a decimal, but the column is {column.type}; leave it out"
    elif column.rounding and "cast" not in reading:
        yield "rounding", column.rounding, "needs cast: lenient"
    if column.name in spec.key and (column.default is not None or column.null_if):
        key = "default" if column.default is not None else "null-if"
        yield key, None, "cannot be used for a key column, whose value each record must have; leave it out"
    if column.type and column.default is not None and not _may_be_value_of(column.default, kind, column.unit):
        yield "default", column.default, f"is not a valid value for a column of type {column.type}"


def _may_be_value_of(value: object, kind: str, unit: str | None) -> bool:
    """Return whether records may encode a value of the type as this kind of JSON value. Its content is checked when
    records are read.
    """
    if kind == "boolean" or isinstance(value, bool):
        return kind == "boolean" and isinstance(value, bool)
    if kind in {"int", "long"}:
        return isinstance(value, int)
    if kind in {"float", "double", "decimal"} or unit not in {None, "iso"}:
        return isinstance(value, int | float) or (kind == "decimal" and isinstance(value, str))
    return isinstance(value, str)
