"""CPU of decoding the same records as JSON and as Avro, side by side.

    .venv/bin/python -m bench.formats [--records 100000] [--repeats 5]

Ticks of 127 bytes as JSON, and records of 1 KB with 40 columns, two of them nested. Avro's are behind a schema id, as
the serializers of a registry write them. Least CPU (user + system) of the rounds, in core-seconds per million records;
one round decodes a chunk of each format.

On 2 cores with much beside them (load 9):

| records | format | bytes | core-s per million |
|---|---|---|---|
| ticks | JSON | 127 | 0.31 |
| ticks | Avro | 49 | 0.33 |
| wide | JSON | 1,025 | 2.87 |
| wide | Avro | 527 | 3.00 |
"""

from __future__ import annotations

import argparse
import gc
import io
import json
import time
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import fastavro
from pyiceberg.schema import Schema

from bench.peer.records import FRAZIL, KINDS, Column, Records
from frazil.ingest.chunk import Chunk
from frazil.ingest.decode import Decoder
from frazil.ingest.formats import decoder
from frazil.ingest.formats.avro.decoder import AvroDecoder
from frazil.registry.client import SchemaText
from frazil.spec import iceberg
from frazil.spec.load import validate_stream

FRAME = b"\0\0\0\0\1"


class OneSchema:
    """A registry of one schema."""

    def __init__(self, schema: Any) -> None:
        self._text = SchemaText("AVRO", json.dumps(schema))

    def ask(self, _: Sequence[int], /) -> None:
        pass

    def get(self, _: int, /) -> SchemaText:
        return self._text


def avro_type(column: Column, name: str) -> Any:
    """Optional, as most fields are."""
    if column.type == "timestamptz":
        return ["null", {"type": "long", "logicalType": "timestamp-micros"}]
    return ["null", column.type if isinstance(column.type, str) else avro_record(column.type, name)]


def avro_record(columns: tuple[Column, ...], name: str) -> Any:
    fields = [{"name": c.name, "type": avro_type(c, f"{name}_{c.name}")} for c in columns]
    return {"type": "record", "name": name, "fields": fields}


def schema_of(records: Records) -> Schema:
    stream = {
        "name": "s",
        "source": {"topics": ["t"], "bootstrap-servers": "broker:9092"},
        "table": "a.b",
        "schema": {column.name: column.type_in(FRAZIL) for column in records.columns},
        "event-time": "ts",
        "coordinates": False,
        "complete": "none",
    }
    return iceberg.schema(validate_stream(stream, Path("s.yaml")))


def as_avro(values: list[bytes], written: Any) -> list[bytes]:
    parsed = fastavro.parse_schema(written)
    found = []
    for value in values:
        record = json.loads(value)
        record["ts"] = datetime.fromisoformat(record["ts"])
        out = io.BytesIO(FRAME)
        out.seek(len(FRAME))
        fastavro.schemaless_writer(out, parsed, record)
        found.append(out.getvalue())
    return found


def cost(decode: Decoder, chunk: Chunk) -> float:
    """Core-seconds per million records."""
    started = time.process_time()
    decoded = decode(chunk)
    spent = time.process_time() - started
    if len(decoded.kept) != len(chunk):
        raise RuntimeError(f"rejected: {decoded.rejections[:1]}")
    return spent / len(chunk) * 1e6


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--records", type=int, default=100_000)
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    gc.disable()
    for name, records in KINDS.items():
        values = [records.value(i) for i in range(arguments.records // (8 if name == "wide" else 1))]
        schema, written = schema_of(records), avro_record(records.columns, "R")
        encoded = as_avro(values, written)
        made: dict[str, tuple[Decoder, list[bytes]]] = {
            "json": (decoder("json", schema, {}), values),
            "avro": (AvroDecoder(schema, {}, OneSchema(written)), encoded),
        }
        chunks = {of: Chunk.of_values(data) for of, (_, data) in made.items()}
        rows = [made[of][0](chunks[of]).rows for of in made]
        if rows[0] != rows[1]:
            raise RuntimeError("the formats do not agree")
        least = dict.fromkeys(made, float("inf"))
        for _ in range(arguments.repeats):
            for of, (decode, _) in made.items():
                least[of] = min(least[of], cost(decode, chunks[of]))
        for of, (_, data) in made.items():
            size = sum(map(len, data)) / len(data)
            print(f"{name:6} {of:6} {size:5.0f} bytes {least[of]:6.2f}  {least[of] / least['json']:.2f} of json")


if __name__ == "__main__":
    main()
