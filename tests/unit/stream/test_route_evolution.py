"""Tasks decode each record with its table's columns, and report schema drift for each table."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from pyiceberg.types import LongType, StringType

from frazil.commit.committer import Committer
from frazil.commit.compare_and_swap import RetryPolicy
from frazil.commit.marker import BatchKey
from frazil.commit.merging import merge_config
from frazil.commit.stream_tables import StreamTables
from frazil.ingest import readers
from frazil.ingest.changes import CHANGE
from frazil.ingest.chunk import BinaryColumn, RecordChunk, pack_headers
from frazil.ingest.contract import OffsetRange, StageContext, StageResult, StageTask
from frazil.ingest.schema_drift import SchemaDrift, join_drift
from frazil.ingest.stage import stage
from frazil.ingest.target_decoders import find_equal_targets
from frazil.offsets.spans import SourceIdentity
from frazil.spec.model import StreamSpec
from frazil.stream.evolve import evolve_table
from frazil.stream.routed_tables import RoutedTables
from frazil.stream.stage_context import build_stage_context
from frazil.table.catalogs import load_catalog
from frazil.table.renamed_columns import ColumnChanges, change_columns
from frazil.table.tables import ensure_dead_letters, ensure_table

pytestmark = pytest.mark.usefixtures("frazil_home")

SOURCE = SourceIdentity("cluster", {"shop": "id"})
RANGES = (OffsetRange("shop", 0, 0, 100), OffsetRange("more", 0, 0, 100))


class Reader:
    """Yields a chunk where Kafka's would come."""

    notice: str | None = None

    def __init__(self, chunk: RecordChunk) -> None:
        self.chunk = chunk

    def __call__(self, *_: Any, **__: Any) -> Reader:
        return self

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def __iter__(self) -> Iterator[RecordChunk]:
        return iter([self.chunk])


