"""A route's tables, named or created on demand: through the catalog, and never the table of another owner."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.schema import Schema

from frazil.commit.committer import Committer
from frazil.commit.compare_and_swap import RetryPolicy
from frazil.commit.followers import Followers, LaggingTable
from frazil.commit.journal import bare_path
from frazil.commit.marker import BatchKey, Marker, property_name, read_marker
from frazil.commit.settle import settle
from frazil.commit.stream_tables import StreamTables
from frazil.commit.sweep import batch_folder
from frazil.errors import Explanation, Fenced
from frazil.ingest.changes import CHANGE, UPSERT
from frazil.ingest.contract import StageContext
from frazil.ingest.decode import DecodedChunk
from frazil.ingest.destinations import DividedRows
from frazil.ingest.routed_writers import RoutedWriters
from frazil.ingest.table_writer import file_namer
from frazil.offsets.spans import SourceIdentity
from frazil.spec.model import StreamSpec
from frazil.spec.route import value_property
from frazil.stream import routed_tables
from frazil.stream.dropped_tables import recreate_table
from frazil.stream.route import StreamRoute
from frazil.stream.routed_tables import RoutedTables
from frazil.stream.stage_context import build_stage_context
from frazil.table.catalogs import load_catalog
from frazil.table.tables import ensure_dead_letters, ensure_table
from tests.made_routes import MadeRoute, shop

SOURCE = SourceIdentity("cluster", {"shop": "id"})

pytestmark = pytest.mark.usefixtures("frazil_home")


def declared(**route: Any) -> StreamSpec:
    return StreamSpec.model_validate(
        {
            "name": "shop",
            "source": {"topics": ["shop"], "format": "json", "bootstrap-servers": "nowhere:9092"},
            "table": {"identifier": "shop.other", "properties": {"write.data.path": "/tmp/nobody", "note": "kept"}},
            "schema": {"id": "long not null", "kind": "string", "at": "timestamptz not null"},
            "event-time": "at",
            "route": {"by": "field", "name": "kind", **route},
        }
    )


class Shop:
    """A stream with its default table and a route, as its writer opens them."""

    def __init__(self, **route: Any) -> None:
        self.spec = declared(**route)
        self.catalog: Catalog = load_catalog(None)
        targets = {
            "main": ensure_table(self.catalog, self.spec),
            "dead-letters": ensure_dead_letters(self.catalog, self.spec),
        }
        self.tables = StreamTables.open("shop", targets, clock_ms=lambda: 1, retry_policy=RetryPolicy(total_s=5))
        Committer.take_over(self.tables, source=SOURCE, initial=lambda: {("shop", 0): 0})

    def home(self) -> Marker:
        found = self.tables.marker()
        assert found is not None
        return found

    def open(self, **behind: LaggingTable) -> RoutedTables:
        assert self.spec.route is not None
        named = {name.replace("__", "."): found for name, found in behind.items()}
        routed = RoutedTables(self.spec, self.spec.route, self.catalog, self.tables, named)
        routed.open(self.home())
        return routed

    def context(self, routed: RoutedTables) -> StageContext:
        key = BatchKey(1, 1)
        return routed.add_targets(
            build_stage_context(self.spec, self.tables, key, kafka_properties={}, topic_ids=SOURCE.topic_ids), key
        )


def test_declared_tables_are_made_with_a_marker_and_folders_of_their_own() -> None:
    shop = Shop(tables={"a": "shop.a", "b": "shop.a"})
    routed = shop.open()
    assert routed.targets == {"a": "shop.a", "b": "shop.a"}
    table = shop.catalog.load_table("shop.a")
    assert read_marker(table.properties, "shop") is not None
    assert table.properties["note"] == "kept"
    assert "write.data.path" not in table.properties, "else a sweep of home would meet its files"
    context = shop.context(routed)
    assert context.targets["shop.a"].folder == f"{table.location()}/data/shop/00000001/00000001"
    assert context.targets["shop.a"].schema_json == context.main.schema_json
    assert StageContext.from_dict(context.to_dict()) == context


def test_only_tables_of_new_values_are_made(monkeypatch: pytest.MonkeyPatch) -> None:
    shop = Shop(template="shop.of_{value}", limit=2)
    routed = shop.open()
    routed.create_tables(["a"], shop.home())
    tried: list[str] = []
    monkeypatch.setattr(RoutedTables, "_try_create", lambda _, value, __: tried.append(value))
    routed.create_tables(["a", "b", "c"], shop.home())
    assert (sorted(routed.targets), tried) == (["a"], ["b"])


def test_a_start_deletes_files_that_a_lost_batch_staged_for_routed_tables() -> None:
    shop = Shop(tables={"a": "shop.a"})
    shop.open()
    table, lost, current = shop.catalog.load_table("shop.a"), BatchKey(1, 1), BatchKey(2, 1)
    for key in (lost, current):
        file = Path(bare_path(batch_folder(table, "shop", key))) / "0.parquet"
        file.parent.mkdir(parents=True)
        file.touch()
    next_start = dataclasses.replace(shop.tables, routed={})
    settle(next_start, Committer.take_over(next_start, source=SOURCE, initial=dict))
    StreamRoute.begin(shop.spec, next_start, shop.home(), Followers.load(next_start, shop.home()), lambda _: None)
    assert not (Path(bare_path(batch_folder(table, "shop", lost))) / "0.parquet").exists()
    assert (Path(bare_path(batch_folder(table, "shop", current))) / "0.parquet").exists()


@pytest.mark.parametrize("mode", [{}, {"mode": "upsert", "key": "kind"}], ids=["append", "upsert"])
def test_a_start_keeps_the_rows_of_a_table_that_was_renamed_in_the_catalog_and_in_the_route(
    mode: Mapping[str, Any],
) -> None:
    declaration = {**mode, "schema": {"kind": "string not null", "at": "timestamptz"}}
    made, keys = MadeRoute(shop(**declaration), time.time_ns() // 1_000_000), count()
    made.columns = lambda rows: {
        "kind": pa.array([f"{next(keys)}" for _ in range(rows)]),
        CHANGE: pa.array([UPSERT] * rows, pa.int32()),
    }
    made.begin_route("a")
    for _ in range(3):
        made.run({"main": 1, "shop.raw_a": 2})
    load_catalog(None).rename_table("shop.raw_a", "shop.moved")
    route = {"by": "field", "name": "kind", "tables": {"order": "shop.orders", "a": "shop.moved"}}
    again = MadeRoute(shop(**declaration, route=route), made.now_ms)
    again.begin()
    StreamRoute.begin(again.spec, again.tables, again.home(), again.followers, lambda _: None)
    assert load_catalog(None).load_table("shop.moved").scan().to_arrow().num_rows == 6


def test_a_start_continues_although_a_routed_table_cannot_be_swept(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refused(*_: object) -> None:
        raise PermissionError("not yours")

    shop = Shop(tables={"a": "shop.a"})
    monkeypatch.setattr("frazil.commit.sweep.batch_folders", refused)
    followers = Followers.load(shop.tables, shop.home())
    assert StreamRoute.begin(shop.spec, shop.tables, shop.home(), followers, lambda _: None) is not None
    assert "cannot delete files of failed batches of table shop.a; the next start tries again" in caplog.text


def test_after_a_failed_commit_to_a_dropped_table_its_rows_wait_in_the_default_tables_folder() -> None:
    shop = Shop(tables={"a": "shop.a"})
    routed = shop.open()
    shop.catalog.drop_table("shop.a")
    shop.tables.handle("shop.a").forget()  # as each failed commit does
    assert shop.context(routed).targets["shop.a"].folder == shop.tables.waiting_folder(BatchKey(1, 1))
    assert "does not exist" in routed.absent["shop.a"].reason


def test_the_reason_names_the_table_even_if_the_error_does_not() -> None:
    shop = Shop(tables={"a": "shop.a"})
    shop.open()
    with shop.catalog.load_table("shop.a").transaction() as changed:
        changed.set_properties({property_name("shop"): "edited by hand"})
    reason = shop.open().absent["shop.a"].reason
    assert reason.startswith("table shop.a cannot be loaded or created: the table property ")


def test_created_tables_are_found_again_and_count_towards_the_limit() -> None:
    shop = Shop(template="shop.of_{value}", limit=3)
    shop.open().create_tables(["b", "A"], shop.home())
    routed = shop.open()
    assert sorted(routed.targets) == ["A", "b"]
    routed.create_tables(["y", "x"], shop.home())
    assert sorted(routed.targets) == ["A", "b", "x"], "in the order of values, whoever asks"
    destinations = shop.context(routed).destinations
    assert destinations is not None
    assert destinations.full == (
        "route.limit is 3, and the writer has created that many tables. Raise it, or give the value a table in "
        "route.tables; then "
        "replay its dead letters"
    )


def test_tables_in_the_same_namespace_do_not_belong_to_the_route() -> None:
    shop = Shop(template="shop.of_{value}")
    home = shop.tables.main.current()
    for name, properties in (("of_plain", {}), ("of_moved", {value_property("shop"): "another"}), ("of_", {})):
        shop.catalog.create_table(f"shop.{name}", home.schema(), properties=properties)
    routed = shop.open()
    assert routed.targets == {}
    routed.create_tables(["plain", "moved", "new"], shop.home())
    assert sorted(routed.targets) == ["new"]
    assert sorted(routed.refused) == ["moved", "plain"]
    assert read_marker(shop.catalog.load_table("shop.of_plain").properties, "shop") is None


def test_two_writers_that_make_a_table_at_once_make_one() -> None:
    shop = Shop(template="shop.of_{value}")
    one, other = shop.open(), shop.open()
    one.create_tables(["a"], shop.home())
    other.create_tables(["a"], shop.home())
    assert one.targets == other.targets == {"a": "shop.of_a"}
    marker = read_marker(shop.catalog.load_table("shop.of_a").properties, "shop")
    assert marker is not None
    assert len(shop.catalog.load_table("shop.of_a").metadata.snapshots) == 1


def test_many_tables_are_made_side_by_side() -> None:
    shop = Shop(template="shop.of_{value}")
    routed = shop.open()
    routed.create_tables([f"v{number}" for number in range(25)], shop.home())
    assert len(routed.targets) == routed.created_count == 25
    assert len({id(t.schema_json) for name, t in shop.context(routed).targets.items() if "." in name}) == 1


def test_a_missing_table_with_waiting_rows_is_not_recreated() -> None:
    shop = Shop(template="shop.of_{value}")
    shop.open().create_tables(["a"], shop.home())
    shop.catalog.purge_table("shop.of_a")
    waiting = LaggingTable("shop.of_a", 1, 1, 5, Explanation("it no longer exists"))
    routed = shop.open(shop__of_a=waiting)
    routed.create_tables(["a"], shop.home())
    assert routed.absent["shop.of_a"].reason == "shop.of_a is missing 5 rows of 1 batch: it no longer exists"
    recreate_table(shop.spec, shop.tables, "shop.of_a")
    assert "shop.of_a" in shop.open(shop__of_a=waiting).absent
    assert read_marker(shop.catalog.load_table("shop.of_a").properties, "shop") is None


def test_tables_created_for_a_value_that_is_now_declared_elsewhere_are_left_unchanged() -> None:
    shop = Shop(template="shop.of_{value}")
    shop.open().create_tables(["a"], shop.home())
    assert shop.spec.route is not None
    shop.spec = shop.spec.model_copy(
        update={"route": shop.spec.route.model_copy(update={"tables": {"a": "shop.declared"}})}
    )
    routed = shop.open()
    assert (routed.targets, routed.created_count) == ({"a": "shop.declared"}, 0)


def test_a_fenced_writer_prepares_no_further_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    shop = Shop(tables={str(n): f"shop.of_{n}" for n in range(200)})
    loaded: list[str] = []

    def load(_: object, identifier: str) -> None:
        loaded.append(identifier)
        time.sleep(0.005)
        raise Fenced("another writer took over")

    monkeypatch.setattr(routed_tables, "find_table", load)
    with pytest.raises(Fenced):
        shop.open()
    assert len(loaded) < 100


def test_tables_that_are_alike_are_parsed_once_by_a_task() -> None:
    shop = Shop(template="shop.of_{value}")
    routed = shop.open()
    routed.create_tables(["a", "b"], shop.home())
    context = shop.context(routed)
    writers = RoutedWriters(context, file_name=file_namer(0, 0))
    schema = schema_to_pyarrow(Schema.model_validate_json(context.main.schema_json), include_field_ids=True)
    at = datetime(2024, 1, 1, tzinfo=UTC)
    found = {"kafka_topic": "t", "kafka_partition": 0, "at": at}
    rows = pa.Table.from_pylist([{**found, "id": n, "kind": "ab"[n % 2], "kafka_offset": n} for n in range(6)], schema)
    divided = DividedRows(
        DecodedChunk(rows, np.arange(6)), ("shop.of_a", "main", "shop.of_b"), np.array([0, 2, 0, 2, 0, 1])
    )
    writers.dry_write(divided)
    writers.add(divided)
    files = writers.finish()
    assert sorted((file.target, file.records) for file in files) == [("shop.of_a", 3), ("shop.of_b", 2)]
    assert all(file.path.startswith(context.targets[file.target].folder) for file in files)
    assert len(writers._ios) == 1
    first, second = (writers._writers[name].layout for name in ("shop.of_a", "shop.of_b"))
    assert first.arrow_schema is second.arrow_schema, "tables alike are parsed once"


def test_many_tables_share_the_memory_of_one_writer() -> None:
    shop = Shop(template="shop.of_{value}")
    routed = shop.open()
    routed.create_tables(["a", "b"], shop.home())
    context = shop.context(routed)
    writers = RoutedWriters(context, file_name=file_namer(0, 0), buffer_bytes=1, undivided_bytes=1)
    schema = schema_to_pyarrow(Schema.model_validate_json(context.main.schema_json), include_field_ids=True)
    found = {"kafka_topic": "t", "kafka_partition": 0, "at": datetime(2024, 1, 1, tzinfo=UTC), "kind": "a"}
    for start in (0, 4):
        rows = pa.Table.from_pylist([{**found, "id": n, "kafka_offset": n} for n in range(start, start + 4)], schema)
        writers.add(DividedRows(DecodedChunk(rows, np.arange(4)), ("shop.of_a", "shop.of_b"), np.array([0, 1, 0, 1])))
        assert writers._held == 0
    assert (
        sorted((file.target, file.records) for file in writers.finish())
        == [("shop.of_a", 2)] * 2 + [("shop.of_b", 2)] * 2
    )


@pytest.mark.parametrize(
    ("value", "recorded", "foreign"), [(None, "a", True), ("a", "a", False), ("b", "a", True), ("a", None, False)]
)
def test_a_table_without_a_marker_is_foreign_unless_its_value_is_the_recorded_one(
    monkeypatch: pytest.MonkeyPatch, *, value: str | None, recorded: str | None, foreign: bool
) -> None:
    table = SimpleNamespace(properties={} if value is None else {value_property("shop"): value})
    tables: Any = SimpleNamespace(handle=lambda _: SimpleNamespace(current=lambda: table))
    record = None if recorded is None else SimpleNamespace(value=recorded)
    monkeypatch.setattr(routed_tables, "read_table_record", lambda *_: record)
    monkeypatch.setattr(routed_tables, "load_missing_table_note", lambda *_: None)
    spec = declared(template="shop.raw_{value}")
    assert routed_tables.is_foreign_table(spec, tables, "shop.raw_a") == foreign
