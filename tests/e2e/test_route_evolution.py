"""Each table of a route follows its own records: through a real broker, by writers as users run them, without a JVM."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from frazil.audit.declared import audit
from frazil.table.catalogs import load_catalog
from tests.polling import eventually

ROUTE = "route: {by: field, name: note, tables: {a: test.a, b: test.b}, template: 'test.of_{value}'}\n"


def record(number: int, note: str | None, **more: object) -> bytes:
    return json.dumps({"id": number, "at": f"2024-01-01T00:00:{number % 60:02d}Z", "note": note, **more}).encode()


def columns(identifier: str) -> dict[str, str]:
    """The columns that were not declared, with their types."""
    schema = load_catalog(None).load_table(identifier).schema()
    declared = {"id", "at", "note"}
    return {f.name: str(f.field_type) for f in schema.fields if f.name not in declared and "kafka" not in f.name}


def rows(identifier: str, *names: str) -> list[tuple[Any, ...]]:
    found = load_catalog(None).load_table(identifier).scan().to_arrow().to_pylist()
    return sorted((row["id"], *(row[name] for name in names)) for row in found)


def letters(stream: Any) -> list[str]:
    return sorted(letter["error"] for letter in stream.table("_dead_letters").scan().to_arrow().to_pylist())


@pytest.fixture
def routed(stream: Any) -> Callable[..., Any]:
    """`routed("full")`: the test's stream, with that evolution and a route."""

    def make(evolution: str, route: str = ROUTE) -> Any:
        stream.declare(f"commit: {{interval: 1s}}\nevolution: {evolution}\n{route}")
        return stream

    return make


def test_each_table_grows_by_the_fields_of_its_own_records(
    routed: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    stream = routed("additive")
    stream.produce(
        [
            record(0, "a", gate="A1", size=1),
            record(1, "b", size="large"),
            record(2, None, left=True),
            record(3, "new", load={"bags": 3}),
            record(4, "a", gate="A2"),
            record(5, "plain"),
        ],
        partitions=2,
    )
    stream.catch_up()
    assert columns("test.a") == {"gate": "string", "size": "long"}
    assert columns("test.b") == {"size": "string"}
    assert columns("test.events") == {"left": "boolean"}
    assert list(columns("test.of_new")) == ["load"]
    assert columns("test.of_plain") == {}
    assert rows("test.a", "gate", "size") == [(0, "A1", 1), (4, "A2", None)]
    assert rows("test.b", "size") == [(1, "large")]
    assert rows("test.events", "left") == [(2, True)]
    assert rows("test.of_new", "load") == [(3, {"bags": 3})]
    assert "table test.a evolves, and the batch is staged again: added column gate string; added" in caplog.text
    stream.produce([record(6, "a", size=2), record(7, "b", size="small"), record(8, "a", size="large")])
    stream.catch_up()  # another process continues with the columns
    assert rows("test.a", "size") == [(0, 1), (4, None), (6, 2)]
    assert rows("test.b", "size") == [(1, "large"), (7, "small")]
    assert letters(stream) == ["size: a whole number (long) is needed, this is the string 'large'"]
    assert audit(stream.spec, window=None, with_source=True).findings == ()
