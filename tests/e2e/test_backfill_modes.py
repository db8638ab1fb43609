"""Backfills of routed, upserted and deduplicated streams from a real broker: no repeats, the newest version stays."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml
from pyiceberg.exceptions import ForbiddenError, NoSuchTableError

from frazil.audit.declared_stream import audit_declared_stream
from frazil.backfill import commit as backfill_commit
from frazil.backfill.commit import BackfillCommitter
from frazil.backfill.estimate import estimate
from frazil.backfill.request import parse_request
from frazil.backfill.run import Backfill, open_backfill
from frazil.backfill.stage import run, stage
from frazil.commit.backfill_records import BackfillMarker, BackfillState
from frazil.commit.journal import bare_path
from frazil.errors import CommitUnavailable, SpecError, WriterBusy
from frazil.ingest import transform
from frazil.ingest.isolate import IsolatedDecoder
from frazil.table.catalogs import load_catalog
from tests.in_process_engine import InProcessEngine

COMMIT = "commit: {interval: 1s}\n"
ROUTE = "route: {by: field, name: note, tables: {a: test.a}, template: 'test.of_{value}', lag: 1h}\n"
UPSERT = "mode: upsert\nkey: [note, id]\norder-by: at\n"
DEDUPE = "dedupe: {key: id, within: 10s}\n"
DELETES = "mode: upsert\nkey: [note, id]\ndelete: {column: gone, values: [true]}\n"


def record(number: int, note: str | None, second: int, **more: Any) -> bytes:
    return json.dumps({"id": number, "at": f"2024-01-01T00:00:{second:02d}Z", "note": note, **more}).encode()


def rows(identifier: str) -> list[tuple[int, int]]:
    """Each row's id, and the second that it is of."""
    try:
        table = load_catalog(None).load_table(identifier)
    except NoSuchTableError:
        return []
    found = table.scan(selected_fields=("id", "at")).to_arrow().to_pylist()
    return sorted((row["id"], row["at"].second) for row in found)


@pytest.fixture
def declare(stream: Any) -> Any:
    def declared(more: str, *, start: bool = False) -> None:
        stream.declare(COMMIT + more)
        path = stream.streams / f"{stream.name}.yaml"
        text = path.read_text()
        if "mode: upsert" in more:
            text = text.replace("note: string", "note: string not null, gone: boolean")
        if start:
            text = text.replace("format: json", f"format: json, start: '{datetime.now(UTC).isoformat()}'")
        path.write_text(text)

    return declared


@contextmanager
def asking(stream: Any, **bounds: Any) -> Iterator[Backfill]:
    raw = {"stream": stream.name, **{k.replace("_", "-"): v for k, v in bounds.items()}}
    with open_backfill(stream.spec, parse_request(raw)) as backfill:
        yield backfill


def backfilled(stream: Any, **bounds: Any) -> BackfillMarker | None:
    with asking(stream, **bounds) as backfill, InProcessEngine() as engine:
        return run(backfill, engine)


def is_right(stream: Any) -> bool:
    return [*audit_declared_stream(stream.spec, window=None, with_source=True).errors] == []


OLD = [record(1, "a", 1), record(2, "b", 2), record(3, "c", 3), b"not json", record(1, "a", 2), record(4, "a", 4)]
NEW = [record(1, "a", 6), record(2, "b", 30), record(5, "b", 7)]
KINDS = {
    "route": (ROUTE, {"a": [(1, 1), (1, 2), (1, 6), (4, 4)], "of_b": [(2, 2), (2, 30), (5, 7)], "of_c": [(3, 3)]}),
    "upsert": (UPSERT, {"events": [(1, 6), (2, 30), (3, 3), (4, 4), (5, 7)]}),
    "dedupe": (DEDUPE, {"events": [(1, 6), (2, 2), (2, 30), (3, 3), (4, 4), (5, 7)]}),
    "upsert, route": (UPSERT + ROUTE, {"a": [(1, 6), (4, 4)], "of_b": [(2, 30), (5, 7)], "of_c": [(3, 3)]}),
    "dedupe, route": (DEDUPE + ROUTE, {"a": [(1, 6), (4, 4)], "of_b": [(2, 2), (2, 30), (5, 7)], "of_c": [(3, 3)]}),
}


