"""Routed tables with upserts or dedupe, through a real broker, by real writers without a JVM."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from pyiceberg.exceptions import ForbiddenError

from frazil.audit.declared_stream import audit_declared_stream
from frazil.audit.findings import FindingKind
from frazil.cli.main import frazil
from frazil.commit.journal import bare_path
from frazil.commit.merging import MERGED_FOLDER
from frazil.commit.sweep import referenced_paths
from frazil.events import BatchCommitted, Event
from frazil.signals.completion import assess_group, signal_windows
from frazil.spec.routed_stream import is_template_view, view_from_table
from frazil.table.catalogs import load_catalog
from tests.polling import eventually

UPSERT = """\
mode: upsert
key: [note, id]
order-by: at
"""
ROUTE = "route: {by: field, name: note, tables: {a: test.a}, template: 'test.of_{value}', lag: 1h}\n"
DELETE = "delete: {column: id, values: [9]}\n"
ATOMIC = "commit: {interval: 1s, atomic: true}\n"
COMMIT = "commit: {interval: 1s}\n"


def record(number: int, note: str | None, second: int) -> bytes:
    return json.dumps({"id": number, "at": f"2024-01-01T00:00:{second:02d}Z", "note": note}).encode()


def rows(identifier: str) -> list[tuple[int, int]]:
    """Each row's id, and the second that it is of."""
    found = load_catalog(None).load_table(identifier).scan(selected_fields=("id", "at")).to_arrow().to_pylist()
    return sorted((row["id"], row["at"].second) for row in found)


@pytest.fixture
def declare(stream: Any) -> Any:
    """Declare the columns of `stream`; `note` is required, because it is in the key."""

    def declared(more: str) -> None:
        stream.declare(more)
        path = stream.streams / f"{stream.name}.yaml"
        path.write_text(path.read_text().replace("note: string", "note: string not null"))

    return declared


@pytest.mark.parametrize("commit", [COMMIT, ATOMIC])
def test_each_routed_table_has_the_newest_row_of_each_key(stream: Any, declare: Any, commit: str) -> None:
    declare(commit + UPSERT + ROUTE)
    stream.produce([record(1, "a", 1), record(2, "b", 2), record(1, "b", 3), record(1, "a", 4)])
    stream.catch_up()
    assert (rows("test.a"), rows("test.of_b")) == ([(1, 4)], [(1, 3), (2, 2)])
    stream.produce([record(1, "a", 3), record(2, "b", 9), record(7, "a", 5), record(1, "c", 1)])
    seen = list[Event]()
    writer = stream.writer(until_caught_up=True)
    writer.sinks = (seen.append,)
    writer.run()
    merged = Counter[str]()
    for event in seen:
        if isinstance(event.payload, BatchCommitted):
            merged.update(event.payload.changes)
    assert (merged["inserted"], merged["updated"], merged["stale"]) == (2, 1, 1)
    assert (rows("test.a"), rows("test.of_b"), rows("test.of_c")) == ([(1, 4), (7, 5)], [(1, 3), (2, 9)], [(1, 1)])
    assert stream.ids() == []
    assert audit_declared_stream(stream.spec, window=None, with_source=True).findings == ()
    load_catalog(None).load_table("test.of_b").delete("id = 1")
    found = audit_declared_stream(stream.spec, window=None, with_source=True).findings
    assert [(f.kind, f.count, f.where) for f in found] == [
        (FindingKind.CHANGED, 1, "test.of_b"),
        (FindingKind.MISSING, 1, "test.of_b"),
    ]


@pytest.mark.parametrize("commit", [COMMIT, ATOMIC])
def test_each_routed_table_drops_the_records_that_repeat_a_row_of_its_own(
    stream: Any, declare: Any, commit: str
) -> None:
    declare(commit + "dedupe: {key: id, within: 10s}\n" + ROUTE)
    stream.produce([record(1, "a", 1), record(1, "a", 2), record(1, "b", 3), record(2, "a", 4)])
    stream.catch_up()
    stream.produce([record(1, "a", 5), record(1, "a", 40), record(2, "b", 5), record(1, "b", 4)])
    stream.catch_up()
    assert (rows("test.a"), rows("test.of_b")) == ([(1, 1), (1, 40), (2, 4)], [(1, 3), (2, 5)])
    assert [*audit_declared_stream(stream.spec, window=None, with_source=True).errors] == []
    load_catalog(None).load_table("test.a").delete("id = 2")
    found = audit_declared_stream(stream.spec, window=None, with_source=True).findings
    assert [(f.kind, f.count, f.where) for f in found] == [
        (FindingKind.CHANGED, 1, "test.a"),
        (FindingKind.MISSING, 1, "test.a"),
    ]


