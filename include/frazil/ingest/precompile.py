"""Compiles the loops before the first batch, about 15 CPU seconds: `python -m frazil.ingest.precompile`."""

from __future__ import annotations

import pyarrow as pa
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField, StringType

from frazil.ingest.binary_arrays import header_column
from frazil.ingest.chunk import BinaryColumn, RecordChunk
from frazil.ingest.formats import PlainFormat, create_decoder
from frazil.ingest.kafka_loop import compile_loop
from frazil.ingest.variants import VariantEncoder
from frazil.pyiceberg_fixes import VariantType

COMPILED_FORMATS: tuple[PlainFormat, ...] = (
    "json",
    {"type": "string", "column": "s"},
    {"type": "csv", "columns": ["s", "l"]},
    {"type": "avro", "schema-text": '{"type": "record", "name": "R", "fields": [{"name": "s", "type": "string"}]}'},
    {"type": "protobuf", "schema-text": 'syntax = "proto3"; message R { string s = 1; int64 l = 2; }'},
)
"""Formats to compile. Decoding or rejecting the record in `main` compiles a format's loop."""


def main() -> None:
    compile_loop()
    schema = Schema(NestedField(1, "s", StringType()), NestedField(2, "l", LongType()))
    header_column(BinaryColumn.nulls(1), "h", 1)
    variants = pa.table({"v": pa.array(["{}"], pa.large_string())})
    VariantEncoder(Schema(NestedField(1, "v", VariantType())))(variants)
    for plain in COMPILED_FORMATS:
        create_decoder(plain, schema, {})(RecordChunk.of_values([b'{"s":"x","l":1}']))


if __name__ == "__main__":
    main()
