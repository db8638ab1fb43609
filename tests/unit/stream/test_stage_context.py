"""What a driver sends to a batch's tasks: enough to read and write, but no secret they can look up."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, StringType
from pyspark.cloudpickle import dumps

from frazil.commit import compare_and_swap
from frazil.commit.compare_and_swap import TableHandle
from frazil.commit.marker import BatchKey
from frazil.commit.stream_tables import StreamTables
from frazil.errors import SchemaIncompatible
from frazil.ingest import readers, table_writer
from frazil.ingest import stage as stage_module
from frazil.ingest.contract import (
    OffsetRange,
    RecordFile,
    StageContext,
    StageResult,
    StageTask,
    TargetTable,
    Transform,
    TransformedColumn,
)
from frazil.spec.iceberg import table_schema
from frazil.spec.model import StreamSpec
from frazil.spec.references import declared_kafka_properties
from frazil.stream.progress import ProgressFolder
from frazil.stream.stage_context import build_declared_context, build_stage_context, hash_rules
from frazil.stream.stage_rows import StageRows
from frazil.table.catalogs import load_catalog
from frazil.table.declared_tables import declared_table
from frazil.table.object_store import IoProperties
from frazil.table.tables import ensure_dead_letters, ensure_table
from tests.unit.ingest.test_changes import ORDERS
from tests.unit.stream_with_secret import SPEC


class OnRest(TableHandle):
    """A table as a REST catalog loads it: its FileIO has the catalog's properties and the table's."""

    def refresh(self) -> Any:
        table = super().refresh()
        table.io = PyArrowFileIO(
            {
                "s3.session-token": "vended",
                "credential": "client:catalog-secret",
                "token": "catalog-token",
                "frazil.stream.flights": "a marker of many kilobytes",
            }
        )
        return table


@pytest.mark.usefixtures("frazil_home")
def test_the_closure_of_a_batch_has_references_and_vended_credentials_but_no_other_secret(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("KAFKA_PASSWORD", "hunter2")
    catalog = load_catalog(None)
    main, dead = ensure_table(catalog, SPEC), ensure_dead_letters(catalog, SPEC)
    tables = StreamTables.open("flights", {"main": main, "dead-letters": dead}, clock_ms=lambda: 0)
    tables = dataclasses.replace(tables, targets={**tables.targets, "main": OnRest(catalog, "demo.flights")})

    context = build_stage_context(
        SPEC, tables, BatchKey(1, 1), kafka_properties=declared_kafka_properties(SPEC), topic_ids={}
    )
    shipped = dumps(StageRows(context, ProgressFolder("/progress", context.main.io)))

    for secret in (b"hunter2", b"catalog-secret", b"catalog-token", b"a marker of many"):
        assert secret not in shipped
    assert context.main.io == {"s3.session-token": "vended"}
    assert "s3.session-token" not in context.dead_letters.io

    opened: list[dict[str, str]] = []
    monkeypatch.setattr(readers, "create_kafka_reader", lambda properties, _, **__: opened.append(properties))
    readers.open_reader(context, StageTask(0, (OffsetRange("flights", 0, 0, 1),)))
    assert opened == [{"bootstrap.servers": "127.0.0.1:1", "sasl.password": "hunter2"}]


class Vending(TableHandle):
    """A table with credentials of its own, newer ones with every load."""

    loads = 0

    def refresh(self) -> Any:
        table = super().refresh()
        self.loads += 1
        table.io = PyArrowFileIO({"s3.session-token": f"{self.identifier}, load {self.loads}"})
        self._loaded = self._table = table
        return table


@pytest.mark.usefixtures("frazil_home")
def test_each_target_is_written_with_the_credentials_of_its_own_table(monkeypatch: pytest.MonkeyPatch) -> None:
    catalog = load_catalog(None)
    main, dead = ensure_table(catalog, SPEC), ensure_dead_letters(catalog, SPEC)
    tables = StreamTables.open("flights", {"main": main, "dead-letters": dead}, clock_ms=lambda: 0)
    own = {target: Vending(catalog, handle.identifier) for target, handle in tables.targets.items()}
    tables = dataclasses.replace(tables, targets=own)
    names = {"main": "demo.flights", "dead-letters": "demo.flights_dead_letters"}

    context = build_stage_context(SPEC, tables, BatchKey(1, 1), kafka_properties={}, topic_ids={})
    opened: dict[str, dict[str, str]] = {}
    monkeypatch.setattr(
        table_writer, "load_file_io", lambda properties, location: opened.update({location: properties})
    )
    stage_module._Stage(context, StageTask(0, ()), attempt=0, now_us=lambda: 0)
    assert opened == {
        context.targets[target].folder: {"s3.session-token": f"{names[target]}, load 1"} for target in own
    }

    requested: dict[str, IoProperties] = {}
    monkeypatch.setattr(compare_and_swap, "open_store", lambda location, io, **_: requested.update({location: io}))
    tables.store_of("dead-letters")
    own["dead-letters"].refresh()
    (renewed,) = requested.values()
    assert callable(renewed)
    assert renewed() == {"s3.session-token": "demo.flights_dead_letters, load 2"}


@pytest.mark.usefixtures("frazil_home")
def test_columns_changed_by_others_are_detected_before_each_batch() -> None:
    catalog = load_catalog(None)
    main, dead = ensure_table(catalog, SPEC), ensure_dead_letters(catalog, SPEC)
    tables = StreamTables.open("flights", {"main": main, "dead-letters": dead}, clock_ms=lambda: 0)

    def check() -> None:
        build_stage_context(SPEC, tables, BatchKey(1, 1), kafka_properties={}, topic_ids={})

    with main.update_schema() as update:
        update.add_column("theirs", StringType()).update_column("n", LongType())
    check()
    for table, old, new in ((main, "at", "AT"), (main, "kafka_offset", "o"), (dead, "value", "bytes")):
        with table.update_schema() as update:
            update.rename_column(old, new)
        with pytest.raises(SchemaIncompatible, match=f"column {old} was renamed to {new} in the table"):
            check()
        with table.update_schema() as update:
            update.rename_column(new, old)
        check()
    with main.update_schema() as update:
        update.delete_column("n")
    with pytest.raises(SchemaIncompatible, match="column n was dropped"):
        check()


@pytest.mark.usefixtures("frazil_home")
def test_a_table_of_format_version_1_is_refused_before_the_next_batch() -> None:
    catalog = load_catalog(None)
    dead = ensure_dead_letters(catalog, SPEC)
    main = catalog.create_table(SPEC.table.identifier, declared_table(SPEC).schema, properties={"format-version": "1"})
    tables = StreamTables.open("flights", {"main": main, "dead-letters": dead}, clock_ms=lambda: 0)
    with pytest.raises(SchemaIncompatible, match=r"demo\.flights has Iceberg format version 1"):
        build_stage_context(SPEC, tables, BatchKey(1, 1), kafka_properties={}, topic_ids={})


@pytest.mark.usefixtures("frazil_home")
def test_rows_are_not_staged_without_a_column_that_only_the_next_start_adds() -> None:
    """A backfill does not evolve the table: its rows would not have the new column's values for ever."""
    catalog = load_catalog(None)
    main, dead = ensure_table(catalog, SPEC), ensure_dead_letters(catalog, SPEC)
    tables = StreamTables.open("flights", {"main": main, "dead-letters": dead}, clock_ms=lambda: 0)
    columns = (*SPEC.columns, SPEC.columns[1].model_copy(update={"name": "more"}))
    wider = SPEC.model_copy(update={"columns": columns})
    with pytest.raises(SchemaIncompatible, match=r"are not all as declared yet \(more\).*frazil restart flights"):
        build_stage_context(wider, tables, BatchKey(1, 1), kafka_properties={}, topic_ids={})


