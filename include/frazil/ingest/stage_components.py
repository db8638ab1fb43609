"""Creates the reader, the decoder and the writers of a stage task from its context."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial

from pyiceberg.io import load_file_io
from pyiceberg.schema import Schema

from frazil.ingest.aliases import create_aliased_decoder
from frazil.ingest.contract import StageContext, StageTask, Target
from frazil.ingest.coordinates import record_schema
from frazil.ingest.decode import Decoder
from frazil.ingest.formats import create_decoder
from frazil.ingest.formats.fields import Unit
from frazil.ingest.key_header_columns import units_of_fields, value_schema
from frazil.ingest.range_reader import RangeReader
from frazil.ingest.readers import MultiPassReader, create_kafka_reader
from frazil.ingest.record_files import FileReader
from frazil.ingest.sealing import Unsealer
from frazil.ingest.sensitive import withheld_paths
from frazil.ingest.table_writer import TableWriter
from frazil.spec.references import resolve_properties


def open_writer(context: StageContext, target: Target, file_name: Callable[[], str]) -> TableWriter:
    table = context.targets[target]
    return TableWriter(table, target, io=load_file_io(dict(table.io), location=table.folder), file_name=file_name)


def open_reader(context: StageContext, task: StageTask) -> RangeReader | MultiPassReader | FileReader:
    if not context.files:
        return create_kafka_reader(resolve_properties(context.kafka, os.environ), task.ranges, stream=context.stream)
    io = load_file_io(dict(context.main.io), location=context.files[0].path)
    schema = record_schema(Schema.model_validate_json(context.main.schema_json), context.coordinates)
    if context.transform:
        schema = Schema.model_validate_json(context.transform.records_json)
    unseal = Unsealer(context.sensitive.get("secret"), sensitive=bool(context.sensitive))
    return FileReader(context.files, task.ranges, io=io, schema=schema, unseal=unseal)


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
    """Return the columns of this schema that the value of a record fills."""
    return value_schema(record_schema(schema, context.coordinates), context.filled_from_keys_and_headers)
