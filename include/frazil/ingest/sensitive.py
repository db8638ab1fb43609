"""Masks, hashes or tokenizes sensitive columns before records are staged, logged or stored as dead letters."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.schema import Schema

from frazil.errors import FrazilError, SpecError
from frazil.ingest.arrow_values import child_arrays, with_children
from frazil.ingest.contract import StageContext
from frazil.ingest.decode import Rejection
from frazil.ingest.schema_drift import Path
from frazil.ingest.sealing import OMITTED, RESERVED_PREFIX, Sealer
from frazil.spec.column import RESERVED_COLUMNS as COORDINATE_NAMES

MASK = "****"
WITHHELD_TEXT = "the text is withheld, because the stream has sensitive fields"

TextChange = Callable[[pa.Array], pa.Array]


class Protector:
    def __init__(self, context: StageContext) -> None:
        """Raises SpecError if the secret or a column is missing, or if a dropped field still has a column."""
        declared = context.sensitive
        schema = context.main.schema
        columns = {field.lower(): field for field in (*context.aliases, *schema.column_names)}
        for field in declared["dropped"]:
            if (filled := columns.get(field.lower())) is not None:
                raise SpecError(
                    f"the sensitive field {field!r} is dropped, but the table has the column {filled!r}, which records "
                    f"would fill. Nothing was written. Drop the column first: frazil evolve STREAM --drop {filled}"
                )
        self._sealer = Sealer.of(declared["secret"], os.environ) if declared["secret"] else None
        self._dead_letters: str = declared["dead-letters"]
        self._names = sorted(schema.column_names, key=len, reverse=True)
        self._changes = [
            (_split_path(schema, name), self._create_change(rule["as"], rule["keep-last"]))
            for name, rule in declared["fields"].items()
        ]

    def _create_change(self, protection: str, keep_last: int) -> TextChange:
        if protection == "mask":
            return partial(_mask_texts, keep_last=keep_last)
        assert self._sealer is not None, "the declaration's rules require a secret"
        return partial(_map_distinct, self._sealer.hash_text if protection == "hash" else self._sealer.tokenize)

    def __call__(self, rows: pa.Table) -> pa.Table:
        for (first, *nested), change in self._changes:
            position = rows.schema.get_field_index(first)
            column = rows.column(position)
            changed = [_apply_change(chunk, nested, change) for chunk in column.chunks]
            rows = rows.set_column(position, rows.schema.field(position), pa.chunked_array(changed, column.type))
        return rows

    @property
    def secret(self) -> str:
        """The secret's fingerprint; empty without a secret."""
        return self._sealer.fingerprint if self._sealer else ""

    def mask_errors(self, rejections: Sequence[Rejection]) -> list[Rejection]:
        """Return the rejections without texts that may quote a value."""
        fields = (
            next((f"{name}: " for name in self._names if r.error.startswith(f"{name}: ")), "") for r in rejections
        )
        return [r._replace(error=f"{field}{WITHHELD_TEXT}") for r, field in zip(rejections, fields, strict=True)]

    def dead_letter_value(self, value: bytes | None, part_name: str) -> bytes | None:
        """Return what a dead letter stores for a part of a record: the part, its encryption, or a placeholder."""
        if value is None:
            return None
        if self._dead_letters == "keep" and not value.startswith(RESERVED_PREFIX):
            return value
        if self._dead_letters != "encrypt":  # or a producer sent bytes that look like a placeholder
            return OMITTED
        assert self._sealer is not None, "the declaration's rules require a secret"
        return self._sealer.encrypt(value, part_name)


def hidden_paths(context: StageContext, schema: Schema) -> list[Path]:
    """Return the lower-case paths of sensitive and dropped fields, under the columns' names and aliases."""
    if not context.sensitive:
        return []
    paths = [tuple(name.lower().split(".")) for name in (*context.sensitive["fields"], *context.sensitive["dropped"])]
    columns = {field.field_id: field.name.lower() for field in schema.fields}
    other_paths = [
        (alias.lower(), *path[1:])
        for alias, field_id in context.aliases.items()
        for path in paths
        if path[0] == columns.get(field_id)
    ]
    return [*paths, *other_paths]


def withheld_paths(context: StageContext, schema: Schema) -> list[Path]:
    hidden = hidden_paths(context, schema)
    if not context.is_in_topic_format:
        hidden += [(name,) for name in COORDINATE_NAMES]  # lines of a file have coordinates as fields
    return hidden


def to_safe_error(error: Exception, context: StageContext) -> Exception:
    """Return an error without messages of other libraries, which may quote values."""
    if not context.sensitive or isinstance(error, FrazilError):
        return error
    return RuntimeError(f"{type(error).__name__}: {WITHHELD_TEXT}")


def _split_path(schema: Schema, name: str) -> list[str]:
    try:
        schema.find_field(name)
    except ValueError:
        raise SpecError(
            f"the sensitive field {name!r} is not a column of the table. Nothing was written, because the value "
            "might be unprotected. Change sensitive.fields to the column's name in the table"
        ) from None
    return name.split(".")


def _apply_change(array: pa.Array, steps: Sequence[str], change: TextChange) -> pa.Array:
    """Apply `change` to the strings at this path. Nulls at any level stay null."""
    if not steps:
        return change(array).cast(array.type)
    first, nested = steps[0], steps[1:]
    if not pa.types.is_struct(array.type):
        array = pa.concat_arrays([array]) if not array.offset else array.take(pa.array(range(len(array))))
    children = child_arrays(array)
    index = array.type.get_field_index(first) if pa.types.is_struct(array.type) else 0 if first == "key" else -1
    children[index] = _apply_change(children[index], nested, change)
    return with_children(array, children, array.type)


def _mask_texts(texts: pa.Array, *, keep_last: int) -> pa.Array:
    hidden = pc.if_else(texts.is_valid(), pa.scalar(MASK, texts.type), pa.scalar(None, texts.type))
    if not keep_last:
        return hidden
    masked = pc.binary_join_element_wise(hidden, pc.utf8_slice_codeunits(texts, -keep_last), pa.scalar("", texts.type))
    return pc.if_else(pc.greater_equal(pc.utf8_length(texts), 2 * keep_last), masked, hidden)


def _map_distinct(make: Callable[[str], str], texts: pa.Array) -> pa.Array:
    encoded = texts.dictionary_encode()
    mapped = pa.array([None if text is None else make(text) for text in encoded.dictionary.to_pylist()], pa.string())
    return mapped.take(encoded.indices)
