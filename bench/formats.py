"""CPU of decoding the same records as JSON and as Avro, side by side.

    .venv/bin/python -m bench.formats [--records 100000] [--repeats 5]

Ticks of 127 bytes as JSON, and records of 1 KB with 40 columns, two of them nested. Avro's are behind a schema id, as
the serializers of a registry write them. Least CPU (user + system) of the rounds, in core-seconds per million records;
one round decodes a chunk of each format.

On 2 cores with other work beside (load 3):

| records | format | bytes | core-s per million |
|---|---|---|---|
| ticks | JSON | 127 | 0.30 |
| ticks | Avro | 47 | 0.32 |
| wide | JSON | 1,021 | 2.54 |
| wide | Avro | 524 | 2.79 |
"""

from __future__ import annotations

import argparse
import gc
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pyiceberg.schema import Schema

from bench.peer.records import FRAZIL, KINDS, Records, avro_encoder, avro_schema
from frazil.ingest.chunk import Chunk
from frazil.ingest.decode import Decoder
from frazil.ingest.formats import decoder
from frazil.ingest.formats.avro.decoder import AvroDecoder
from frazil.registry.client import SchemaText
from frazil.spec import iceberg
from frazil.spec.load import validate_stream


class OneSchema:
    """A registry of one schema."""

    def __init__(self, schema: Any) -> None:
        self._text = SchemaText("AVRO", json.dumps(schema))

    def ask(self, _: Sequence[int], /) -> None:
        pass

    def get(self, _: int, /) -> SchemaText:
        return self._text


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
        schema, encode = schema_of(records), avro_encoder(records, schema_id=1)
        encoded = [encode(i) for i in range(len(values))]
        made: dict[str, tuple[Decoder, list[bytes]]] = {
            "json": (decoder("json", schema, {}), values),
            "avro": (AvroDecoder(schema, {}, OneSchema(avro_schema(records.columns))), encoded),
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