@pytest.mark.rotates(2)
@pytest.mark.parametrize("kind", KINDS)
def test_a_backfill_of_earlier_records_lands_once_next_to_existing_rows(stream: Any, declare: Any, kind: str) -> None:
    more, expected = KINDS[kind]
    stream.produce(OLD)
    declare(more, start=True)
    stream.produce(NEW)
    stream.catch_up()
    for chunk in (2, 1000):  # the second finds nothing to add
        backfilled(stream, chunk_records=chunk)
        assert {name: rows(f"test.{name}") for name in expected} == expected
        assert stream.table("_dead_letters").scan().to_arrow().num_rows == 1
        assert is_right(stream)
    stream.produce([record(4, "a", 40), record(6, "c", 6)])
    stream.catch_up()
    assert is_right(stream)


def test_the_repeats_that_a_backfill_and_a_replay_dropped_are_counted(stream: Any, declare: Any, frazil: Any) -> None:
    stream.produce(OLD)
    declare(DEDUPE, start=True)
    stream.produce([*NEW, b'{"id": 5, "at": 1704067209}', b'{"id": 8, "at": 1704067209}'])
    stream.catch_up()
    backfilled(stream)
    audited = frazil("audit", "events")
    assert audited.returncode == 0, audited.stdout
    path = stream.streams / "events.yaml"
    path.write_text(path.read_text().replace("event-time: at", "event-time: {column: at, unit: s}"))
    assert "1 dead letter is a row now; 1 repeated a row" in frazil("dlq", "replay", "events").stdout
    audited = frazil("audit", "events")
    assert audited.returncode == 0, audited.stdout
    load_catalog(None).load_table("test.events").delete("id = 3")
    lost = frazil("audit", "events")
    assert (lost.returncode, "The table has 6 rows: 1 missing" in lost.stdout) == (1, True), lost.stdout


@pytest.mark.rotates(2)
@pytest.mark.parametrize("kind", KINDS)
def test_only_deleted_rows_come_back(stream: Any, declare: Any, kind: str) -> None:
    more, expected = KINDS[kind]
    declare(more)
    stream.produce(OLD + NEW)
    stream.catch_up()
    before = {name: rows(f"test.{name}") for name in expected}
    name = "test.a" if "a" in expected else "test.events"
    load_catalog(None).load_table(name).delete("id = 4")
    done = backfilled(stream)
    assert done is not None
    assert {name: rows(f"test.{name}") for name in expected} == before
    assert done.records == {"route": 1}.get(kind, done.records)
    assert is_right(stream)


@pytest.mark.parametrize("max_exact", [5_000, 0], ids=["all", "a sample"])
def test_a_dry_run_evaluates_the_transform_in_one_other_process(
    stream: Any, declare: Any, monkeypatch: pytest.MonkeyPatch, max_exact: int
) -> None:
    """Its memory limit may abort a process that also reads Kafka."""
    started, ensure_child = list[IsolatedDecoder](), IsolatedDecoder._ensure_child

    def count_start(self: IsolatedDecoder) -> None:
        if self._child is None:
            started.append(self)
        ensure_child(self)

    monkeypatch.setattr(IsolatedDecoder, "_ensure_child", count_start)
    monkeypatch.setattr("frazil.backfill.estimate.MAX_EXACT_RECORDS", max_exact)
    monkeypatch.setattr("frazil.backfill.source.MAX_SAMPLE_OFFSETS", 1)
    stream.produce(OLD)
    declare("", start=True)
    path = stream.streams / "events.yaml"
    declared = yaml.safe_load(path.read_text())
    declared["source"]["schema"] = declared["schema"]
    declared["transform"] = 'SELECT id, "at", note FROM records WHERE id < 4'
    path.write_text(yaml.safe_dump(declared))
    stream.produce(NEW)
    stream.catch_up()
    monkeypatch.setattr(transform, "limit_memory", lambda _: pytest.fail("the transform runs in this process"))
    with asking(stream) as backfill:
        found = estimate(backfill, backfill.plan())
    assert (found.records, found.rejected, len(started)) == (4, 1, 1)


