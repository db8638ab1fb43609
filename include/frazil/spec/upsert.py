"""Rules for `mode: upsert` (its key, the order of changes, deletes), and for `dedupe`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field, model_validator

from frazil.spec.column import RESERVED_COLUMNS
from frazil.spec.formats import POSITION, AvroFormat, JsonFormat, ProtobufFormat, envelope_of
from frazil.spec.types import name_key
from frazil.spec.values import Model, Names, PositiveDuration, Problem, Rules, YamlForm, suggest_names

if TYPE_CHECKING:
    from frazil.spec.column import Column
    from frazil.spec.model import StreamSpec

TOMBSTONES = "tombstones"
ENVELOPE_FIELDS = ("source", "transaction", "op", "ts_ms", "ts_us", "ts_ns")
"""The first names that a path in `Envelope.metadata` can have."""
UNKEYABLE_TYPES = ("float", "double", "variant")
"""Types that a key column cannot have: NaN equals nothing, and floats that look equal may differ.
The bytes of a variant depend on the order of its fields.
"""
ORDERABLE_TYPES = ("int", "long", "decimal", "date", "time", "timestamp", "timestamptz", "string")
UNSORTED = ("source.gtid", "source.file", "source.sequence", "source.scn", "source.commit_scn", "transaction.id")
"""Envelope fields whose strings are not in order: `…:10` sorts before `…:9`. GTIDs of two servers have no order."""
DELETE_TYPES: dict[str, type] = {"string": str, "int": int, "long": int, "boolean": bool}
"""Types of the column that marks deletes, with the Python type of its values in YAML."""


class Delete(Model):
    """The records that delete the row of their key: `tombstones`, or a mapping."""

    column: str | None = None
    """The column that marks deletes."""
    values: tuple[str | int | bool, ...] = ()
    """The values of `column` that mark a delete."""
    tombstones: bool = False
    """A record without a value deletes the row of its Kafka key. This key is, or contains, all key columns."""

    @model_validator(mode="before")
    @classmethod
    def _expand_short_form(cls, value: object) -> object:
        return {TOMBSTONES: True} if value == TOMBSTONES else value

    def find_conflicts(self) -> Iterator[str]:
        if self.column is None and not self.tombstones:
            yield "does not specify which records are deletes; write tombstones, or {column: op, values: [d]}"
        if (self.column is None) == bool(self.values):
            yield "needs both a column and the values that mark a delete"


MergeMode = Literal["auto", "copy-on-write", "merge-on-read"]


def _check_append(spec: StreamSpec) -> Iterator[Problem]:
    if spec.mode != "append":
        return
    if envelope_of(spec.source.format):
        text = "has changes of rows, which an append would store as separate rows; add mode: upsert and a key"
        yield Problem("source.format.envelope", None, text)
    for name, value in (("key", spec.key), ("order-by", spec.order_by), ("delete", spec.delete)):
        if value:
            yield Problem(name, None, "needs mode: upsert; add it, or leave this out")
    if spec.merge != "auto":
        yield Problem("merge", spec.merge, "needs mode: upsert; add it, or leave this out")


def _check_key(spec: StreamSpec) -> Iterator[Problem]:
    if spec.mode == "upsert" and not spec.key:
        yield Problem("key", None, "is missing; mode: upsert needs the columns that identify a row")


def _check_key_columns(spec: StreamSpec) -> Iterator[Problem]:
    if spec.mode == "upsert":
        yield from _find_key_problems(spec, "key", spec.key)


def _columns_by_name(spec: StreamSpec) -> dict[str, Column]:
    return {column.name: column for column in spec.columns}


def _find_key_problems(spec: StreamSpec, where: str, key: tuple[str, ...]) -> Iterator[Problem]:
    columns = _columns_by_name(spec)
    for index, name in enumerate(key):
        setting = f"{where}.{index}"
        if (column := columns.get(name)) is None:
            yield Problem(setting, name, f"is not a column of the schema{suggest_names(name, columns)}")
        elif "<" in column.type or column.type in UNKEYABLE_TYPES:
            yield Problem(setting, name, f"is a column of type {column.type}, which cannot identify rows")
        elif not column.required:
            yield Problem(setting, name, "may be null; declare the column `not null`")
        elif name in key[:index]:
            yield Problem(setting, name, "is named twice")
        elif spec.sensitive and (rule := spec.sensitive.kept_fields.get(name)) and rule.as_ == "mask":
            yield Problem(setting, name, "is masked, so it no longer identifies rows; hash or tokenize it")


def _check_order(spec: StreamSpec) -> Iterator[Problem]:
    if (name := spec.order_by) is None or spec.mode == "append":
        return
    columns = _columns_by_name(spec)
    if (column := columns.get(name)) is None:
        yield Problem("order-by", name, f"is not a column of the schema{suggest_names(name, columns)}")
    elif column.type and column.type.partition("(")[0] not in ORDERABLE_TYPES:
        yield Problem("order-by", name, f"is a column of type {column.type}; use one of {', '.join(ORDERABLE_TYPES)}")
    elif spec.sensitive and name in spec.sensitive.kept_fields:
        text = "is a sensitive field, whose protected values have a different order; name another column"
        yield Problem("order-by", name, text)


def _check_delete(spec: StreamSpec) -> Iterator[Problem]:
    if (delete := spec.delete) is None or spec.mode == "append":
        return
    columns = _columns_by_name(spec)
    if (name := delete.column) is not None:
        if (column := columns.get(name)) is None:
            yield Problem("delete.column", name, f"is not a column of the schema{suggest_names(name, columns)}")
        elif column.type and (kind := DELETE_TYPES.get(column.type)) is None:
            text = f"is a column of type {column.type}; use one of {', '.join(DELETE_TYPES)}"
            yield Problem("delete.column", name, text)
        elif column.type:
            for index, value in enumerate(delete.values):
                if type(value) is not kind:
                    text = f"is not a value of the column {name}, which is {column.type}"
                    yield Problem(f"delete.values.{index}", value, text)
    if find_tombstone_fields(spec) and not _keys_have_fields(spec):
        text = (
            "needs the keys of records: declare source.key, with its column as the only column of key. With json, or "
            "with avro or protobuf and a registry, source.key can be left out: fields of the keys fill the columns"
        )
        yield Problem("delete.tombstones", True, text)


def find_tombstone_fields(spec: StreamSpec) -> tuple[str, ...]:
    """Return the key columns that tombstones fill from fields of their Kafka keys."""
    if spec.delete is None or not spec.delete.tombstones:
        return ()
    return tuple(name for name in spec.key if name not in spec.key_header_columns)


def _keys_have_fields(spec: StreamSpec) -> bool:
    """Return whether the keys of records have fields, assuming the format of the values."""
    declared = spec.source.format
    return (isinstance(declared, JsonFormat) and not declared.lines) or (
        isinstance(declared, AvroFormat | ProtobufFormat) and declared.registry is not None
    )


def _check_envelope(spec: StreamSpec) -> Iterator[Problem]:
    if (envelope := envelope_of(spec.source.format)) is None or spec.mode == "append":
        return
    columns = _columns_by_name(spec)
    if spec.delete is not None:
        text = "is not needed, because the envelope's events mark deletes themselves; leave it out"
        yield Problem("delete", None, text)
    for name, path in envelope.metadata.items():
        setting = f"source.format.envelope.metadata.{name}"
        if (column := columns.get(name)) is None:
            yield Problem(setting, path, f"is not a column of the schema{suggest_names(name, columns)}")
        elif name in spec.key:
            yield Problem(setting, path, "is a key column, which the row itself fills; leave it out")
        elif path == POSITION:
            if column.type not in {"string", ""}:
                yield Problem(setting, path, f"is a string, but the column is {column.type}; make it string")
            elif column.required:
                yield Problem(
                    setting, path, "is null for a snapshot's rows, but the column is not null; remove not null"
                )
        elif path.split(".")[0] not in ENVELOPE_FIELDS or not all(path.split(".")) or path.startswith("op."):
            text = f"is not a field of an envelope; it begins with {', '.join(ENVELOPE_FIELDS)}, or is {POSITION}"
            yield Problem(setting, path, text)
        elif name == spec.order_by and path in UNSORTED and column.type in {"string", ""}:
            text = (
                "has numbers, which sort wrongly in a string column, so it cannot be order-by; use a numeric column or "
                f"{POSITION}"
            )
            yield Problem(setting, path, text)
        elif other := next((n for n, p in envelope.metadata.items() if _read_path(p).startswith(f"{path}.")), None):
            yield Problem(
                setting, path, f"is an object, and the column {other} reads a field in it; remove one of them"
            )


def _read_path(path: str) -> str:
    """Return the path of a field that a metadata column reads: for the position, one of several in `source`."""
    return "source.lsn" if path == POSITION else path


def _check_transactions(spec: StreamSpec) -> Iterator[Problem]:
    envelope = envelope_of(spec.source.format)
    if envelope is None or (topic := envelope.transactions) is None or spec.mode == "append":
        return
    setting = "source.format.envelope.transactions"
    if len(spec.source.topics) != 1:
        text = "needs exactly one topic of events in source.topics, so that transactions are in order"
        yield Problem(setting, topic, text)
    elif topic in spec.source.topics:
        yield Problem(setting, topic, "is the topic of the events; name the connector's topic of transactions")
    if isinstance(spec.source.format, AvroFormat) and spec.source.format.registry is None:
        yield Problem(setting, topic, "needs a registry, because that topic's records have their own schema")
    if spec.order_by is None:
        text = "needs order-by; without it, events that the connector repeats would show part of an older transaction"
        yield Problem(setting, topic, text)


def _check_reserved_names(spec: StreamSpec) -> Iterator[Problem]:
    """Yield a problem for each column named like a coordinate: change files always store coordinates."""
    if spec.mode == "upsert" and not spec.coordinates:
        for column in spec.columns:
            if name_key(column.name) in RESERVED_COLUMNS:
                text = "has the name of a coordinate, which each change stores in any case; rename it"
                yield Problem(f"schema.{column.name}", column.name, text)


class Dedupe(Model):
    """Drops repeats: of rows with the same key and close event times, only the first is kept."""

    key: Annotated[Names, YamlForm("column, or list of columns")] = Field(min_length=1)
    """The columns in which a row and its repeats are equal."""
    within: PositiveDuration
    """The maximum difference in event time between repeats."""


def _check_dedupe(spec: StreamSpec) -> Iterator[Problem]:
    if spec.dedupe is not None:
        yield from _find_key_problems(spec, "dedupe.key", spec.dedupe.key)


_CHANGES = ("schema", "mode", "source.format", "order-by")
RULES: Rules = (
    (_check_append, ("mode", "key", "order-by", "delete", "merge", "source.format")),
    (_check_key, ("mode", "key")),
    (_check_key_columns, ("schema", "mode", "key")),
    (_check_order, ("schema", "mode", "order-by")),
    (_check_delete, ("schema", "mode", "key", "delete", "source.format", "source.key", "source.headers")),
    (_check_envelope, (*_CHANGES, "key", "delete")),
    (_check_transactions, (*_CHANGES, "source.topics", "source.topic-pattern")),
    (_check_reserved_names, ("schema", "mode", "coordinates")),
    (_check_dedupe, ("schema", "dedupe")),
)
