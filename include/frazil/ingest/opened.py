"""Creates the reader, the decoder and the writers of a stage task from its context."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial

from pyiceberg.io import load_file_io
from pyiceberg.schema import Schema

from frazil.ingest.aliases import aliased
from frazil.ingest.beside_value import value_schema
from frazil.ingest.contract import StageContext, StageTask, Target
from frazil.ingest.coordinates import record_schema
from frazil.ingest.decode import Decoder
from frazil.ingest.formats import decoder
from frazil.ingest.kafka import RangeReader
from frazil.ingest.range_turns import TurnReader
from frazil.ingest.readers import kafka_reader
from frazil.ingest.record_files import FileReader
from frazil.ingest.sealing import Unsealer
from frazil.ingest.sensitive import withheld_paths
from frazil.ingest.write import TableWriter
from frazil.spec.references import resolve_all


def open_writer(context: StageContext, target: Target, file_name: Callable[[], str]) -> TableWriter:
    """Open the writer of one table of the batch."""
    table = context.targets[target]
    return TableWriter(table, target, io=load_file_io(dict(table.io), location=table.folder), file_name=file_name)


def open_reader(context: StageContext, task: StageTask) -> RangeReader | TurnReader | FileReader:
    """Open a reader of the task's ranges in Kafka, or in a backfill's files."""
    if not context.files:
        return kafka_reader(resolve_all(context.kafka, os.environ), task.ranges, stream=context.stream)
    io = load_file_io(dict(context.main.io), location=context.files[0].path)
    schema = record_schema(Schema.model_validate_json(context.main.schema_json), context.coordinates)
    if context.transform:
        schema = Schema.model_validate_json(context.transform.records_json)
    unseal = Unsealer(context.sensitive.get("secret"), sensitive=bool(context.sensitive))
    return FileReader(context.files, task.ranges, io=io, schema=schema, unseal=unseal)


def open_decoder(context: StageContext, schema: Schema) -> Decoder:
    """Return a decoder that decodes the batch's records to the columns of a table with this schema."""
    if context.transform:
        from frazil.ingest.transform import transforming  # DuckDB, only where a transform is declared

        return transforming(context, record_schema(schema, context.coordinates))
    units = {schema.find_field(name).field_id: unit for name, unit in context.forms.items()}
    hidden = withheld_paths(context, schema)
    make = partial(decoder, context.record_format, evolution=context.evolution, hidden=hidden)
    return aliased(make, filled_schema(context, schema), units, context.aliases)


def filled_schema(context: StageContext, schema: Schema) -> Schema:
    """Return those columns of a table with this schema that a record's value fills."""
    return value_schema(record_schema(schema, context.coordinates), context.beside)
