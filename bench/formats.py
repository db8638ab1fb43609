"""CPU of decoding the same records as JSON, as Avro and as Protobuf, side by side.

    .venv/bin/python -m bench.formats [--records 100000] [--repeats 5]

Ticks have 127 bytes as JSON; wide records have 1 KB and 40 columns, two of them nested. Avro and Protobuf records begin
with a schema id, as a registry's serializers write them. Each round decodes one chunk of each format. Prints the
minimum CPU (user and system) of the rounds, in core-seconds per million records.

Results on a busy machine (2 cores, load 2, --repeats 7):

| records | format | bytes | core-s per million |
|---|---|---|---|
| ticks | JSON | 127 | 0.31 |
| ticks | Avro | 47 | 0.34 |
| ticks | Protobuf | 55 | 0.42 |
| wide | JSON | 1,025 | 2.35 |
| wide | Avro | 525 | 2.45 |
| wide | Protobuf | 559 | 2.72 |
"""

from __future__ import annotations

import argparse
import gc
import json
import time
from collections.abc import Sequence
from pathlib import Path

from google.protobuf import json_format, message_factory
from pyiceberg.schema import Schema

from bench.peer.records import FRAZIL, KINDS, Column, Records, avro_encoder, avro_schema
from frazil.ingest.chunk import RecordChunk
from frazil.ingest.decode import Decoder
from frazil.ingest.formats import create_decoder
from frazil.ingest.formats.avro.decoder import AvroDecoder
from frazil.ingest.formats.protobuf.decoder import ProtobufDecoder
from frazil.ingest.formats.protobuf.schema import message_of
from frazil.registry.client import SchemaText
from frazil.spec import iceberg
from frazil.spec.load import validate_stream


class OneSchema:
    """A schema registry with one schema."""

    def __init__(self, text: SchemaText) -> None:
        self._text = text

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
    return iceberg.table_schema(validate_stream(stream, Path("s.yaml")))


PROTOBUF = {"int": "int32", "long": "int64", "boolean": "bool", "timestamptz": "google.protobuf.Timestamp"}


def protobuf_message(columns: tuple[Column, ...], name: str) -> str:
    """Return a message's declaration. Every field is optional, as in Avro's schema."""
    fields = []
    for i, c in enumerate(columns, 1):
        inside = "" if isinstance(c.type, str) else protobuf_message(c.type, f"T_{c.name}")
        kind = PROTOBUF.get(c.type, c.type) if isinstance(c.type, str) else f"T_{c.name}"
        fields.append(f"{inside} optional {kind} {c.name} = {i};")
    return f"message {name} {{ {' '.join(fields)} }}"


def protobuf_text(records: Records) -> str:
    imports = 'import "google/protobuf/timestamp.proto";'
    return f'syntax = "proto3"; {imports} {protobuf_message(records.columns, "R")}'


def as_protobuf(values: list[bytes], text: str) -> list[bytes]:
    """Encode values: a zero byte, a schema id, the short form of the first message's indexes, and the message."""
    made = message_factory.GetMessageClass(message_of(text))
    return [b"\0\0\0\0\1\0" + json_format.Parse(value, made()).SerializeToString() for value in values]


def cost(decode: Decoder, chunk: RecordChunk) -> float:
    """Return core-seconds per million records."""
    started = time.process_time()
    decoded = decode(chunk)
    spent = time.process_time() - started
    if len(decoded.record_indexes) != len(chunk):
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
        avro = SchemaText("AVRO", json.dumps(avro_schema(records.columns)))
        protobuf = SchemaText("PROTOBUF", protobuf_text(records))
        made: dict[str, tuple[Decoder, list[bytes]]] = {
            "json": (create_decoder("json", schema, {}), values),
            "avro": (AvroDecoder(schema, {}, OneSchema(avro)), encoded),
            "protobuf": (ProtobufDecoder(schema, {}, OneSchema(protobuf)), as_protobuf(values, protobuf.text)),
        }
        chunks = {of: RecordChunk.of_values(data) for of, (_, data) in made.items()}
        rows = [made[of][0](chunks[of]).rows for of in made]
        if rows[0] != rows[1] or rows[0] != rows[2]:
            raise RuntimeError("the formats do not agree")
        best = dict.fromkeys(made, float("inf"))
        for _ in range(arguments.repeats):
            for of, (decode, _) in made.items():
                best[of] = min(best[of], cost(decode, chunks[of]))
        for of, (_, data) in made.items():
            size = sum(map(len, data)) / len(data)
            print(f"{name:6} {of:8} {size:5.0f} bytes {best[of]:6.2f}  {best[of] / best['json']:.2f} of json")


if __name__ == "__main__":
    main()
