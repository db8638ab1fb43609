"""CPU of decoding JSON chunks: valid chunks of several shapes, and chunks with some bad records.

    .venv/bin/python -m bench.decode [--records 100000] [--kinds "type mismatch,..."]

Prints the minimum CPU (user and system) of three runs, in core-seconds per million records, and its ratio to the cost
of an equally long chunk without bad records. Measures:

- records of ten columns and 170 bytes, without bad records and with each kind of bad record;
- ticks of 127 bytes, without broken records and with a share of them, broken in five ways;
- records of 1 KB with 40 columns, two of them nested: with all columns declared, and with half of the bytes in a column
  of `rest`, as text and as a variant;
- ticks with `cast: lenient` for all columns: unchanged, with their three numbers as text, and with one record of 100
  whose text the loop cannot cast.
"""

from __future__ import annotations

import argparse
import dataclasses
import gc
import random
import re
import time
from pathlib import Path

from pyiceberg import types as t
from pyiceberg.schema import Schema

from bench.peer.records import FRAZIL, KINDS, Records
from frazil.ingest.chunk import RecordChunk
from frazil.ingest.decode import DecodedChunk, Decoder
from frazil.ingest.formats import create_decoder
from frazil.ingest.formats.fields import units_of_fields
from frazil.ingest.variants import VariantEncoder
from frazil.spec import iceberg
from frazil.spec.load import validate_stream

SCHEMA = Schema(
    t.NestedField(1, "symbol", t.StringType(), required=True),
    t.NestedField(2, "ts", t.TimestamptzType(), required=True),
    t.NestedField(3, "price", t.DoubleType()),
    t.NestedField(4, "size", t.IntegerType()),
    t.NestedField(5, "side", t.StringType()),
    t.NestedField(6, "venue", t.StringType()),
    t.NestedField(7, "trade_id", t.LongType()),
    t.NestedField(8, "fee", t.DecimalType(9, 2)),
    t.NestedField(9, "day", t.DateType()),
    t.NestedField(10, "raw", t.BinaryType()),
)
SHARES = (0.01, 0.1, 0.5, 1.0)

BAD: dict[str, tuple[bytes, bytes] | bytes | None] = {
    "no such day": (b"2026-01-01T", b"2026-02-30T"),
    "leap second": (b"2026-01-01T00:", b'2026-01-01T23:59:60Z", "x":"'),
    "24 o'clock": (b"T00:", b"T24:"),
    "year 0": (b"2026-01-01T", b"0000-01-01T"),
    "no date": (b'"day":"2026', b'"day":"20x6'),
    "no base64": (b"YWJj", b"YWJ"),
    "wrong type": (b'"size":', b'"size":"x","s":'),
    "string for a number": (b'"price":', b'"price":"","p":'),
    "not whole": (b'"size":', b'"size":1.5,"s":'),
    "int too big": (b'"size":', b'"size":2147483648,"s":'),
    "long too big": (b'"trade_id":', b'"trade_id":9223372036854775808,"t":'),
    "1e400": (b'"price":', b'"price":1e400,"p":'),
    "just too big a double": (b'"price":', b'"price":1.7976931348623159e308,"p":'),
    "5,000 digits": (b'"price":', b'"price":' + b"9" * 5000 + b',"p":'),
    "NaN for an int": (b'"size":', b'"size":NaN,"s":'),
    "decimal text abc": (b'"fee":', b'"fee":"abc","f":'),
    "decimal too fine": (b'"fee":', b'"fee":1.234,"f":'),
    "decimal too big": (b'"fee":', b'"fee":12345678.0,"f":'),
    "key given twice": (b'"size":', b'"size":1,"size":'),
    "key given twice, escaped": (b'"size":', b'"\\u0073ize":1,"size":'),
    "required and null": (b'"symbol":', b'"symbol":null,"s":'),
    "required and missing": (b'"symbol":', b'"s":'),
    "half a surrogate pair": (b'"venue":"', b'"venue":"\\ud800'),
    "control character": (b'"venue":"', b'"venue":"\x01'),
    "not UTF-8": (b'"venue":"', b'"venue":"\xff'),
    "two objects": (b"}", b"}{}"),
    "broken off": (b'"size":', b'"size"'),
    "no JSON": b"hello",
    "empty": b"",
    "tombstone": None,
    "an array": b"[1,2,3]",
    "nested 600 deep": (b'"size":', b'"deep":' + b"[" * 600 + b"]" * 600 + b',"size":'),
}
GOOD: dict[str, tuple[bytes, bytes]] = {
    "good: -0": (b'"price":', b'"price":-0,"p":'),
    "good: NaN": (b'"price":', b'"price":NaN,"p":'),
    "good: Infinity": (b'"price":', b'"price":Infinity,"p":'),
    "good: 1e400 ignored": (b'"size":', b'"s":1e400,"size":'),
    "good: white space": (b'"size":', b'\n"size":'),
    "good: subnormal": (b'"price":', b'"price":2.5e-310,"p":'),
    "good: near zero": (b'"price":', b'"price":1e-400,"p":'),
    "good: escape in a timestamp": (b'.123Z"', b'\\u002e123Z"'),
    "good: 29 February": (b'"day":"2026-01-01', b'"day":"2024-02-29'),
}
"""Values that are valid, but that the bulk path may reject and leave to slower code."""


def record(number: int) -> bytes:
    return (
        f'{{"symbol":"S{number * 7919 % 2000:04}","ts":"2026-01-01T00:{number // 60 % 60:02}:{number % 60:02}.123Z",'
        f'"price":{number * 104_729 % 5_000_000 / 10_000:.4f},"size":{1 + number * 31 % 999},"side":"buy",'
        f'"venue":"XNAS","trade_id":{100_000_000 + number},"fee":{number % 997}.{number % 100:02},'
        f'"day":"2026-01-01","raw":"YWJj"}}'
    ).encode()