def orders(*, schema: dict[str, Any] | None = None, **changed: Any) -> StreamSpec:
    return StreamSpec.model_validate({**ORDERS, **changed, "schema": {**ORDERS["schema"], **(schema or {})}})  # type: ignore[dict-item]


def context_of(spec: StreamSpec) -> StageContext:
    columns = table_schema(spec)
    main = TargetTable(columns.model_dump_json(), "{}", "{}", {}, "data", 1)
    return build_declared_context(spec, columns, {}, targets={"main": main}, units=spec.units)


DECIDING = "the rules of whole rows"


def rules_of(spec: StreamSpec, context: StageContext | None = None, secret: str = "") -> dict[str, str]:
    rules = hash_rules(spec, context or context_of(spec), [StageResult((), (), secret=secret)])
    return {**rules.columns, DECIDING: rules.deciding} if rules.deciding else {}


def differing(before: dict[str, str], after: dict[str, str]) -> set[str]:
    return {name for name in before if before[name] != after.get(name)}


@pytest.mark.parametrize(
    "price",
    [
        {"type": "int", "default": 1},
        {"type": "int", "cast": "lenient"},
        {"type": "int", "null-if": [-1]},
        {"type": "int", "from": "cost"},
        "int",
        "long",
    ],
)
def test_only_the_rules_of_a_changed_column_have_another_hash(price: Any) -> None:
    before = rules_of(orders())
    assert differing(before, rules_of(orders(schema={"price": price}))) == {"price"}
    assert before == rules_of(orders())