class Shop:
    """A stream with a route to `shop.a` and `shop.b`, and a task's results for its records."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, route: Mapping[str, Any] | None = None, **more: Any) -> None:
        named = {"by": "field", "name": "kind", "tables": {"a": "shop.a", "b": "shop.b"}}
        self.spec = StreamSpec.model_validate(
            {
                "name": "shop",
                "source": {"topics": ["shop"], "format": "json", "bootstrap-servers": "nowhere:9092"},
                "table": "shop.other",
                "schema": {"id": "long not null", "kind": "string", "at": "timestamptz"},
                "event-time": "at",
                "evolution": "additive",
                "route": {**named, **(route or {})},
                **more,
            }
        )
        catalog = load_catalog(None)
        targets = {"main": ensure_table(catalog, self.spec), "dead-letters": ensure_dead_letters(catalog, self.spec)}
        retry_policy, merging = RetryPolicy(total_s=5), merge_config(self.spec)
        self.tables = StreamTables.open("shop", targets, clock_ms=lambda: 1, retry_policy=retry_policy, merging=merging)
        Committer.take_over(self.tables, source=SOURCE, initial=lambda: {("shop", 0): 0})
        self.monkeypatch = monkeypatch

    def column(self, target: str, name: str, kind: Any) -> None:
        self.routed()
        with load_catalog(None).load_table(target).update_schema() as update:
            update.add_column(name, kind)

    def routed(self) -> RoutedTables:
        assert self.spec.route is not None
        routed = RoutedTables(self.spec, self.spec.route, load_catalog(None), self.tables)
        marker = self.tables.marker()
        assert marker is not None
        routed.open(marker)
        return routed

    def context(self) -> StageContext:
        self.tables = dataclasses.replace(self.tables, routed={})
        key = BatchKey(1, 1)
        context = build_stage_context(self.spec, self.tables, key, kafka_properties={}, topic_ids=SOURCE.topic_ids)
        return dataclasses.replace(self.routed().add_targets(context, key), evolution=self.spec.evolution.mode)

    def stage(
        self, values: Sequence[object], *, attempt: int = 0, kinds: Sequence[str] = (), ranges: Sequence[int] = ()
    ) -> StageResult:
        count = len(values)
        texts = [value if isinstance(value, bytes) else json.dumps(value).encode() for value in values]
        headers = BinaryColumn.of([pack_headers([("kind", kind.encode())]) for kind in kinds]) if kinds else None
        index, stamps = np.array(ranges or [0] * count, np.int32), np.zeros(count, np.int64)
        chunk = RecordChunk(
            BinaryColumn.of(texts), BinaryColumn.nulls(count), index, np.arange(count), stamps, headers=headers
        )
        self.monkeypatch.setattr(readers, "create_kafka_reader", Reader(chunk))
        return stage(self.context(), StageTask(0, RANGES), attempt=attempt)

    def evolve(self, result: StageResult) -> dict[str, list[str]]:
        found = {
            target: evolve_table(
                self.tables.handle(target).refresh(), self.spec, [drift], main=self.tables.main.refresh()
            )
            for target, drift in result.drift.items()
        }
        self.refused = {target: [(f.path, f.reason) for f in one.refused] for target, one in found.items()}
        return {target: [*one.changes] for target, one in found.items()}


def rows(result: StageResult, target: str) -> list[dict[str, Any]]:
    paths = [file.path.removeprefix("file://") for file in result.files if file.target == target]
    found = [row for path in paths for row in pq.read_table(path).to_pylist()]
    wanted = [{name: value for name, value in row.items() if "kafka" not in name and name != "at"} for row in found]
    return sorted(wanted, key=lambda row: (row["id"], row.get(CHANGE, 0)))


RECORDS = [
    {"id": 0, "kind": "a", "size": 1, "gate": "A1"},
    {"id": 1, "kind": "b", "size": "large"},
    {"id": 2, "left": True},
    {"id": 3, "kind": "a", "size": 2},
    b'{"id": 4, "kind": "a", "never": 1',
    {"id": "x", "kind": "b", "never": 1},
    {"id": 6, "kind": 7, "never": 1},
]


@pytest.mark.parametrize("attempt", [0, 1])
def test_each_table_gets_the_fields_of_the_records_that_land_in_it(
    monkeypatch: pytest.MonkeyPatch, attempt: int
) -> None:
    shop = Shop(monkeypatch)
    result = shop.stage(RECORDS, attempt=attempt)
    assert StageResult.from_json(json.loads(json.dumps(result.to_json()))) == result
    assert {target: dict(drift.new) for target, drift in result.drift.items()} == {
        "main": {("left",): "boolean"},
        "shop.a": {("size",): "long", ("gate",): "string"},
        "shop.b": {("size",): "string"},
    }
    shop.evolve(result)
    result = shop.stage(RECORDS, attempt=attempt)
    assert result.drift == {}
    assert rows(result, "shop.a") == [
        {"id": 0, "kind": "a", "size": 1, "gate": "A1"},
        {"id": 3, "kind": "a", "size": 2, "gate": None},
    ]
    assert rows(result, "shop.b") == [{"id": 1, "kind": "b", "size": "large"}]
    assert rows(result, "main") == [{"id": 2, "kind": None, "left": True}]
    assert (result.rejects.total, sum(p.records for p in result.progress)) == (3, 4)


@pytest.mark.parametrize("by", ["header", "topic"])
def test_routing_by_header_or_topic_needs_no_first_decoding_pass(monkeypatch: pytest.MonkeyPatch, by: str) -> None:
    if by == "topic":
        route: dict[str, Any] = {"by": "topic", "name": None, "tables": {"shop": "shop.a", "more": "shop.b"}}
    else:
        route = {"by": "header"}
    shop = Shop(monkeypatch, route=route, source={
        "topics": ["shop", "more"], "format": "json", "bootstrap-servers": "nowhere:9092"
    })  # fmt: skip
    records = [{"id": 0, "size": 1}, {"id": 1, "size": "x"}, {"id": 2, "size": 2}]
    result = shop.stage(records, kinds=["a", "b", "a"], ranges=[0, 1, 0])
    new = {target: dict(drift.new) for target, drift in result.drift.items()}
    assert new == {"shop.a": {("size",): "long"}, "shop.b": {("size",): "string"}}


def test_a_record_whose_table_does_not_exist_yet_or_is_refused_changes_no_schema(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    route = {"template": "shop.of_{value}", "allow": ["new"], "otherwise": "dead-letters"}
    records = [{"id": 0, "kind": "new", "x": 1}, {"id": 1, "kind": "odd", "x": 1}, {"id": 2, "x": 1}]
    result = Shop(monkeypatch, route=route).stage(records)
    assert (result.drift, result.values, result.rejects.total) == ({}, ("new",), 2)


def test_without_evolution_a_tables_own_columns_are_filled_and_equal_tables_are_decoded_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shop = Shop(monkeypatch, evolution="off")
    assert find_equal_targets(shop.context()) is None
    shop.column("shop.a", "size", StringType())
    assert find_equal_targets(shop.context()) == {"shop.b": "main"}
    result = shop.stage([{"id": 0, "kind": "a", "size": "x"}, {"id": 1, "kind": "b", "size": 1}, {"id": 2, "y": 1}])
    assert rows(result, "shop.a") == [{"id": 0, "kind": "a", "size": "x"}]
    assert (rows(result, "shop.b"), result.drift) == ([{"id": 1, "kind": "b"}], {})


def test_a_row_that_moves_to_another_table_is_decoded_with_the_columns_of_its_new_table(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    envelope = {"type": "debezium", "metadata": {"lsn": "source.lsn"}}
    shop = Shop(
        monkeypatch,
        schema={"id": "long not null", "kind": "string not null", "at": "timestamptz", "lsn": "long"},
        mode="upsert",
        key=["id", "kind"],
        **{"order-by": "lsn"},
        source={"topics": ["shop"], "format": {"type": "json", "envelope": envelope}, "bootstrap-servers": "no:9092"},
    )
    shop.column("shop.b", "size", LongType())
    shop.column("shop.a", "gate", StringType())
    before, after = {"id": 1, "kind": "a", "gate": "A1"}, {"id": 1, "kind": "b", "size": 2, "more": "x"}
    events = [
        {"op": "c", "before": None, "after": before, "source": {"lsn": 1}},
        {"op": "u", "before": before, "after": after, "source": {"lsn": 2}},
        {"op": "d", "before": after, "after": None, "source": {"lsn": 3}},
        {"op": "u", "before": after, "after": {"id": 1, "kind": "z"}, "source": {"lsn": 4}},
    ]
    result = shop.stage(events)
    assert result.drift == {"shop.b": SchemaDrift({("more",): "string"}, records=1)}
    found = [(row["gate"], row["lsn"], row[CHANGE]) for row in rows(result, "shop.a")]
    assert sorted(found, key=lambda row: row[1]) == [("A1", 1, 0), (None, 2, 1)]
    moved = [(row["size"], row["lsn"], row[CHANGE]) for row in rows(result, "shop.b")]
    assert sorted(moved, key=lambda row: row[1]) == [(2, 2, 0), (None, 3, 1), (None, 4, 1)]
    assert [(row["lsn"], row[CHANGE]) for row in rows(result, "main")] == [(4, 0)]


def test_a_field_renamed_or_dropped_in_the_default_table_is_treated_so_in_tables_added_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shop = Shop(monkeypatch)
    records = [{"id": 0, "note": "x", "gate": 1}]
    shop.evolve(shop.stage(records))
    change_columns(load_catalog(None).load_table("shop.other"), ColumnChanges({"note": "remark"}, ["gate"]), fixed={})
    records += [{"id": 1, "kind": "a", "note": "y", "gate": 2}, {"id": 2, "kind": "a", "remark": "z"}]
    result = shop.stage(records)
    assert shop.evolve(result) == {"main": [], "shop.a": ["added column remark string"]}
    assert shop.refused["shop.a"] == [(("gate",), "was dropped from the stream's tables")]
    result = shop.stage(records)
    assert rows(result, "shop.a") == [
        {"id": 1, "kind": "a", "remark": "y"},
        {"id": 2, "kind": "a", "remark": "z"},
    ]
    assert rows(result, "main") == [{"id": 0, "kind": None, "remark": "x"}]
    drift = join_drift(result.drift.values())
    assert [*drift.new] == [("gate",)], "it is reported, and ignored with a notice"


def test_a_table_that_is_not_renamed_yet_fills_its_own_columns_by_both_names(monkeypatch: pytest.MonkeyPatch) -> None:
    due = {"type": "timestamptz", "unit": "s"}
    shop = Shop(monkeypatch, schema={"id": "long not null", "kind": "string", "at": "timestamptz", "due": due})
    shop.column("shop.a", "gate", StringType())
    routed = shop.routed()  # as a running writer knows the tables
    change_columns(load_catalog(None).load_table("shop.other"), ColumnChanges({"due": "until"}, []), fixed={})
    monkeypatch.setattr(shop, "routed", lambda: routed)
    result = shop.stage([{"id": n, "kind": "a", name: n, "gate": "x"} for n, name in enumerate(("due", "until"))])
    found = [(row["id"], row["due"].timestamp(), row["gate"]) for row in rows(result, "shop.a")]
    assert found == [(0, 0, "x"), (1, 1, "x")]
    assert result.drift == {}


def test_a_renamed_rest_column_gets_the_remaining_fields_in_every_table(monkeypatch: pytest.MonkeyPatch) -> None:
    columns = {"id": "long not null", "kind": "string", "at": "timestamptz", "more": "string"}
    shop = Shop(monkeypatch, schema=columns, rest="more")
    shop.routed()
    for table in ("shop.other", "shop.a"):
        change_columns(load_catalog(None).load_table(table), ColumnChanges({"more": "extra"}, []), fixed={})
    found = shop.stage([{"id": 0, "kind": "a", "more": 1, "x": 2}])
    assert [json.loads(row["extra"]) for row in rows(found, "shop.a")] == [{"more": 1, "x": 2}]


@pytest.mark.parametrize("added", [None, "new"])
@pytest.mark.parametrize("more", [{}, {"transform": "SELECT * FROM records"}])
def test_a_value_that_a_record_does_not_have_is_the_default_of_its_own_table(
    monkeypatch: pytest.MonkeyPatch, more: dict[str, Any], added: str | None
) -> None:
    table = {"identifier": "shop.other", "properties": {"format-version": "3"}}
    schema = {"id": "long not null", "kind": "string", "at": "timestamptz", "note": "string"}
    shop = Shop(monkeypatch, evolution="off", table=table, schema=schema, **more)
    shop.routed()
    with load_catalog(None).load_table("shop.a").update_schema() as update:
        update.set_default_value("note", "of a")
        if added:
            update.add_column("added", StringType(), default_value=added)
    result = shop.stage(
        [{"id": 1, "kind": "a"}, {"id": 2, "kind": "b"}, {"id": 3}, {"id": 4, "kind": "a", "note": "own"}]
    )
    assert [(row["note"], row.get("added")) for row in rows(result, "shop.a")] == [("of a", added), ("own", added)]
    assert [row["note"] for target in ("shop.b", "main") for row in rows(result, target)] == [None, None]
