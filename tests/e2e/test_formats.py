"""Streams of other formats than JSON, with keys and headers, by writers as users run them, without a JVM."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from confluent_kafka import Producer

Frazil = Callable[..., Any]


def produce(stream: Any, *records: tuple[bytes | None, bytes | None, dict[str, bytes]]) -> None:
    producer = Producer({"bootstrap.servers": stream.bootstrap})
    for number, (key, value, headers) in enumerate(records):
        producer.produce(stream.topic, value, key=key, headers=dict(headers), partition=number % 4)
    assert producer.flush(30) == 0


def declare(stream: Any, source: str, rest: str) -> None:
    (stream.streams / f"{stream.name}.yaml").write_text(
        f"name: {stream.name}\n"
        f"source: {{topics: [{stream.topic}], bootstrap-servers: '{stream.bootstrap}', {source}}}\n"
        f"table: test.{stream.name}\ncommit: {{interval: 1s}}\n{rest}"
    )


def test_lines_of_fields_land_with_key_and_headers_and_the_audit_counts_each_once(stream: Any, frazil: Frazil) -> None:
    declare(
        stream,
        "format: {type: csv, columns: [at, _, price, seen], delimiter: ';'}, "
        "key: {column: symbol}, headers: [{name: trace, column: trace}]",
        "schema:\n"
        "  symbol: string not null\n"
        "  at: timestamptz not null\n"
        "  price: decimal(9, 2)\n"
        "  seen: {type: timestamptz, unit: ms}\n"
        "  trace: binary\n"
        "event-time: at\npartition-by: [hour(at), symbol]\n",
    )
    produce(
        stream,
        (b"A", b"2026-01-01T00:00:00Z;x;1.50;1000", {"trace": b"\xff"}),
        (b"B", b"2026-01-01T01:00:00Z;;;", {}),
        (None, b"2026-01-01T00:00:00Z;x;1.50;1000", {"trace": b"t"}),
        (b"C", b"2026-01-01T00:00:00Z;1", {}),
    )
    stream.catch_up()
    rows = sorted(stream.table().scan().to_arrow().to_pylist(), key=lambda row: row["symbol"])
    assert [(r["symbol"], r["price"] and str(r["price"]), r["seen"], r["trace"]) for r in rows] == [
        ("A", "1.50", datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC), b"\xff"),
        ("B", None, None, None),
    ]
    dead_letters = sorted(
        stream.table("_dead_letters").scan().to_arrow().to_pylist(), key=lambda r: r["kafka_partition"]
    )
    assert [(r["error_class"], r["headers"] or None) for r in dead_letters] == [
        ("MissingRequired", [{"name": "trace", "value": b"t"}]),
        ("WrongFieldCount", None),
    ]
    audited = frazil("audit", stream.name, "--source")
    assert audited.returncode == 0, audited.stdout + audited.stderr


def test_whole_values_land_with_kafkas_time_as_their_event_time(stream: Any, frazil: Frazil) -> None:
    rest = "schema: {line: string}\nevent-time: kafka_timestamp\npartition-by: [day(kafka_timestamp)]\n"
    declare(stream, "format: string", rest)
    produce(stream, (None, b"one", {}), (None, b"", {}), (None, None, {}), (None, b"\xff", {}))
    stream.catch_up()
    rows = stream.table().scan().to_arrow().to_pylist()
    assert sorted((row["line"] is not None, row["line"]) for row in rows) == [(False, None), (True, ""), (True, "one")]
    assert stream.table("_dead_letters").scan().to_arrow()["error_class"].to_pylist() == ["InvalidUtf8"]
    assert frazil("audit", stream.name, "--source").returncode == 0
    assert "watermark" in frazil("status", stream.name).stdout


def test_json_lines_land_once_declared_and_earlier_dead_letters_are_replayed_with_all_lines(
    stream: Any, frazil: Frazil
) -> None:
    schema = (
        "schema: {at: timestamptz not null, n: int}\nevent-time: at\npartition-by: [hour(at)]\n"
        "dead-letters: {circuit: off}\n"
    )

    def batch(*numbers: int) -> bytes:
        return b"\n".join(b'{"at": "2026-01-01T%02d:00:00Z", "n": %d}' % (n % 24, n) for n in numbers)

    def settled() -> None:
        audited = frazil("audit", stream.name, "--source")
        assert audited.returncode == 0, audited.stdout + audited.stderr

    declare(stream, "format: json", schema)
    produce(stream, (None, batch(1), {}), (None, batch(2, 3), {}))
    stream.catch_up()
    assert stream.table().scan().to_arrow()["n"].to_pylist() == [1]
    declare(stream, "format: {type: json, lines: true}", schema)
    produce(stream, (None, batch(4, 5, 6), {}), (None, batch(7) + b"\nno object", {}), (None, batch(8), {}))
    for _ in range(2):
        stream.catch_up()
    settled()
    replayed = frazil("dlq", "replay", stream.name)
    assert "1 dead letter is a row now; 1 failed again" in replayed.stdout, replayed.stdout + replayed.stderr
    found = stream.table().scan().to_arrow().to_pylist()
    assert sorted((r["n"], r["kafka_partition"], r["kafka_line"]) for r in found) == [
        (1, 0, None),
        (2, 1, 0),
        (3, 1, 1),
        (4, 0, 0),
        (5, 0, 1),
        (6, 0, 2),
        (8, 2, 0),
    ]
    (dead_letter,) = stream.table("_dead_letters").scan().to_arrow().to_pylist()
    assert (dead_letter["error_class"], dead_letter["error"][:7], dead_letter["value"]) == (
        "NotAnObject",
        "line 2:",
        batch(7) + b"\nno object",
    )
    settled()
    requested = frazil("backfill", stream.name)
    assert "no requested record is missing" in requested.stdout, requested.stdout + requested.stderr
    with stream.table().transaction() as change:  # by another hand: the rows of a record are there twice
        change.append(stream.table().scan("n = 4").to_arrow())
    assert "1 row too many" in frazil("audit", stream.name, "--source").stdout