def test_a_column_that_was_dropped_and_added_again_has_another_hash() -> None:
    context = context_of(orders())
    fields = [f.model_copy(update={"field_id": 99}) if f.name == "price" else f for f in context.main.schema.fields]
    main = dataclasses.replace(context.main, schema_json=Schema(*fields).model_dump_json())
    after = rules_of(orders(), dataclasses.replace(context, targets={"main": main}))
    assert differing(rules_of(orders()), after) == {"price"}


def test_rules_of_all_columns_change_with_the_format() -> None:
    source = {**ORDERS["source"], "format": {"type": "json", "unwrap": "value"}}  # type: ignore[dict-item]
    assert not rules_of(orders()).items() & rules_of(orders(source=source)).items()


@pytest.mark.parametrize(
    ("changed", "columns"),
    [
        ({"delete": {"column": "op", "values": ["x"], "tombstones": True}}, set()),
        ({"delete": {"column": "op", "values": ["d"]}}, set()),
        ({"order-by": "at"}, set()),
        ({"schema": {"op": {"type": "string", "default": "d"}}}, {"op"}),
        ({"key": ["ref", "at"], "delete": {"column": "op", "values": ["d"]}}, set()),
    ],
)
def test_the_deciding_rules_change_with_the_key_the_order_and_the_deletes(
    changed: dict[str, Any], columns: set[str]
) -> None:
    assert differing(rules_of(orders()), rules_of(orders(**changed))) == {DECIDING, *columns}


def test_the_deciding_rules_of_a_dedupe_stream_change_with_its_key_and_span() -> None:
    plain = {name: value for name, value in ORDERS.items() if name not in {"mode", "key", "delete"}}

    def found(**dedupe: Any) -> dict[str, str]:
        return rules_of(StreamSpec.model_validate({**plain, "dedupe": {"key": "ref", "within": "1h"} | dedupe}))

    assert differing(found(), found(within="2h")) == {DECIDING}
    assert differing(found(), found(key=["ref", "price"])) == {DECIDING}


def test_another_secret_changes_the_rules_of_hashed_and_tokenized_columns() -> None:
    fields = {"ref": "hash", "op": "mask"}
    spec = orders(sensitive={"fields": fields, "secret": "${env:S}"}, delete="tombstones")
    before, after = (rules_of(spec, secret=secret) for secret in ("one", "two"))
    assert differing(before, after) == {"ref", DECIDING}, "ref is the key"


def test_only_the_declared_expression_of_a_transform_is_hashed_for_its_column() -> None:
    columns = tuple(TransformedColumn(name, f"{name}_x", f"{name} + 1", (name,), "false") for name in ("price", "id"))
    context = dataclasses.replace(context_of(orders()), transform=Transform("{}", "records", columns))
    before = rules_of(orders(), context)
    computed = tuple(dataclasses.replace(column, expression="y", fails="true") for column in columns)
    transform = Transform("{}", "r", computed, may_fail=("true",))
    assert rules_of(orders(), dataclasses.replace(context, transform=transform)) == before
    changed = (dataclasses.replace(columns[0], declared="price + 2"), columns[1])
    after = rules_of(orders(), dataclasses.replace(context, transform=Transform("{}", "records", changed)))
    assert differing(before, after) == {"price"}


def test_rules_are_unknown_where_no_change_is_read_from_the_topics_format() -> None:
    context = context_of(orders())
    append = {name: value for name, value in ORDERS.items() if name not in {"mode", "key", "delete"}}
    assert rules_of(StreamSpec.model_validate(append)) == {}
    files = (RecordFile("a.parquet", 1, 1, ()),)
    assert rules_of(orders(), dataclasses.replace(context, files=files)) == {}