def changed(value: bytes, to: tuple[bytes, bytes] | bytes | None) -> bytes | None:
    return value.replace(*to, 1) if isinstance(to, tuple) else to


def broken(value: bytes, number: int) -> bytes:
    """Return a tick that is cut off, or that has one of four values of a wrong type."""
    return (
        value[:60],
        value.replace(b'"size":', b'"size":"x","s":'),
        value.replace(b"2026-01-01T", b"2026-02-30T"),
        value.replace(b'"symbol":', b'"symbol":1,"s":'),
        value.replace(b'"price":', b'"price":1e400,"p":'),
    )[number % 5]


def decoder_of(records: Records, columns: int | None = None, rest: str = "string", **more: str) -> Decoder:
    """Declare the first columns, and `rest` for all others; without `columns`, declare all. `more` has other keys."""
    named = {column.name: column.type_in(FRAZIL) for column in records.columns[:columns]}
    stream = {
        "name": "s",
        "source": {"topics": ["t"], "format": "json", "bootstrap-servers": "broker:9092"},
        "table": {"identifier": "a.b", "properties": {"format-version": 3}},
        "schema": named if columns is None else {**named, "others": rest},
        **({} if columns is None else {"rest": "others"}),
        "event-time": "ts",
        "coordinates": False,
        "complete": "none",
        **more,
    }
    spec = validate_stream(stream, Path("s.yaml"))
    schema = iceberg.table_schema(spec)
    decode, encode = create_decoder("json", schema, units_of_fields(schema, spec.units)), VariantEncoder(schema)

    def decode_variants(chunk: RecordChunk) -> DecodedChunk:
        decoded = decode(chunk)
        return dataclasses.replace(decoded, rows=encode(decoded.rows)[0])

    return decode_variants if rest == "variant" else decode


def bytes_in_half(records: Records, value: bytes) -> int:
    """Return the number of columns in the first half of a record's bytes."""
    names = [f'"{column.name}":'.encode() for column in records.columns]
    return sum(value.index(name) < len(value) // 2 for name in names)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--records", type=int, default=100_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--kinds", default="")
    arguments = parser.parse_args()
    decode = create_decoder("json", SCHEMA, {})
    clean = [record(i) for i in range(arguments.records)]
    gc.disable()

    def cost(values: list[bytes | None], decode: Decoder = decode) -> float:
        chunk = RecordChunk.of_values(values)
        best = float("inf")
        for _ in range(arguments.repeats):
            started = time.process_time()
            decode(chunk)
            best = min(best, time.process_time() - started)
        return best / len(values) * 1e6

    cost([*clean])  # warm
    print(f"ten columns: {cost([*clean]):.2f}")
    random.seed(1)
    for name, records in KINDS.items():
        values = [records.value(i) for i in range(arguments.records // (8 if name == "wide" else 1))]
        print(f"{name}: {cost([*values], decoder_of(records)):.2f}")
    wide = [KINDS["wide"].value(i) for i in range(arguments.records // 8)]
    full, half = cost([*wide], decoder_of(KINDS["wide"])), bytes_in_half(KINDS["wide"], wide[0])
    for rest in ("string", "variant"):
        spent = cost([*wide], decoder_of(KINDS["wide"], half, rest))
        print(
            f"wide, {half} of {len(KINDS['wide'].columns)} columns and rest as {rest}: {spent:.2f}, {spent / full:.2f}×"
        )
    ticks = [KINDS["ticks"].value(i) for i in range(arguments.records)]
    strict, lenient = decoder_of(KINDS["ticks"]), decoder_of(KINDS["ticks"], cast="lenient")
    texts = [re.sub(rb'("(?:price|size|trade_id)":)([0-9.]+)', rb'\1"\2"', value) for value in ticks]
    odd = [value.replace(b'"size":"', b'"size":" ') if i % 100 == 0 else value for i, value in enumerate(texts)]
    plain = cost([*ticks], strict)
    for name, values in {"as they are": ticks, "numbers as texts": texts, "1% cast outside the loop": odd}.items():
        spent = cost([*values], lenient)
        print(f"ticks, cast: lenient, {name}: {spent:.2f}, {spent / plain:.2f}×", flush=True)
    for share in (0.01, 0.1, 0.5):
        chosen = set(random.sample(range(len(ticks)), int(share * len(ticks))))
        some = [broken(v, i) if i in chosen else v for i, v in enumerate(ticks)]
        print(f"ticks, {share:.0%} broken: {cost([*some], decoder_of(KINDS['ticks'])):.2f}", flush=True)
    for kind, to in {**BAD, **GOOD}.items():
        if arguments.kinds and kind not in arguments.kinds.split(","):
            continue
        longer = max(0, len(changed(clean[0], to) or b"") - len(clean[0]) - 16)
        print(f"{kind:28}", end="")
        for share in SHARES:
            chosen = set(random.sample(range(len(clean)), int(share * len(clean))))
            padding = (b'"size":', b'"pad":"' + b"x" * longer + b'","size":') if longer else (b"", b"")
            base = cost([changed(v, padding) if i in chosen else v for i, v in enumerate(clean)])
            spent = cost([changed(v, to) if i in chosen else v for i, v in enumerate(clean)])
            print(f"{spent:8.2f} {spent / base:5.1f}×", end="", flush=True)
        print()


if __name__ == "__main__":
    main()
