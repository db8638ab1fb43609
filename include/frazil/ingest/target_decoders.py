"""Decodes each record of a routed stream with the columns of its own table, after a pass that selects the table."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from functools import partial

import pyarrow as pa
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema

from frazil.ingest.chunk import RecordChunk
from frazil.ingest.contract import StageContext, Target, is_routed
from frazil.ingest.coordinates import record_schema
from frazil.ingest.decode import DecodedChunk, Decoder
from frazil.ingest.formats import create_decoder
from frazil.ingest.formats.fields import Unit, may_have_aliases, units_of_fields
from frazil.ingest.key_header_columns import value_schema
from frazil.ingest.routed_writers import other_names
from frazil.ingest.sensitive import withheld_paths
from frazil.ingest.shaper import RecordDecoder, create_aliased_decoder
from frazil.spec.formats import envelope_of, parse_format
from frazil.spec.reading_rules import FORMATS_WITH_FIELD_NAMES

FIRST_PASS: Target = ".first-pass"
"""The target of chunks that are decoded only to select tables."""


def find_equal_targets(context: StageContext) -> Mapping[Target, Target] | None:
    """Map each target to one target with the same columns, so that one decoder reads the records of all these targets.

    Returns None if one decoder suffices for all targets, as with a transform. If tables may evolve, the map is empty,
    because a decoder reports drift for one table.
    """
    routed = [target for target in context.targets if is_routed(target)]
    if (
        context.destinations is None
        or context.transform
        or parse_format(context.record_format).type not in FORMATS_WITH_FIELD_NAMES
    ):
        return None
    if context.evolution != "off":
        return {}
    schemas: dict[str, pa.Schema] = {}
    for target in ("main", *routed):
        text = context.targets[target].schema_json
        if text not in schemas:
            schemas[text] = schema_to_pyarrow(Schema.model_validate_json(text), include_field_ids=False)
    main = schemas[context.main.schema_json]
    equal = {target: "main" for target in routed if schemas[context.targets[target].schema_json].equals(main)}
    return None if len(equal) == len(routed) else equal


def context_for_target(context: StageContext, target: Target) -> StageContext:
    """Return the context with the target's table as `main`, and with that table's column names."""
    if target == FIRST_PASS:
        return _first_pass_context(context)
    if not is_routed(target):
        return context
    routed, main, changes, sensitive = context.targets[target], context.main, context.changes, dict(context.sensitive)
    schema = routed.schema
    columns = set(schema.column_names)
    names = other_names(routed.schema_json, routed.properties, main.schema_json, main.properties)
    main_names = {
        name: column for column, names_ in names.items() for name in names_
    }  # main's names of renamed columns

    def own_names(columns: Iterable[str]) -> tuple[str, ...]:
        first_rest = (column.partition(".") for column in columns)
        return tuple(main_names.get(first, first) + dot + nested for first, dot, nested in first_rest)

    if changes:
        changes = dataclasses.replace(
            changes,
            key=own_names(changes.key),
            required=own_names(changes.required),
            key_fields=own_names(changes.key_fields),
            delete_column=changes.delete_column and main_names.get(changes.delete_column, changes.delete_column),
        )
    if sensitive:
        moved = zip(own_names(sensitive["fields"]), sensitive["fields"].values(), strict=True)
        sensitive["fields"] = dict(moved)
    named_units = zip(own_names(context.units), context.units.values(), strict=True)
    units = {name: unit for name, unit in named_units if name in columns}
    aliases = {name: column for name, column in main_names.items() if may_have_aliases(units.get(column))}
    return dataclasses.replace(
        context,
        targets={**context.targets, "main": routed},
        units=units,
        aliases={name: schema.find_field(column).field_id for name, column in aliases.items()},
        changes=changes,
        sensitive=sensitive,
    )


def _first_pass_context(context: StageContext) -> StageContext:
    """Return a context with only the columns that select the table, and an upsert stream's key and envelope columns."""
    assert context.destinations is not None
    envelope, changes = envelope_of(parse_format(context.record_format)), context.changes
    names = {context.destinations.name, *(changes.key if changes else ()), *(envelope.metadata if envelope else ())}
    schema = context.main.schema
    schema = Schema(*(field for field in schema.fields if field.name in names))
    main = dataclasses.replace(
        context.main, schema_json=schema.model_dump_json(), spec_json=PartitionSpec().model_dump_json()
    )
    ids = {field.field_id for field in schema.fields}
    return dataclasses.replace(
        context,
        targets={**context.targets, "main": main},
        units={name: unit for name, unit in context.units.items() if name in names},
        key_header_columns={name: header for name, header in context.key_header_columns.items() if name in names},
        aliases={name: field_id for name, field_id in context.aliases.items() if field_id in ids},
        changes=changes and dataclasses.replace(changes, required=(), delete_column=None, delete_values=()),
        evolution="off",
    )


class TargetDecoder:
    def __init__(self, context: StageContext) -> None:
        self._context = context
        self._made: dict[Target, Decoder] = {}

    def __call__(self, chunk: RecordChunk) -> DecodedChunk:
        if chunk.target not in self._made:
            context = context_for_target(self._context, chunk.target)
            schema = context.main.schema
            needs_no_value = chunk.target == FIRST_PASS and not select_value_columns(context, schema).fields
            decode = DecodedChunk.without_columns if needs_no_value else open_decoder(context, schema)
            self._made[chunk.target] = RecordDecoder(context, schema, decode)
        return self._made[chunk.target](chunk)


def open_decoder(context: StageContext, schema: Schema) -> Decoder:
    """Return a decoder that converts the batch's records to the columns of this schema."""
    if context.transform:
        from frazil.ingest.transform import create_transformed_decoder  # DuckDB, only where a transform is declared

        return create_transformed_decoder(context, record_schema(schema, context.coordinates))
    hidden = withheld_paths(context, schema)
    make = partial(create_decoder, context.record_format, evolution=context.evolution, hidden=hidden)
    filled = select_value_columns(context, schema)
    lenient: dict[int, Unit] = {
        field.field_id: {"cast": "lenient"}
        for field in filled.fields
        if context.is_lenient and field.field_type.is_primitive
    }
    units = lenient | units_of_fields(filled, context.record_units)
    return create_aliased_decoder(make, filled, units, context.aliases)


def select_value_columns(context: StageContext, schema: Schema) -> Schema:
    return value_schema(record_schema(schema, context.coordinates), context.filled_from_keys_and_headers)
