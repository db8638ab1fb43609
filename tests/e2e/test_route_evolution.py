"""Each routed table evolves with its own records, through a real broker, by real writers without a JVM."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from pyiceberg.exceptions import ForbiddenError
from pyiceberg.table.update import AddSnapshotUpdate

from frazil.audit.declared_stream import audit_declared_stream
from frazil.backfill.request import parse_request
from frazil.backfill.run import open_backfill
from frazil.backfill.stage import run
from frazil.stream.batch import BatchRunner
from frazil.table.catalogs import load_catalog
from frazil.table.sql_catalog import PreparedSqlCatalog
from tests.in_process_engine import InProcessEngine
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


def dead_letter_errors(stream: Any) -> list[str]:
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
    assert dead_letter_errors(stream) == ["size: expected a whole number (long), got the string 'large'"]
    assert audit_declared_stream(stream.spec, window=None, with_source=True).findings == ()


def test_max_columns_applies_to_each_table_and_full_evolution_widens_only_the_table_concerned(
    routed: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    stream = routed("{mode: full, max-columns: 9}")
    path = stream.streams / "events.yaml"
    path.write_text(path.read_text().replace("note: string", "note: string, size: int"))
    stream.produce([record(0, "a", one=1, two=2), record(1, "b", two=2), record(2, "b", size=2**40)])
    stream.catch_up()
    assert rows("test.b", "two", "size") == [(1, 2, None), (2, None, 2**40)]
    with stream.writing():
        for number in (3, 4):
            stream.produce([record(number, "a", two=3)])
            eventually(lambda: len(rows("test.a")) == number - 1, within_s=60)  # noqa: B023 - within the round
        stream.produce([record(5, "a", size="x")])
        eventually(lambda: dead_letter_errors(stream), within_s=60)
    assert columns("test.a") == {"size": "int", "one": "long"}
    assert columns("test.b") == {"size": "long", "two": "long"}
    assert columns("test.events") == {"size": "int"}
    assert caplog.text.count("columns of test.a, so their values are ignored: 'two' would be column 10") == 2, (
        "once in each process"
    )
    assert dead_letter_errors(stream) == ["size: expected a whole number (int), got the string 'x'"]


@pytest.mark.parametrize("lost", ["before the batch", "of the last table"])
def test_a_writer_that_dies_between_the_evolution_of_two_tables_lands_each_record_once(
    routed: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, lost: str
) -> None:
    stream = routed("additive")
    stream.produce([record(0, "a", gate="A1"), record(1, "b", size=1), record(2, None, left=True), record(3, "c", c=1)])
    name = "_evolve_tables" if lost == "before the batch" else "_report_evolution"
    step = getattr(BatchRunner, name)

    def ends(self: BatchRunner, *arguments: Any) -> bool:
        assert step(self, *arguments)
        if name == "_evolve_tables" or "test.b" in arguments:
            raise SystemExit
        return True

    with monkeypatch.context() as patch:
        patch.setattr(BatchRunner, name, ends)
        with pytest.raises(SystemExit):
            stream.catch_up()
    assert not stream.has_rows(1)
    for _ in range(2):
        stream.catch_up()
    found = rows("test.a", "gate"), rows("test.b", "size"), rows("test.events", "left"), rows("test.of_c", "c")
    assert found == ([(0, "A1")], [(1, 1)], [(2, True)], [(3, 1)])
    assert [len(load_catalog(None).load_table(f"test.{name}").metadata.schemas) for name in ("a", "b", "of_c")] == [
        2
    ] * 3
    assert audit_declared_stream(stream.spec, window=None, with_source=True).findings == ()


def refuse(
    identifier: str, monkeypatch: pytest.MonkeyPatch, call: str = "commit_table", *, rows_alone: bool = False
) -> list[str]:
    """Refuse commits to a table (or those with rows alone, or another call) until the returned list is empty."""
    broken, called = [identifier], getattr(PreparedSqlCatalog, call)

    def refusing(self: Any, table: Any, *more: Any, **named: Any) -> Any:
        has_rows = not rows_alone or any(isinstance(update, AddSnapshotUpdate) for update in more[1])
        if (table if isinstance(table, str) else ".".join(table.name())) in broken and has_rows:
            raise ForbiddenError("not yours")
        return called(self, table, *more, **named)

    monkeypatch.setattr(PreparedSqlCatalog, call, refusing)
    return broken


@pytest.mark.rotates(2)
@pytest.mark.parametrize("refused", ["commits", "rows", "creation"])
def test_rows_of_a_failing_table_keep_their_new_fields_and_other_tables_continue(
    routed: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, refused: str
) -> None:
    stream = routed("full")
    stream.produce([record(0, "b")] if refused == "creation" else [record(0, "b"), record(1, "c")])
    stream.catch_up()
    call = "create_table" if refused == "creation" else "commit_table"
    broken = refuse("test.of_c", monkeypatch, call, rows_alone=refused == "rows")
    with stream.writing():
        stream.produce([record(2, "c"), record(3, "b", size=1)])
        eventually(lambda: rows("test.b") == [(0,), (3,)], within_s=60)
        stream.produce([record(4, "c", gate="A1", load={"bags": 1}), record(5, "b", size=2), record(6, None, left=1)])
        eventually(lambda: rows("test.b", "size") == [(0, None), (3, 1), (5, 2)], within_s=60)
        stream.produce([record(7, "c", gate="A2", load={"doors": 2}), record(8, "b")])
        eventually(lambda: len(rows("test.b")) == 4, within_s=60)
    broken.clear()
    stream.produce([record(9, "c", gate="A3")])
    stream.catch_up()
    before = [] if refused == "creation" else [(1, None, None)]
    assert rows("test.of_c", "gate", "load") == [
        *before,
        (2, None, None),
        (4, "A1", {"bags": 1, "doors": None}),
        (7, "A2", {"bags": None, "doors": 2}),
        (9, "A3", None),
    ]
    assert sorted(columns("test.of_c")) == ["gate", "load"]
    assert columns("test.b") == {"size": "long"}
    assert dead_letter_errors(stream) == []
    assert audit_declared_stream(stream.spec, window=None, with_source=True).findings == ()


def test_columns_that_one_table_alone_has_are_renamed_and_dropped_there(
    routed: Callable[..., Any], frazil: Callable[..., Any]
) -> None:
    stream = routed("additive")
    stream.produce([record(0, "a", gate="A1", size=1), record(1, None, size=2), record(2, "b", left=True)])
    stream.catch_up()
    with stream.writing():
        refused = frazil("evolve", "events", "--rename", "never=ever", "--yes")
        assert "test.events was not changed: the table has no column never" in refused.stderr
        change = ("--rename", "gate=door", "--rename", "size=weight", "--drop", "left")
        assert frazil("evolve", "events", *change, "--yes").returncode == 0
        stream.produce([record(3, "a", gate="A2", size=3), record(4, "a", door="A3"), record(5, "b", left=False)])
        stream.produce([record(6, "b", size=6), record(7, "c", weight=7), record(8, "c", size=8)])
        eventually(lambda: len(rows("test.b")) == 3 and len(rows("test.of_c")) == 2, within_s=60)
    assert rows("test.a", "door", "weight") == [(0, "A1", 1), (3, "A2", 3), (4, "A3", None)]
    assert rows("test.events", "weight") == [(1, 2)]
    assert rows("test.b", "weight") == [(2, None), (5, None), (6, 6)]
    assert rows("test.of_c", "weight") == [(7, 7), (8, 8)]
    assert [sorted(columns(f"test.{name}")) for name in ("a", "b", "of_c")] == [
        ["door", "weight"],
        ["weight"],
        ["weight"],
    ]


def test_backfill_and_replay_fill_columns_that_only_one_routed_table_has(
    routed: Callable[..., Any], frazil: Callable[..., Any]
) -> None:
    route = "route: {by: field, name: note, tables: {a: test.a, b: test.b%s}, otherwise: dead-letters}\n"
    stream = routed("additive", route % "")
    stream.produce([record(0, "a", gate="A1"), record(1, "b", gate=2), record(2, "z", gate="Z1")])
    stream.catch_up()
    for name in ("test.a", "test.b"):
        load_catalog(None).load_table(name).delete("id < 2")
    with open_backfill(stream.spec, parse_request({"stream": "events"})) as backfill, InProcessEngine() as engine:
        assert run(backfill, engine).records == 2
    assert (rows("test.a", "gate"), rows("test.b", "gate")) == ([(0, "A1")], [(1, 2)])
    assert len(dead_letter_errors(stream)) == 1
    routed("additive", route % ", z: test.a")
    stream.catch_up()
    replayed = frazil("dlq", "replay", "events")
    assert replayed.returncode == 0, replayed.stderr
    assert (rows("test.a", "gate"), columns("test.events")) == ([(0, "A1"), (2, "Z1")], {})
    assert [*audit_declared_stream(stream.spec, window=None, with_source=True).errors] == []


@pytest.mark.parametrize("mode", ["upsert", "dedupe"])
def test_upserted_and_deduplicated_tables_also_evolve(routed: Callable[..., Any], mode: str) -> None:
    declared = {"upsert": "mode: upsert\nkey: [id, note]\n", "dedupe": "dedupe: {key: [id], within: 1h}\n"}[mode]
    stream = routed("additive", declared + "route: {by: field, name: note, template: 'test.of_{value}'}\n")
    path = stream.streams / "events.yaml"
    path.write_text(path.read_text().replace("note: string", "note: string not null"))
    stream.produce([record(0, "a", gate="A1"), record(0, "b", size=1), record(1, "a")])
    stream.catch_up()
    stream.produce([record(0, "a", gate="A2"), record(0, "b", size=2), record(2, "a", more="x")])
    stream.catch_up()
    newest, size = ("A2", 2) if mode == "upsert" else ("A1", 1)
    assert rows("test.of_a", "gate", "more") == [(0, newest, None), (1, None, None), (2, None, "x")]
    assert rows("test.of_b", "size") == [(0, size)]