def test_a_lagging_table_gets_its_waiting_changes_in_order_from_a_later_writer(
    stream: Any, declare: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    declare(COMMIT + UPSERT + ROUTE)
    stream.produce([record(1, "a", 1), record(1, "b", 1)])
    stream.catch_up()
    catalog = type(load_catalog(None))
    commit = catalog.commit_table

    def refusing(self: Any, table: Any, *given: Any, **named: Any) -> Any:
        if table.name()[-1] == "a":
            raise ForbiddenError("not yours")
        return commit(self, table, *given, **named)

    with monkeypatch.context() as patched:
        patched.setattr(catalog, "commit_table", refusing)
        with stream.writing():
            for second in (2, 3, 4):
                stream.produce([record(1, "a", second), record(second, "a", second), record(1, "b", second)])
                eventually(lambda second=second: rows("test.of_b") == [(1, second)], within_s=60)
    assert rows("test.a") == [(1, 1)]
    table = load_catalog(None).load_table("test.a")
    merged = Path(bare_path(table.location())).rglob(f"{MERGED_FOLDER}/**/*.parquet")
    assert len([path for path in merged if str(path) not in referenced_paths(table)]) <= 2, "those of the first batch"
    stream.produce([record(1, "b", 5)])
    stream.catch_up()
    assert (rows("test.a"), rows("test.of_b")) == ([(1, 4), (2, 2), (3, 3), (4, 4)], [(1, 5)])
    table = load_catalog(None).load_table("test.a")
    there = {str(path) for path in Path(bare_path(table.location())).rglob("*.parquet")}
    assert there <= referenced_paths(table), "changes that are merged are deleted"


@pytest.mark.parametrize("mode", [UPSERT, "dedupe: {key: id, within: 10s}\n"])
@pytest.mark.parametrize("routed", [True, False], ids=["has a route", "had a route"])
def test_without_kafka_the_audit_compares_the_rows_of_the_tables(
    stream: Any, declare: Any, mode: str, routed: bool
) -> None:
    declare(COMMIT + mode + ROUTE)
    stream.produce([record(1, "a", 1), record(2, "b", 2), record(1, "a", 3)])
    stream.catch_up()
    if not routed:
        declare(COMMIT + mode)
        stream.produce([record(3, "a", 1)])
        stream.catch_up()
    assert [*audit_declared_stream(stream.spec, window=None, with_source=False).errors] == []
    for source in (False, True):
        found = audit_declared_stream(stream.spec, window=None, with_source=source)
        assert found.clean is (source and routed)
        if not found.clean:
            (open_,) = [f for f in found.findings if f.kind is FindingKind.NOT_COMPARED]
            records = sum(partition.rows for partition in found.partitions)
            assert open_.count == (4 if source else records if mode == UPSERT else 1), open_
    table = load_catalog(None).load_table("test.of_b")
    table.append(table.scan().to_arrow())
    doubled = audit_declared_stream(stream.spec, window=None, with_source=False).errors
    assert [(f.kind, f.count) for f in doubled] == [(FindingKind.DUPLICATES, 1)]


def test_a_delete_for_a_route_value_without_a_table_creates_no_table(
    stream: Any, declare: Any, frazil: Callable[..., Any]
) -> None:
    declare(COMMIT + UPSERT + ROUTE + DELETE)
    stream.produce([record(9, "b", 1), record(9, "c", 1), record(2, "c", 1)])
    stream.catch_up()
    assert ("test", "of_b") not in load_catalog(None).list_tables("test")
    assert rows("test.of_c") == [(2, 1)]
    assert stream.table().current_snapshot().summary["frazil.other-events"] == "1"
    assert frazil("audit", stream.name, "--source").returncode == 0


def test_an_upsert_is_not_routed_by_a_field_outside_its_key(stream: Any) -> None:
    stream.declare("mode: upsert\nkey: id\n" + ROUTE)
    with pytest.raises(Exception, match="is not in the key, so a change of this column would leave the old row"):
        _ = stream.spec


def test_dead_letters_are_merged_into_the_routed_table_that_they_belong_to(
    stream: Any, declare: Any, frazil: Callable[..., Any]
) -> None:
    template = DELETE + "route: {by: field, name: note, template: 'test.of_{value}', allow: [%s]}\n"
    declare(COMMIT + UPSERT + template % "b")
    stream.produce([record(1, "c", 1), record(2, "c", 2), record(1, "b", 1), record(9, "d", 1)])
    stream.catch_up()
    declare(COMMIT + UPSERT + template % "b, c, d")
    stream.produce([record(1, "c", 5), record(3, "c", 3)])
    stream.catch_up()
    assert rows("test.of_c") == [(1, 5), (3, 3)]
    replayed = frazil("dlq", "replay", "events")
    assert replayed.returncode == 0, replayed.stderr
    assert rows("test.of_c") == [(1, 5), (2, 2), (3, 3)], "a letter is older than the row of its key"
    assert (rows("test.of_b"), stream.ids()) == ([(1, 1)], [])
    assert "2 dead letters are merged now; 1 failed again" in replayed.stdout
    assert ("test", "of_d") not in load_catalog(None).list_tables("test"), "a delete makes no table"
    (left,) = stream.table("_dead_letters").scan().to_arrow().to_pylist()
    assert left["error_class"] == "NoChange"


def test_changes_wait_for_a_table_that_cannot_be_made(
    stream: Any, declare: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    declare(COMMIT + UPSERT + ROUTE)
    stream.produce([record(1, "b", 1)])
    stream.catch_up()
    catalog = type(load_catalog(None))
    create = catalog.create_table

    def refusing(self: Any, identifier: Any, *given: Any, **named: Any) -> Any:
        if "of_c" in str(identifier):
            raise ForbiddenError("not yours")
        return create(self, identifier, *given, **named)

    with monkeypatch.context() as patched:
        patched.setattr(catalog, "create_table", refusing)
        with stream.writing():
            for second in (2, 3):
                stream.produce([record(1, "c", second), record(second, "c", second), record(1, "b", second)])
                eventually(lambda second=second: rows("test.of_b") == [(1, second)], within_s=60)
    stream.catch_up()
    assert rows("test.of_c") == [(1, 3), (2, 2), (3, 3)]


@pytest.mark.parametrize("mode", ["", UPSERT])
def test_tables_that_the_template_makes_have_complete_windows(stream: Any, declare: Any, mode: str) -> None:
    windows = "complete: hour\ncomplete-from: 2024-01-01T00:00:00Z\n"
    template = "test.of_{value}"
    route = f"route: {{by: field, name: note, template: '{template}', complete: ['{template}']}}\n"
    declare(COMMIT + mode + windows + route)

    def signalled() -> set[tuple[str, str, int, int]]:
        view = view_from_table(stream.spec, template)
        assert is_template_view(view)
        found = signal_windows(load_catalog(None), *assess_group(load_catalog(None), view), clock_ms=1)
        return {(s.table, s.partition, s.revision, s.rows) for s in found}

    stream.produce([record(1, "a", 1), record(2, "b", 2), record(3, "a", 3)])
    stream.catch_up()
    assert signalled() == set()
    later = [json.dumps({"id": n, "at": "2024-01-01T01:30:00Z", "note": "c"}).encode() for n in range(4, 8)]
    stream.produce(later, partitions=4)
    stream.catch_up()
    assert signalled() == {(f"test.of_{v}", "2024-01-01T00", 1, n) for v, n in (("a", 2), ("b", 1), ("c", 0))}
    stream.produce([record(8, "b", 4)])
    stream.catch_up()
    assert signalled() == {("test.of_b", "2024-01-01T00", 2, 2)}
    said = CliRunner().invoke(frazil, ["partitions", template, "--json", "--streams", str(stream.streams)])
    assert [(one["table"], one["signalled-to"]) for one in json.loads(said.stdout)] == [
        (f"test.of_{value}", "2024-01-01T01:00:00Z") for value in "abc"
    ]
