"""Routes one topic to many tables through a real broker, by real writers without a JVM."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import TopicPartition
from pyiceberg.exceptions import ForbiddenError

from frazil.audit.declared_stream import audit_declared_stream
from frazil.backfill.request import parse_request
from frazil.backfill.run import open_backfill
from frazil.backfill.stage import run
from frazil.commit.marker import read_marker
from frazil.errors import AdoptionRequired, RolledBack, RouteBehind, SpecError
from frazil.table.catalogs import load_catalog
from tests.in_process_engine import InProcessEngine
from tests.polling import eventually

BASE = "commit: {interval: 1s}\n"


def record(number: int, note: str | None) -> bytes:
    return json.dumps({"id": number, "at": f"2024-01-01T00:00:{number % 60:02d}Z", "note": note}).encode()


def ids(identifier: str) -> list[int]:
    return sorted(load_catalog(None).load_table(identifier).scan(selected_fields=("id",)).to_arrow()["id"].to_pylist())


def dead_letters(stream: Any) -> list[str]:
    return sorted(dead_letter["error"] for dead_letter in stream.table("_dead_letters").scan().to_arrow().to_pylist())


def tables() -> list[str]:
    return sorted(".".join(name) for name in load_catalog(None).list_tables("test"))


def test_records_go_to_tables_that_are_declared_and_to_tables_made_for_them(stream: Any) -> None:
    stream.declare(
        BASE + "route: {by: field, name: note, tables: {order: test.orders}, template: 'test.of_{value}', "
        "allow: ['pay*', 'Pay*'], limit: 2}\n"
    )
    stream.produce([record(0, "order"), record(1, None), record(2, "pay"), record(3, "Pay"), record(4, "users")])
    stream.catch_up()
    stream.produce([record(5, "pay"), record(6, "payment"), record(7, "order")])
    stream.catch_up()
    (hashed,) = [name for name in tables() if name.startswith("test.of_pay_")]
    assert ids("test.orders") == [0, 7]
    assert (ids("test.of_pay"), ids(hashed)) == ([2, 5], [3])
    assert stream.ids() == [1]
    assert dead_letters(stream) == [
        (
            "field note: 'payment' gets no table: route.limit is 2, and the writer has created that many tables. Raise "
            "it, or give "
            "the value a table in route.tables; then replay its dead letters"
        ),
        "field note: 'users' gets no table: route.allow does not allow it",
    ]
    assert load_catalog(None).load_table(hashed).properties["frazil.route.events"] == "Pay"
    home = read_marker(stream.table().properties, "events")
    assert home is not None
    assert sum(home.offsets.values()) == 8
    held_against_kafka = audit_declared_stream(stream.spec, window=None, with_source=True)
    assert held_against_kafka.findings == ()
    assert [(p.rows, p.gaps, p.dead_letters) for p in held_against_kafka.partitions[:1]] == [(6, 0, 2)]


def test_a_foreign_table_is_never_written_to_by_a_route(stream: Any) -> None:
    stream.declare(BASE + "route: {by: field, name: note, template: 'test.{value}'}\n")
    stream.produce([record(0, "mine")])
    stream.catch_up()
    schema = load_catalog(None).load_table("test.mine").schema()
    load_catalog(None).create_table("test.salaries", schema)
    stream.produce([record(1, "salaries"), record(2, "events"), record(3, "events_dead_letters"), record(4, "mine")])
    stream.catch_up()
    assert (ids("test.salaries"), stream.ids(), ids("test.mine")) == ([], [], [0, 4])
    assert len(dead_letters(stream)) == 3
    assert dead_letters(stream)[-1].endswith(
        "'salaries' gets no table: test.salaries exists, but was not created for this value. To write the rows there, "
        "add the table to route.tables"
    )


@pytest.mark.parametrize("commit", [BASE, "commit: {interval: 1s, atomic: true}\n"])
def test_each_topic_has_its_table_and_others_go_to_the_default_table(stream: Any, commit: str) -> None:
    stream.declare(commit + f"route: {{by: topic, tables: {{{stream.topic}: test.orders}}}}\n")
    stream.produce([record(number, None) for number in range(20)], partitions=4)
    stream.catch_up()
    assert (ids("test.orders"), stream.ids()) == ([*range(20)], [])


def test_values_without_a_table_are_dead_letters_if_so_declared(stream: Any) -> None:
    stream.declare(BASE + "route: {by: field, name: note, tables: {a: test.a}, otherwise: dead-letters}\n")
    stream.produce([record(0, "a"), record(1, None), record(2, "b")])
    stream.catch_up()
    assert (ids("test.a"), stream.ids()) == ([0], [])
    assert [error.partition(".")[0] for error in dead_letters(stream)] == [
        "field note: 'b' has no table",
        "field note: has no value",
    ]


def test_a_table_in_trouble_is_left_behind_and_then_stops_the_stream_with_the_reason(
    stream: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    route = "route: {by: field, name: note, tables: {a: test.a, b: test.b}, lag: %s}\n"
    stream.declare(BASE + route % "1h")
    stream.produce([record(0, "a"), record(1, "b")])
    stream.catch_up()
    broken = refuse_commits_to("test.a", monkeypatch)
    with stream.writing():
        stream.produce([record(2, "a"), record(3, "b")])
        eventually(lambda: ids("test.b") == [1, 3], within_s=60)
        eventually(lambda: "test.a is missing 1 row of 1 batch" in stream.outage(), within_s=60)
        assert "The writer keeps retrying, and ends with RouteBehind after 2" in stream.outage()
    stream.declare(BASE + route % "1s")
    stream.produce([record(4, "a")])
    monkeypatch.setattr("frazil.stream.route.RETRY_TIMEOUT_S", 0.0)
    with pytest.raises(RouteBehind, match=r"frazil is not permitted to commit to table test\.a: not yours"):
        stream.catch_up()
    assert ids("test.a") == [0]
    broken.clear()
    stream.catch_up()
    assert (ids("test.a"), ids("test.b")) == ([0, 2, 4], [1, 3])


def test_a_table_dropped_next_to_its_writer_gets_all_rows_once_it_is_registered_again(stream: Any) -> None:
    stream.declare(BASE + "route: {by: field, name: note, tables: {a: test.a, b: test.b}, lag: 1h}\n")

    def land(number: int) -> None:
        stream.produce([record(number, "a"), record(number + 1, "b")])
        eventually(
            lambda: load_catalog(None).table_exists("test.b") and ids("test.b")[-1:] == [number + 1], within_s=60
        )

    with stream.writing():
        land(0)
        eventually(lambda: ids("test.a") == [0], within_s=60)
        left = load_catalog(None).load_table("test.a").metadata_location
        load_catalog(None).drop_table("test.a")
        for number in (2, 4, 6):
            land(number)
        load_catalog(None).register_table("test.a", left)
        eventually(lambda: ids("test.a") == [0, 2, 4, 6], within_s=60)
    assert ids("test.b") == [1, 3, 5, 7]
    assert audit_declared_stream(stream.spec, window=None, with_source=True).findings == ()


def test_a_routed_table_that_cannot_be_created_lags_alone_and_then_stops_the_stream(
    stream: Any, frazil: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    route = "route: {by: field, name: note, template: 'test.of_{value}', lag: %s}\n"
    stream.declare(BASE + route % "1h")
    broken = refuse_commits_to(route_table(stream, "B"), monkeypatch, "create_table")
    with stream.writing():
        stream.produce([record(0, "a"), record(1, "B"), record(2, None)])
        eventually(lambda: load_catalog(None).table_exists("test.of_a") and ids("test.of_a") == [0], within_s=60)
        stream.produce([record(3, "a"), record(4, "B")])
        eventually(lambda: ids("test.of_a") == [0, 3], within_s=60)
        eventually(lambda: "not yours" in stream.outage(), within_s=60)
    said = frazil("route", "events").stdout
    assert ("not yours" in said, route_table(stream, "B") in said) == (True, True)
    assert frazil("audit", "events").returncode == 0
    stream.declare(BASE + route % "1s")
    stream.produce([record(5, "B")])
    monkeypatch.setattr("frazil.stream.route.RETRY_TIMEOUT_S", 0.0)
    with pytest.raises(RouteBehind, match="not yours"):
        stream.catch_up()
    broken.clear()
    stream.produce([record(6, "B")])
    stream.catch_up()
    assert (ids(route_table(stream, "B")), ids("test.of_a"), stream.ids()) == ([1, 4, 5, 6], [0, 3], [2])
    assert audit_declared_stream(stream.spec, window=None, with_source=True).findings == ()


def test_a_table_dropped_while_rows_wait_continues_only_after_a_user_confirms_it(
    stream: Any, frazil: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    stream.declare(BASE + "route: {by: field, name: note, template: 'test.of_{value}', lag: 1s}\n")
    stream.produce([record(0, "a")])
    stream.catch_up()
    assert (
        frazil("route", "events").stdout
        == "No table of the route is behind. This compares positions; `frazil audit events` compares rows.\n"
    )
    broken = refuse_commits_to("test.of_a", monkeypatch)
    stream.produce([record(1, "a"), record(2, None)])
    with pytest.raises(RouteBehind):
        stream.catch_up()
    broken.clear()
    assert "test.of_a" in frazil("route", "events").stdout
    assert "rows wait for test.of_a, and would be lost" in frazil("forget", "events", "--yes").stderr
    load_catalog(None).purge_table("test.of_a")
    stream.produce([record(3, "a")])
    monkeypatch.setattr("frazil.stream.route.RETRY_TIMEOUT_S", 0.0)
    with pytest.raises(RouteBehind, match=r"--give-up test\.of_a"):
        stream.catch_up()
    assert frazil("route", "events", "--give-up", "test.b", "--yes").returncode == 10
    done = frazil("route", "events", "--give-up", "test.of_a", "--yes")
    assert done.stdout.startswith("Rows that never reach test.of_a: 1. Their files")
    stream.catch_up()
    assert (ids("test.of_a"), stream.ids()) == ([3], [2])


def test_a_forgotten_stream_does_not_write_its_rows_twice(stream: Any, frazil: Callable[..., Any]) -> None:
    stream.declare(BASE + "route: {by: field, name: note, tables: {a: test.a}}\n")
    stream.produce([record(0, "a")])
    stream.catch_up()
    assert frazil("audit", "events").returncode == 0
    dry = frazil("backfill", "events", "--dry-run")
    assert "none of the 1 requested offsets is missing" in dry.stdout, dry.stderr
    assert frazil("forget", "events", "--yes").returncode == 0
    with pytest.raises(AdoptionRequired, match=r"--give-up test\.a"):
        stream.catch_up()
    assert ids("test.a") == [0]
    assert frazil("route", "events", "--give-up", "test.a", "--yes").returncode == 0
    stream.catch_up()
    assert ids("test.a") == [0, 0], "a person said so"


@pytest.mark.parametrize("edited", [True, False], ids=["declared anew", "declared as before"])
def test_columns_are_renamed_and_dropped_in_all_tables(stream: Any, frazil: Callable[..., Any], edited: bool) -> None:
    stream.declare(BASE + "route: {by: field, name: note, tables: {a: test.a}, template: 'test.of_{value}'}\n")
    path = stream.streams / "events.yaml"
    path.write_text(path.read_text().replace("note: string", "note: string, size: int, left: int"))

    def send(*records: tuple[int, str]) -> None:
        stream.produce([record(n, note)[:-1] + b', "size": %d, "left": 1}' % n for n, note in records])

    send((0, "a"), (1, "b"))
    stream.catch_up()
    refused = frazil("evolve", "events", "--rename", "note=kind", "--yes")
    assert "the column note cannot be changed: the route reads the column by its name" in refused.stderr
    with stream.writing():
        done = frazil("evolve", "events", "--rename", "size=weight", "--rename", "id=number", "--drop", "left", "--yes")
        assert done.returncode == 0, done.stderr
        send((2, "a"), (3, "b"), (4, "c"))
        # The table is created as declared; its columns are renamed before it gets a row.
        eventually(lambda: "test.of_c" in tables() and load_catalog(None).load_table("test.of_c").scan().count() == 1)
    if edited:
        path.write_text(path.read_text().replace("size: int, left: int", "weight: int").replace("{id:", "{number:"))
    send((5, "a"), (6, "d"))
    stream.catch_up()
    assert values("test.a") == [(0, 0), (2, 2), (5, 5)]
    assert [values(f"test.of_{value}") for value in "bcd"] == [[(1, 1), (3, 3)], [(4, 4)], [(6, 6)]]
    assert frazil("audit", "events", "--source").returncode == 0


def values(identifier: str) -> list[tuple[int, int]]:
    table = load_catalog(None).load_table(identifier)
    assert "left" not in table.schema().column_names
    rows = table.scan(selected_fields=("number", "weight")).to_arrow().to_pylist()
    return sorted((row["number"], row["weight"]) for row in rows)


def test_a_reset_that_would_duplicate_rows_is_refused_and_a_backfill_adds_the_missing_rows(
    stream: Any, frazil: Callable[..., Any]
) -> None:
    """After a rollback of the default table too, because its routed tables still have their rows."""
    stream.declare(BASE + "route: {by: field, name: note, tables: {a: test.a}, otherwise: table}\n")
    for number in range(4):
        stream.produce([record(2 * number, "a"), record(2 * number + 1, "z")])
        stream.catch_up()
    refused = frazil("reset", "events", "--to", "earliest", "--yes")
    assert refused.returncode == SpecError.exit_code
    assert "make it read 8 offsets again, and duplicate the rows" in refused.stderr
    home = stream.table()
    commits = [s for s in home.metadata.snapshots if s.summary and s.summary.get("added-records")]
    home.manage_snapshots().rollback_to_snapshot(commits[1].snapshot_id).commit()
    with pytest.raises(RolledBack):
        stream.catch_up()
    assert "duplicate the rows that its tables have" in frazil("reset", "events", "--to", "table", "--yes").stderr
    assert frazil("reset", "events", "--to", "marker", "--yes").returncode == 0
    stream.catch_up()
    with open_backfill(stream.spec, parse_request({"stream": "events"})) as backfill, InProcessEngine() as engine:
        assert run(backfill, engine).records == 2
    stream.produce([record(8, "a"), record(9, "z")])
    stream.catch_up()
    assert (ids("test.a"), stream.ids()) == ([0, 2, 4, 6, 8], [1, 3, 5, 7, 9])
    assert [*audit_declared_stream(stream.spec, window=None, with_source=True).errors] == []


def test_after_a_backfill_the_audit_compares_each_row_with_the_table_of_its_record(
    stream: Any, frazil: Callable[..., Any], kafka: Any
) -> None:
    """One row was moved to another table by hand, and one was deleted."""
    stream.declare(BASE + "route: {by: field, name: note, tables: {a: test.a, b: test.b}, otherwise: table}\n")
    stream.produce([record(number, "ab"[number % 2]) for number in range(8)])
    stream.catch_up()
    a, b = (load_catalog(None).load_table(f"test.{name}") for name in "ab")
    b.append(a.scan("id == 4").to_arrow().select([field.name for field in b.schema().fields]))
    a.delete("id == 4 or id == 2")
    assert frazil("audit", "events").returncode == 1
    with open_backfill(stream.spec, parse_request({"stream": "events"})) as backfill, InProcessEngine() as engine:
        assert run(backfill, engine).records == 1
    moved = frazil("audit", "events", "--source")
    off = f"the table has 1 row that the route, as declared now, sends to table test.a: {stream.topic}-0 at offset 4"
    assert (moved.returncode, f"OFF   test.b: {off}" in moved.stdout) == (1, True), moved.stdout
    by_records = frazil("audit", "events")
    assert (by_records.returncode, "--source checks that each row is in" in by_records.stdout) == (3, True)
    a, b = (load_catalog(None).load_table(f"test.{name}") for name in "ab")
    a.append(b.scan("id == 4").to_arrow().select([field.name for field in a.schema().fields]))
    b.delete("id == 4")
    healed = frazil("audit", "events", "--source")
    assert (healed.returncode, "OFF" in healed.stdout) == (0, False), healed.stdout
    admin = kafka.admin()
    for answer in admin.delete_records([TopicPartition(stream.topic, 0, 2)]).values():
        answer.result(30)
    retained = frazil("audit", "events", "--source")
    assert retained.returncode == 3, retained.stdout
    assert "cannot check that 2 rows are in the right table: Kafka no longer has the records" in retained.stdout


def test_spark_writes_many_tables(spark: Any, stream: Any) -> None:
    """The context and the answers pass through Spark's tasks."""
    del spark
    stream.declare(BASE + "route: {by: field, name: note, template: 'test.of_{value}'}\n")
    stream.produce([record(number, f"v{number % 3}") for number in range(30)], partitions=4)
    stream.catch_up()
    assert [ids(f"test.of_v{value}") for value in range(3)] == [[*range(value, 30, 3)] for value in range(3)]


def route_table(stream: Any, value: str) -> str:
    return str(stream.spec.route.derive_table_name(value))


def refuse_commits_to(identifier: str, monkeypatch: pytest.MonkeyPatch, call: str = "commit_table") -> list[str]:
    """Commits to this table, or other calls for it, are refused until the list that is returned is empty."""
    from frazil.table.sql_catalog import PreparedSqlCatalog  # of this test alone

    broken, called = [identifier], getattr(PreparedSqlCatalog, call)

    def refusing(self: Any, table: Any, *more: Any, **named: Any) -> Any:
        if (table if isinstance(table, str) else ".".join(table.name())) in broken:
            raise ForbiddenError("not yours")
        return called(self, table, *more, **named)

    monkeypatch.setattr(PreparedSqlCatalog, call, refusing)
    return broken
