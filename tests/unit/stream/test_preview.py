"""A preview shows the outcome of each record."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField

from frazil.cli import records
from frazil.cli.main import frazil
from frazil.ingest import transform
from frazil.ingest.contract import OffsetRange
from frazil.ingest.transform import limit_memory
from frazil.spec.iceberg import table_schema
from frazil.stream import preview
from frazil.table.catalogs import load_catalog
from tests.unit.ingest.test_key_columns import stream as without_transform
from tests.unit.ingest.test_transform import Reader, stream

pytestmark = pytest.mark.usefixtures("frazil_home")


class ClosableReader(Reader):
    closed = False

    def __exit__(self, *_: object) -> None:
        self.closed = True


def test_the_preview_shows_a_record_that_fails_the_transform_as_a_dead_letter(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    spec = stream("SELECT n AS a FROM records WHERE txt LIKE 'a' ESCAPE tags[1]", schema={"a": "long"})
    values = [b'{"txt": "a", "tags": ["x"]}', b'{"txt": "a", "tags": ["too long"]}', b'{"txt": "b", "tags": ["x"]}']
    reader = ClosableReader(values, 10)

    def limit_memory_of_no_reader(growth: int) -> AbstractContextManager[None]:
        assert reader.closed, "the limit may abort a process that reads"
        return limit_memory(growth)

    monkeypatch.setattr(transform, "limit_memory", limit_memory_of_no_reader)
    monkeypatch.setattr(preview, "create_kafka_reader", lambda *_, **__: reader)
    monkeypatch.setattr(preview, "_newest_ranges", lambda *_: [OffsetRange("t", 0, 0, 3)])
    found = preview.preview(spec, limit=3)
    assert [(one.offset, one.outcome) for one in found] == [(0, "row"), (1, "dead letter"), (2, "dropped")]
    assert found[1].error.startswith("TransformFailed: the transform failed: Syntax Error: ")


@pytest.mark.parametrize(
    "more", [{"tables": {"a": "shop.a"}, "otherwise": "dead-letters"}, {"template": "shop.{value}", "allow": ["a"]}]
)
def test_a_value_without_a_table_in_the_route_is_a_dead_letter(
    more: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = without_transform({"kind": "string"}, {}, route={"by": "field", "name": "kind", **more})
    values = [b'{"kind": "a"}', b'{"kind": "b"}']
    monkeypatch.setattr(preview, "create_kafka_reader", lambda *_, **__: Reader(values, 10))
    monkeypatch.setattr(preview, "_newest_ranges", lambda *_: [OffsetRange("t", 0, 0, 2)])
    good, bad = preview.preview(spec, limit=2)
    assert (good.outcome, bad.outcome, bad.rows) == ("row", "dead letter", ())
    assert (good.tables, bad.tables) == (("shop.a",), ())
    assert bad.error.startswith("NoTable: field kind: 'b' ")


def test_the_preview_distinguishes_unchanged_records_from_rejected_records(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source = {"format": {"type": "json", "envelope": "debezium"}}
    spec = without_transform({"id": "long not null", "n": "long"}, source, mode="upsert", key="id")
    other = b'{"op": "m", "message": {}}'
    values = [b'{"op": "c", "after": {"id": 1, "n": 2}}', other, b'{"op": "c", "after": {"n": 2}}']
    values += [b'{"op": "d", "before": {"id": 1}}', b'{"op": "u", "before": {"id": 1}, "after": {"id": 2, "n": 2}}']
    monkeypatch.setattr(preview, "create_kafka_reader", lambda *_, **__: Reader(values, 10))
    monkeypatch.setattr(preview, "_newest_ranges", lambda *_: [OffsetRange("t", 0, 0, 5)])
    found = preview.preview(spec, limit=5)
    assert [(one.outcome, bool(one.error)) for one in found] == [
        ("change", False),
        ("no change", False),
        ("dead letter", True),
        ("delete", False),
        ("change", False),
    ]


def test_preview_shows_the_table_of_each_row_and_does_not_promise_that_a_stale_change_lands(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    source = {"format": {"type": "json", "envelope": "debezium"}}
    route = {"by": "field", "name": "of", "tables": {"a": "shop.a"}, "template": "shop.{value}"}
    columns = {"id": "long not null", "of": "string not null"}
    spec = without_transform(columns, source, mode="upsert", key=["id", "of"], route=route)
    moved = b'{"op": "u", "before": {"id": 1, "of": "a"}, "after": {"id": 1, "of": "b"}}'
    values = [moved, b'{"op": "d", "before": {"id": 2, "of": "c"}}']
    monkeypatch.setattr(preview, "create_kafka_reader", lambda *_, **__: Reader(values, 10))
    monkeypatch.setattr(preview, "_newest_ranges", lambda *_: [OffsetRange("t", 0, 0, 2)])
    monkeypatch.setattr(records, "find_stream", lambda *_: spec)
    shown = CliRunner().invoke(frazil, ["preview", "s", "--streams", str(tmp_path)])
    change, delete, counts, note = shown.stdout.splitlines()
    assert change == 't-0@0  change       shop.b: {"id": 1, "of": "b"} shop.a: {"id": 1, "of": "a"}'
    assert delete == 't-0@1  delete       shop.c: {"id": 2, "of": "c"}'
    assert counts == "2 records: 1 change, 0 dropped, 0 dead letters, 1 delete. Nothing was written."
    assert note.startswith("A merge skips changes and deletes that are older")


def test_the_preview_shows_a_row_without_a_route_value_in_the_default_table(monkeypatch: pytest.MonkeyPatch) -> None:
    route = {"by": "field", "name": "kind", "tables": {"a": "shop.a"}, "otherwise": "table"}
    spec = without_transform({"kind": "string"}, {}, route=route)
    monkeypatch.setattr(preview, "create_kafka_reader", lambda *_, **__: Reader([b"{}"], 10))
    monkeypatch.setattr(preview, "_newest_ranges", lambda *_: [OffsetRange("t", 0, 0, 1)])
    (one,) = preview.preview(spec, limit=1)
    assert one.tables == (spec.table.identifier,)


def test_a_preview_says_that_it_does_not_look_for_repeats(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    spec = without_transform({"id": "long not null"}, {}, dedupe={"key": "id", "within": "1h"})
    monkeypatch.setattr(preview, "create_kafka_reader", lambda *_, **__: Reader([b'{"id": 1}'] * 2, 10))
    monkeypatch.setattr(preview, "_newest_ranges", lambda *_: [OffsetRange("t", 0, 0, 2)])
    monkeypatch.setattr(records, "find_stream", lambda *_: spec)
    shown = CliRunner().invoke(frazil, ["preview", "s", "--streams", str(tmp_path)])
    assert shown.stdout.splitlines()[-2:] == [
        "2 records: 2 land, 0 dropped, 0 dead letters. Nothing was written.",
        "A commit drops repeats (dedupe), which a preview does not look for: fewer rows may land.",
    ]


def test_a_preview_reports_a_table_that_the_declaration_does_not_fit(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    spec = without_transform({"id": "long not null"}, {})
    monkeypatch.setattr(preview, "create_kafka_reader", lambda *_, **__: Reader([b'{"id": 1}'], 10))
    monkeypatch.setattr(preview, "_newest_ranges", lambda *_: [OffsetRange("t", 0, 0, 1)])
    monkeypatch.setattr(records, "find_stream", lambda *_: spec)
    made = table_schema(spec)
    table = load_catalog(None)
    table.create_namespace_if_not_exists(spec.table.identifier.split(".")[0])
    table.create_table(spec.table.identifier, Schema(*made.fields, NestedField(99, "of", LongType(), required=True)))
    counts, problem = CliRunner().invoke(frazil, ["preview", "s", "--streams", str(tmp_path)]).stdout.splitlines()[-2:]
    assert counts == "1 record: 1 lands, 0 dropped, 0 dead letters. Nothing was written."
    assert problem.startswith("A writer would refuse this declaration and write nothing: SchemaIncompatible: ")
    assert "column of is long not null in the table, but is not declared" in problem


@pytest.mark.parametrize(
    ("limit", "ranges"),
    [
        (10, [(0, 6, 10), (1, 98, 100), (2, 96, 100)]),
        (3, [(0, 9, 10), (1, 99, 100), (2, 99, 100)]),
        (2, [(0, 9, 10), (1, 99, 100)]),
        (500, [(0, 0, 10), (1, 98, 100), (2, 50, 100)]),
    ],
)
def test_a_preview_takes_more_records_of_large_partitions_if_others_have_few(
    limit: int, ranges: list[tuple[int, int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    spans = {("t", 0): (0, 10), ("t", 1): (98, 100), ("t", 2): (50, 100), ("t", 3): (7, 7)}
    kafka = SimpleNamespace(
        describe=lambda: SimpleNamespace(partitions=tuple(spans)),
        earliest=lambda partitions: {tp: spans[tp][0] for tp in partitions},
        log_ends=lambda partitions: {tp: SimpleNamespace(stable=spans[tp][1]) for tp in partitions},
    )
    monkeypatch.setattr(preview, "open_kafka", lambda _: nullcontext(kafka))
    found = preview._newest_ranges(stream("SELECT n AS a FROM records", schema={"a": "long"}), limit)
    assert [(one.partition, one.start, one.end) for one in found] == ranges
