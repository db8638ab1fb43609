"""The records that every system writes: ticks of about 120 bytes as JSON, and wide records of 1 KB with nested fields.

Both kinds can be encoded as JSON, or as Avro after a schema id, as a registry's serializers write them.
"""

from __future__ import annotations

import dataclasses
import io
import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import fastavro
from confluent_kafka import Producer

PARTITIONS = 32
SIDES = ("buy", "sell")
PRODUCERS = 2


@dataclass(frozen=True, slots=True)
class Dialect:
    """A system's type declarations: type names that differ from frazil's, a struct, and a struct's field."""

    names: Mapping[str, str]
    struct: str = "struct<{}>"
    field: str = "{}: {}"


FRAZIL = Dialect({})
SPARK = Dialect({"long": "bigint", "timestamptz": "timestamp"})
FLINK = Dialect(
    {
        "string": "STRING",
        "long": "BIGINT",
        "int": "INT",
        "double": "DOUBLE",
        "boolean": "BOOLEAN",
        "date": "DATE",
        "timestamptz": "TIMESTAMP_LTZ(6)",
    },
    struct="ROW<{}>",
    field="`{}` {}",
)
FLINK_AVRO = dataclasses.replace(FLINK, names={**FLINK.names, "timestamptz": "TIMESTAMP(3)"})
"""Flink reads Avro's instants as local times without a time zone; here they are UTC."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a frazil type, or a struct of columns."""

    name: str
    type: str | tuple[Column, ...]

    def type_in(self, dialect: Dialect) -> str:
        if isinstance(self.type, str):
            return dialect.names.get(self.type, self.type)
        return dialect.struct.format(", ".join(dialect.field.format(c.name, c.type_in(dialect)) for c in self.type))


@dataclass(frozen=True, slots=True)
class Records:
    """A kind of record. `trade_id` is unique to each record, and counts up from `FIRST_ID`."""

    name: str
    columns: tuple[Column, ...]
    value: Callable[[int], bytes]


FIRST_ID = 100_000_000


def tick(number: int) -> bytes:
    """Return a tick of an exchange. All ticks are within one hour of event time."""
    return ("{" + _tick_fields(number) + "}").encode()


def _tick_fields(number: int) -> str:
    milliseconds = number % 3_600_000
    return (
        f'"symbol":"S{number * 7919 % 2000:04}",'
        f'"ts":"2026-01-01T00:{milliseconds // 60_000:02}:{milliseconds // 1000 % 60:02}.{milliseconds % 1000:03}Z",'
        f'"price":{number * 104_729 % 5_000_000 / 10_000:.4f},"size":{1 + number * 31 % 999},'
        f'"side":"{SIDES[number * 13 % 7 % 2]}","venue":"XNAS","trade_id":{FIRST_ID + number}'
    )


def wide(number: int) -> bytes:
    """Return a tick with 33 more columns, two of them nested objects."""
    flat = ",".join(
        (
            *(f'"text_{i}":"{number * (i + 3) % 9973:05} some words of text"' for i in range(12)),
            *(f'"count_{i}":{number * (i + 7) % 100_003}' for i in range(10)),
            *(f'"ratio_{i}":{number * (i + 11) % 1_000_003 / 1000:.3f}' for i in range(7)),
            *(f'"flag_{i}":{"true" if number >> i & 1 else "false"}' for i in range(2)),
        )
    )
    account = (
        f'"account":{{"id":{number % 50_000},"name":"account {number % 50_000}","country":"NL",'
        f'"limits":{{"daily":{number % 977}.5,"monthly":{number % 9973}.25}}}}'
    )
    route = f'"route":{{"gateway":"gw-{number % 16}","hops":{number % 5},"latency":{number % 997 / 8}}}'
    return ("{" + f"{_tick_fields(number)},{flat},{account},{route}" + "}").encode()


_TICK = (
    Column("symbol", "string"),
    Column("ts", "timestamptz"),
    Column("price", "double"),
    Column("size", "int"),
    Column("side", "string"),
    Column("venue", "string"),
    Column("trade_id", "long"),
)
_LIMITS = (Column("daily", "double"), Column("monthly", "double"))
_ACCOUNT = (
    Column("id", "long"),
    Column("name", "string"),
    Column("country", "string"),
    Column("limits", _LIMITS),
)
_ROUTE = (Column("gateway", "string"), Column("hops", "int"), Column("latency", "double"))
_WIDE = (
    *(Column(f"text_{i}", "string") for i in range(12)),
    *(Column(f"count_{i}", "long") for i in range(10)),
    *(Column(f"ratio_{i}", "double") for i in range(7)),
    *(Column(f"flag_{i}", "boolean") for i in range(2)),
    Column("account", _ACCOUNT),
    Column("route", _ROUTE),
)
KINDS = {
    "ticks": Records("ticks", _TICK, tick),
    "wide": Records("wide", _TICK + _WIDE, wide),
}


def avro_schema(columns: tuple[Column, ...], name: str = "R") -> dict[str, Any]:
    """Return the Avro schema. Every field is optional. Times are in milliseconds, which Kafka Connect keeps too."""
    fields = [{"name": c.name, "type": ["null", _avro_type(c, f"{name}_{c.name}")]} for c in columns]
    return {"type": "record", "name": name, "fields": fields}


def _avro_type(column: Column, name: str) -> Any:
    if column.type == "timestamptz":
        return {"type": "long", "logicalType": "timestamp-millis"}
    return column.type if isinstance(column.type, str) else avro_schema(column.type, name)


def avro_encoder(records: Records, schema_id: int) -> Callable[[int], bytes]:
    """Return a function that encodes a record as Avro: a zero byte, the schema's id in four bytes, and the record."""
    parsed = fastavro.parse_schema(avro_schema(records.columns))
    frame = b"\0" + schema_id.to_bytes(4, "big")

    def encode(number: int) -> bytes:
        record = json.loads(records.value(number))
        record["ts"] = datetime.fromisoformat(record["ts"])
        out = io.BytesIO()
        out.write(frame)
        fastavro.schemaless_writer(out, parsed, record)
        return out.getvalue()

    return encode


def produce(bootstrap: str, records: Records, count: int, *, schema_id: int | None = None) -> None:
    """Send records in two processes, each to half of the partitions: as JSON, or as Avro with this schema."""
    command = [sys.executable, "-m", "bench.peer.records", bootstrap, records.name, str(count), str(schema_id or "")]
    senders = [subprocess.Popen([*command, str(part)]) for part in range(PRODUCERS)]
    codes = [sender.wait() for sender in senders]
    if any(codes):
        raise RuntimeError("a producer failed")


def _send(bootstrap: str, records: Records, encode: Callable[[int], bytes], *, count: int, part: int) -> None:
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "compression.type": "lz4",
            "linger.ms": 50,
            "batch.num.messages": 5000,
            "queue.buffering.max.messages": 1_000_000,
        }
    )
    for number in range(part, count, PRODUCERS):
        value, key = encode(number), b"k%d" % (number % 2000)
        while True:
            try:
                producer.produce(records.name, value, key=key, partition=number % PARTITIONS)
                break
            except BufferError:
                producer.poll(0.1)
        if number % 1000 < PRODUCERS:
            producer.poll(0)
    if producer.flush(120):
        raise RuntimeError("records were left in the producer")


if __name__ == "__main__":
    kind, schema_id = KINDS[sys.argv[2]], sys.argv[4]
    encoder = avro_encoder(kind, int(schema_id)) if schema_id else kind.value
    _send(sys.argv[1], kind, encoder, count=int(sys.argv[3]), part=int(sys.argv[5]))