def test_very_many_ranges_of_repeats_are_read_with_the_rows_between_them(
    stream: Any, declare: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    declare(DEDUPE)
    stream.produce([*OLD, record(7, "a", 7), record(7, "a", 8), record(7, "a", 9), *NEW, record(5, "b", 9)])
    stream.catch_up()
    before = rows("test.events")
    load_catalog(None).load_table("test.events").delete("id = 4")
    monkeypatch.setattr("frazil.backfill.run.MAX_SPANS", 2)
    done = backfilled(stream)
    assert done is not None
    assert done.records == len(OLD + NEW) + 3, "all but the dead letter"
    assert rows("test.events") == before
    assert is_right(stream)


def test_a_route_without_missing_records_is_not_backfilled(stream: Any, declare: Any) -> None:
    declare(ROUTE)
    stream.produce(OLD + NEW)
    stream.catch_up()
    assert backfilled(stream) is None


class Killed(BaseException):
    """An exception that frazil never catches."""


def kill_after(patch: pytest.MonkeyPatch, owner: Any, name: str) -> None:
    original = getattr(owner, name)

    def dying(*args: Any, **kwargs: Any) -> Any:
        original(*args, **kwargs)
        raise Killed(name)

    patch.setattr(owner, name, dying)


@pytest.mark.rotates(2)
@pytest.mark.parametrize("kind", KINDS)
def test_a_backfill_that_is_killed_at_any_point_lands_once(
    stream: Any, declare: Any, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    more, expected = KINDS[kind]
    stream.produce(OLD)
    declare(more, start=True)
    stream.produce(NEW)
    stream.catch_up()
    points = [
        (BackfillCommitter, "begin"),
        (BackfillCommitter, "commit"),
        (BackfillCommitter, "mark_staged"),
        (Backfill, "_audit"),
    ]
    for owner, name in (*points, (backfill_commit, "_publish"), (backfill_commit, "commit_to_routed_tables")):
        with monkeypatch.context() as patch:
            kill_after(patch, owner, name)
            with pytest.raises(Killed, match=name):
                backfilled(stream, chunk_records=2)
    backfilled(stream, chunk_records=2)
    assert {name: rows(f"test.{name}") for name in expected} == expected
    assert stream.table("_dead_letters").scan().to_arrow().num_rows == 1
    assert is_right(stream)


def test_rows_wait_for_a_table_that_refuses_them(
    stream: Any, declare: Any, frazil: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream.produce(OLD)
    declare(ROUTE, start=True)
    stream.produce(NEW)
    stream.catch_up()
    catalog = type(load_catalog(None))
    commit = catalog.commit_table

    def refusing(self: Any, table: Any, *given: Any, **named: Any) -> Any:
        if table.name()[-1] == "a":
            raise ForbiddenError("not yours")
        return commit(self, table, *given, **named)

    with monkeypatch.context() as patched:
        patched.setattr(catalog, "commit_table", refusing)
        with pytest.raises(CommitUnavailable, match=r"table test\.a does not have 3 rows yet: .*not yours"):
            backfilled(stream)
    assert rows("test.of_c") == [(3, 3)]
    said = frazil("route", "events").stdout
    assert "test.a: the default table has these rows. Run `frazil backfill events` to add them here" in said
    assert is_right(stream), "what waits is counted"
    assert backfilled(stream) is None, "it ends the last one, and nothing else is missing"
    assert rows("test.a") == KINDS["route"][1]["a"]
    assert is_right(stream)


def test_deleted_rows_stay_deleted(stream: Any, declare: Any) -> None:
    stream.produce([record(1, "a", 1), record(2, "b", 2), record(3, "a", 3)])
    declare(DELETES, start=True)
    stream.produce([record(1, "a", 4, gone=True), record(4, "b", 4)])
    stream.catch_up()
    with asking(stream) as backfill, InProcessEngine() as engine:
        stage(backfill, engine)
        stream.produce([record(2, "b", 5, gone=True)])
        stream.catch_up()
        with pytest.raises(WriterBusy, match="has read more records since backfill"):
            backfill.publish()
        assert rows("test.events") == [(4, 4)]
        done = run(backfill, engine)
    assert done is not None
    assert done.state is BackfillState.PUBLISHED
    assert rows("test.events") == [(3, 3), (4, 4)]
    assert is_right(stream)
    for bound in ({"to_time": "2090-01-01T00:00:00Z"}, {"files": "/tmp"}, {"from_event_time": "2020-01-01T00:00:00Z"}):
        with pytest.raises(SpecError, match="the table does not record deleted rows"), asking(stream, **bound):
            pass


def test_a_delete_for_a_route_value_without_a_table_creates_no_table(stream: Any, declare: Any) -> None:
    stream.produce([record(1, "d", 1, gone=True), record(2, "b", 2)])
    declare(DELETES + ROUTE, start=True)
    stream.produce([record(3, "b", 3)])
    stream.catch_up()
    backfilled(stream)
    assert rows("test.of_b") == [(2, 2), (3, 3)]
    assert ("test", "of_d") not in load_catalog(None).list_tables("test")
    assert is_right(stream)


def test_rows_of_an_earlier_declaration_of_the_route_are_not_wrong_after_a_backfill(stream: Any, declare: Any) -> None:
    declare(ROUTE)
    stream.produce([record(number, "a", number) for number in range(4)])
    stream.catch_up()
    declare(ROUTE.replace("test.a", "test.other"))
    stream.produce([record(number, "a", number) for number in range(4, 8)])
    stream.catch_up()
    load_catalog(None).load_table("test.other").delete("id = 6")
    backfilled(stream)
    assert (rows("test.a"), rows("test.other")) == ([(n, n) for n in range(4)], [(n, n) for n in range(4, 8)])
    found = audit_declared_stream(stream.spec, window=None, with_source=True)
    assert (found.errors, found.complete) == ((), False), found.findings
    (said,) = (f.sentence for f in found.findings if f.where == "test.a")
    assert said.endswith("at offsets 0 to 3. An earlier declaration of the route may have written them")
    moved = load_catalog(None).load_table("test.other").scan("id = 5").to_arrow()
    load_catalog(None).load_table("test.other").delete("id = 5")
    load_catalog(None).load_table("test.a").append(moved)
    assert not is_right(stream)


def test_changes_are_not_written_next_to_rows_of_a_former_route(stream: Any, declare: Any) -> None:
    declare(UPSERT)
    stream.produce([record(1, "a", 1)])
    stream.catch_up()
    declare(UPSERT + ROUTE)
    stream.produce([record(2, "a", 2)])
    stream.catch_up()
    with pytest.raises(Exception, match=r"table test\.events has 1 record for table test\.a, from an earlier"):
        backfilled(stream)
    assert rows("test.a") == [(2, 2)]


@pytest.mark.parametrize("kind", KINDS)
def test_an_abandoned_backfill_leaves_nothing(stream: Any, declare: Any, frazil: Any, kind: str) -> None:
    stream.produce(OLD)
    declare(KINDS[kind][0], start=True)
    stream.produce(NEW)
    stream.catch_up()
    before = {name: rows(f"test.{name}") for name in KINDS[kind][1]}
    folder = Path(bare_path(stream.table().location())).parent  # of all tables
    files = {*folder.rglob("*.parquet")}
    with asking(stream) as backfill, InProcessEngine() as engine:
        stage(backfill, engine)
    assert files < {*folder.rglob("*.parquet")}
    assert "is abandoned" in frazil("backfill", "events", "--abandon", "--yes").stdout
    assert files == {*folder.rglob("*.parquet")}
    assert {name: rows(f"test.{name}") for name in KINDS[kind][1]} == before
    assert is_right(stream)
