"""Rules for how columns are read from records: from which field, and with which conversions."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from frazil.spec.formats import envelope_of, registry_of
from frazil.spec.upsert import find_tombstone_fields
from frazil.spec.values import FieldPath, Problem

if TYPE_CHECKING:
    from frazil.spec.column import Column
    from frazil.spec.formats import ValueFormat
    from frazil.spec.model import StreamSpec

FORMATS_WITH_FIELD_NAMES = frozenset({"json", "avro", "protobuf"})
"""Formats whose records name their fields, so that fields without a column can be found."""


def find_problems(spec: StreamSpec) -> Iterator[Problem]:
    if spec.source.columns:
        for column in spec.columns:
            for key in column.reading_settings():
                text = "describes a record's field, but a transform computes this column; move it to source.schema"
                yield Problem(f"schema.{column.name}.{key}", None, text)
    setting = "source.schema" if spec.source.columns else "schema"
    yield from _find_key_problems(spec, setting)
    of_keys, key_header_columns = {*spec.key_columns}, spec.key_header_columns
    for column in spec.record_columns:
        from_key = column.name in of_keys
        if not from_key and (column.name in key_header_columns or column.name == spec.rest):
            source = "a key or header" if column.name in key_header_columns else "all other fields"
            for key in column.reading_settings():
                text = f"applies to fields of the value, but this column stores {source}; leave it out"
                yield Problem(f"{setting}.{column.name}.{key}", None, text)
            continue
        if reason := _find_key_field_problem(spec, column) if from_key else _find_from_problem(spec, column):
            yield Problem(f"{setting}.{column.name}.from", None if from_key else column.from_, reason)
        declared = spec.key_format if from_key else spec.source.format
        for key, value, reason in _find_conversion_problems(spec, column, declared):
            yield Problem(f"{setting}.{column.name}.{key}", value, reason)
    of_value = [c for c in spec.record_columns if c.name not in key_header_columns and c.name != spec.rest]
    yield from _find_overlaps(of_value, spec.source.format, setting)
    yield from _find_overlaps([c for c in spec.record_columns if c.is_from_key], spec.key_format, setting)


def find_format_problem(declared: ValueFormat) -> str:
    """Return why a setting for named fields cannot be used with the format; empty if it can."""
    text = f"needs records whose fields have names, but source.format is {declared.type}; leave it out"
    return "" if declared.type in FORMATS_WITH_FIELD_NAMES else text


def _find_overlaps(columns: Sequence[Column], declared: ValueFormat, setting: str) -> Iterator[Problem]:
    read: defaultdict[str | int, dict[FieldPath, str]] = defaultdict(dict)  # by first step: overlapping paths share it
    by_name = {column.name: column for column in columns}
    for column in columns:
        for path, other in read[column.path[0]].items():
            outer = by_name[other] if len(path) < len(column.path) else column
            if _paths_overlap(path, column.path, declared.type) and not (
                len(path) != len(column.path) and _is_readable_json_text(declared, outer)
            ):
                owner = column if column.from_ else by_name[other]
                text = f"is also read by the column {other if owner is column else column.name}; keep only one of them"
                text = f"{text}, or compute both with a transform"
                yield Problem(
                    f"{setting}.{owner.name}.from", owner.from_ if isinstance(owner.from_, str) else None, text
                )
        read[column.path[0]][column.path] = column.name


def _find_key_problems(spec: StreamSpec, setting: str) -> Iterator[Problem]:
    form, key, whole_key = spec.key_format, spec.source.key, spec.whole_key_column
    parts = [column for column in spec.record_columns if column.is_from_key]
    reason = None
    if form.type not in FORMATS_WITH_FIELD_NAMES:
        reason = f"needs keys with fields, but source.format is {form.type}; declare source.key.format, such as json"
    elif form.type != "json" and registry_of(form) is None and not (key and (key.schema_file or key.schema_text)):
        reason = "needs the schema of keys; declare source.key.format and source.key.schema-file, or a registry"
    for column in parts if reason else ():
        yield Problem(f"{setting}.{column.name}.from", None, reason or "")
    if key and key.column is None and not parts:
        yield Problem("source.key.column", None, "is missing; declare it, or columns with `from: {key: …}`")
    if whole_key is None or key is None:
        return
    if reason:
        yield Problem("source.key.format", key.format, reason)
    elif form.type == "protobuf":
        text = "cannot store the whole key, which is a message; declare columns with `from: {key: …}` for its fields"
        yield Problem("source.key.column", whole_key, text)
    elif parts:
        text = (
            f"stores the whole key, and the column {parts[0].name} stores a field of the key; keep one of "
            "them, or set the format to string"
        )
        yield Problem("source.key.column", whole_key, text)
    elif any(column.name == whole_key and "<" in column.type for column in spec.record_columns):
        text = "stores the whole key in a nested type; declare columns with `from: {key: …}` for the fields of the key"
        yield Problem("source.key.column", whole_key, text)


def _find_key_field_problem(spec: StreamSpec, column: Column) -> str | None:
    if column.name == spec.rest or column.name in {header.column for header in spec.source.headers}:
        return "is a field of the key, but a header or rest also fills the column; keep one of them"
    if column.name in spec.key and envelope_of(spec.source.format):
        return "cannot be used for a column that `key` lists: the row in the envelope fills such a column; leave it out"
    return _DROPPED if _is_dropped(spec, column) else None


def _paths_overlap(first: FieldPath, other: FieldPath, form: str) -> bool:
    length = min(len(first), len(other))
    if form == "json" or len(first) == len(other):
        return first[:length] == other[:length]
    return all(a == b or (isinstance(a, int) and isinstance(b, int)) for a, b in zip(first, other, strict=False))


def _is_readable_json_text(declared: ValueFormat, column: Column) -> bool:
    is_json = column.as_ == "json" or column.type == "variant"
    return is_json and declared.type == "json" and envelope_of(declared) is None


def _find_from_problem(spec: StreamSpec, column: Column) -> str | None:  # noqa: PLR0911 - a table
    if column.from_ is None:
        return None
    declared = spec.source.format
    if declared.type == "csv":
        return (
            "needs records whose fields have names; for csv, list the column at its position in source.format.columns"
        )
    if reason := find_format_problem(declared):
        return reason
    if envelope := envelope_of(declared):
        if column.name in envelope.metadata:
            return "applies to fields of the row, but envelope.metadata fills this column; leave it out"
        if len(column.path) > 1:
            return (
                "refers to a nested field, but an envelope's rows are compared by column; use a top-level field of "
                "`after`"
            )
    if column.name in spec.key and column.name in find_tombstone_fields(spec):
        return (
            "cannot be used for this key column, which tombstones fill by field name; give the column the field's "
            "name, or write `from: {key: …}`"
        )
    return _DROPPED if _is_dropped(spec, column) else None


_DROPPED = "is a sensitive field that is dropped; remove the column, or protect the field in another way"


def _is_dropped(spec: StreamSpec, column: Column) -> bool:
    dropped = spec.sensitive.dropped_fields if spec.sensitive else ()
    path = tuple(str(step).lower() for step in column.path)
    return any(path[: len(prefix)] == tuple(name.lower() for name in prefix) for prefix in dropped)


def _find_conversion_problems(
    spec: StreamSpec, column: Column, declared: ValueFormat
) -> Iterator[tuple[str, object, str]]:
    reading = column.reading_settings(spec.cast)
    if reading.get("cast") == "strict":
        del reading["cast"]
    conversions = [key for key in ("cast", "rounding", "null-if", "default") if reading.get(key) is not None]
    for key in [key for key in conversions if key != "default"] if declared.type == "csv" else ():
        instead = "set source.format.null instead, or use a transform" if key == "null-if" else "use a transform"
        yield key, reading[key], f"cannot be used with source.format csv, whose values have no types; {instead}"
    for key in conversions if declared.type in {"string", "bytes"} else ():
        yield key, reading[key], find_format_problem(declared)
    if envelope_of(declared) and "cast" in reading:
        text = "has no effect in an envelope, whose types are those of the source's table; leave it out"
        yield "cast", "lenient", text
    if "<" in column.type:
        written = {"cast": column.cast == "lenient", "null-if": column.null_if, "default": column.default is not None}
        for key in [key for key, is_written in written.items() if is_written]:
            text = f"needs a column of a primitive type, but this one is {column.type}; read its fields with `from`"
            yield key, None, text
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
    """Return whether a value's YAML type suits the column. The decoder checks its content."""
    if kind == "boolean" or isinstance(value, bool):
        return kind == "boolean" and isinstance(value, bool)
    if kind in {"int", "long"}:
        return isinstance(value, int)
    if kind in {"float", "double", "decimal"} or unit not in {None, "iso"}:
        return isinstance(value, int | float) or (kind == "decimal" and isinstance(value, str))
    return isinstance(value, str)
