"""Debezium's events as changes: PostgreSQL's and MySQL's, as its connectors write them."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from datetime import UTC, date, datetime, time
from pathlib import Path
from typing import Any, Literal

import fastavro
import pytest
import yaml
from pyiceberg.schema import Schema

from frazil.ingest.changes import CHANGE, DELETE, OMITTED_COLUMNS, UPSERT, change_schema
from frazil.ingest.chunk import RecordChunk
from frazil.ingest.coordinates import record_schema
from frazil.ingest.decode import DecodedChunk
from frazil.ingest.formats import create_decoder
from frazil.ingest.key_header_columns import value_schema
from frazil.ingest.schema_drift import SchemaDrift
from frazil.spec import iceberg
from frazil.spec.formats import dump_format
from frazil.spec.load import validate_stream
from frazil.spec.model import StreamSpec
from tests.pages import blocks

METADATA = {"lsn": "source.lsn", "place": "position", "tx": "transaction.id", "said_at": "ts_ms"}
SPEC = {
    "name": "orders",
    "source": {
        "topics": ["shop.public.orders"],
        "bootstrap-servers": "127.0.0.1:1",
        "format": {"type": "json", "envelope": {"metadata": METADATA}},
    },
    "table": "shop.orders",
    "schema": {
        "id": "long not null",
        "name": "string",
        "price": "decimal(10, 2)",
        "day": "date",
        "clock": "time",
        "at": {"type": "timestamptz", "unit": "us"},
        "lsn": "long",
        "place": "string",
        "tx": "string",
        "said_at": {"type": "timestamptz", "unit": "ms"},
    },
    "event-time": "said_at",
    "mode": "upsert",
    "key": "id",
    "order-by": "place",
}
SOURCE = {"version": "3.6.3.Final", "connector": "postgresql", "name": "shop", "ts_ms": 1_767_225_600_000,
          "snapshot": "false", "db": "shop", "sequence": '["24023119","24023128"]', "schema": "public",
          "table": "orders", "txId": 571, "lsn": 24_023_128, "xmin": None}  # fmt: skip
ROW = {"id": 1, "name": "a", "price": "1.50", "day": 20_454, "clock": 3_723_000_000, "at": 1_767_225_600_000_001}


def event(op: str, **parts: Any) -> dict[str, Any]:
    transaction = {"id": "571:24023128", "total_order": 1, "data_collection_order": 1}
    plain = {"before": None, "after": None, "source": SOURCE, "transaction": transaction, "op": op}
    return {**plain, "ts_ms": 1_767_225_600_500, "ts_us": 1_767_225_600_500_000, **parts}


def wrapped(value: dict[str, Any]) -> dict[str, Any]:
    schema = {"type": "struct", "fields": [{"type": "struct", "optional": True, "field": "before"}], "optional": False}
    return {"schema": schema, "payload": value}


def decode(values: list[Any], *, evolution: Literal["off", "additive", "full"] = "off", **changed: Any) -> DecodedChunk:
    declared = {**SPEC, **changed}
    spec = StreamSpec.model_validate(declared)
    table = iceberg.table_schema(spec)
    filled = record_schema(change_schema(table, spec.key), has_coordinates=True)
    units = {table.find_field(name).field_id: unit for name, unit in spec.units.items()}
    made = create_decoder(dump_format(spec.value_format), filled, units, evolution)
    encoded = [v if v is None or isinstance(v, bytes) else json.dumps(v).encode() for v in values]
    return made(RecordChunk.of_values(encoded))


@pytest.fixture(params=[lambda value: value, wrapped], ids=["plain", "with its schema"])
def form(request: pytest.FixtureRequest) -> Callable[[dict[str, Any]], dict[str, Any]]:
    found: Callable[[dict[str, Any]], dict[str, Any]] = request.param
    return found


def test_row_states_become_upserts_and_deletes_keep_their_key(form: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    events = [
        event("r", after=ROW),
        event("c", after=ROW),
        event("u", before={"id": 1}, after={**ROW, "name": "b"}),
        event("d", before={"id": 1}),
        None,
        event("m"),
    ]
    decoded = decode([value and form(value) for value in events])
    assert decoded.rejections == []
    assert decoded.record_indexes.tolist() == [0, 1, 2, 3]
    first, created, updated, deleted = decoded.rows.to_pylist()
    assert [row[CHANGE] for row in decoded.rows.to_pylist()] == [UPSERT, UPSERT, UPSERT, DELETE]
    assert first == {
        "id": 1,
        "name": "a",
        "price": pytest.approx(1.5),
        "day": date(2026, 1, 1),
        "clock": time(1, 2, 3),
        "at": datetime(2026, 1, 1, microsecond=1, tzinfo=UTC),
        "lsn": 24_023_128,
        "place": None,
        "tx": "571:24023128",
        "said_at": datetime(2026, 1, 1, microsecond=500_000, tzinfo=UTC),
        CHANGE: UPSERT,
        OMITTED_COLUMNS: None,
    }
    assert created == {**first, "place": "00000000000024023128@1767225600000"}
    assert updated["name"] == "b"
    assert {name: deleted[name] for name in ("id", "name", "lsn")} == {"id": 1, "name": None, "lsn": 24_023_128}


def test_an_unavailable_value_of_an_event_is_marked_as_omitted() -> None:
    unavailable = "__debezium_unavailable_value"
    decoded = decode([event("u", after={**ROW, "name": unavailable}), event("u", after=ROW)])
    name = iceberg.table_schema(StreamSpec.model_validate(SPEC)).find_field("name").field_id
    assert decoded.rows[OMITTED_COLUMNS].to_pylist() == [[name], None]
    assert decoded.rows["name"].to_pylist() == [None, "a"]


@pytest.mark.parametrize("names", [("id", "name"), ("id", "day")])
def test_an_update_that_changes_its_key_deletes_the_previous_row(
    form: Callable[[dict[str, Any]], dict[str, Any]], names: tuple[str, str]
) -> None:
    columns = {**SPEC["schema"], **{name: f"{SPEC['schema'][name]} not null" for name in names[1:]}}  # type: ignore[dict-item, index]
    other = {**ROW, "name": "b", "day": 20_455}
    events = [
        event("c", after=ROW),
        event("u", before=ROW, after=other),
        event("u", before=other, after={**other, "price": "2"}),
        event("u", before={"id": 1}, after=ROW),
        event("u", before=None, after=ROW),
        event("u", before={**ROW, "name": None, "day": None}, after=ROW),
    ]
    decoded = decode([form(value) for value in events], key=[*names], schema=columns)
    assert decoded.rejections == []
    assert decoded.record_indexes.tolist() == [0, 1, 2, 3, 4, 5, 1]
    *upserts, gone = decoded.rows.to_pylist()
    assert {row[CHANGE] for row in upserts} == {UPSERT}
    of_event = {name: upserts[1][name] for name in METADATA}
    of_key = {name: upserts[0][name] for name in names}
    assert gone == {**dict.fromkeys(columns), **of_key, **of_event, CHANGE: DELETE, OMITTED_COLUMNS: None}


@pytest.mark.parametrize("wrap", [lambda each: each, wrapped])
@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("struct<a: long not null>", {"a": 7}),
        ("list<struct<a: long not null>>", [None, {"a": 7}]),
        ("map<string, struct<a: struct<b: string not null> not null>>", {"k": None, "l": {"a": {"b": "x"}}}),
    ],
)
def test_a_null_struct_does_not_violate_its_required_fields(wrap: Any, kind: str, value: Any) -> None:
    events = [event("c", after={**ROW, "inner": inner}) for inner in (value, None)]
    events += [event("d", before={**ROW, "inner": inner}) for inner in (value, None)]
    decoded = decode([*map(wrap, events)], schema={**SPEC["schema"], "inner": kind})  # type: ignore[dict-item]
    assert not decoded.rejections
    found = decoded.rows.column("inner").to_pylist()
    assert (dict(found[0]) if isinstance(value, dict) else found[0]) == value
    assert found[1:] == [None, None, None]


def test_an_update_that_changes_its_key_needs_a_value_for_every_column() -> None:
    unavailable = "__debezium_unavailable_value"
    columns = {**SPEC["schema"], "name": "string not null", "note": "string"}  # type: ignore[dict-item]
    update = event("u", before=ROW, after={**ROW, "name": "b", "note": unavailable})
    (rejection,) = decode([update], key=["id", "name"], schema=columns).rejections
    assert rejection.error_class == "UnavailableValue"
    assert "The event creates a row, or changes a row's key" in rejection.error


@pytest.mark.parametrize(
    ("value", "error_class", "said"),
    [
        (event("t"), "Truncated", "op: t: the source's table was truncated"),
        (ROW, "NotAnEnvelope", "op: missing"),
        (event("x", after=ROW), "NotAnEnvelope", "op: expected c, u, r, d, t or m, got 'x'"),
        (event("c"), "MissingRequired", "after: required, and missing or null"),
        (event("d"), "MissingRequired", "before: required, and missing or null; give the source's table a replica"),
        (event("u", after={**ROW, "id": None}), "MissingRequired", "after.id: required, and missing or null"),
        (event("d", before={"name": "x"}), "MissingRequired", "before.id: required, and missing or null"),
        (event("u", after={**ROW, "price": "dear"}), "TypeMismatch", "after.price: "),
        (b"nonsense", None, ""),
    ],
)
def test_a_value_that_is_not_a_change_is_a_dead_letter(value: Any, error_class: str | None, said: str) -> None:
    decoded = decode([event("c", after=ROW), value, event("c", after={**ROW, "id": 2})])
    assert decoded.rows["id"].to_pylist() == [1, 2]
    (rejection,) = decoded.rejections
    assert rejection.index == 1
    assert error_class in {None, rejection.error_class}
    assert rejection.error.startswith(said)


HEARTBEAT = {"ts_ms": 1_767_225_600_000}
BEGIN = {"status": "BEGIN", "id": "571:24023128", "event_count": None, "data_collections": None, "ts_ms": 1}
END = {**BEGIN, "status": "END", "event_count": 1, "data_collections": [{"data_collection": "a.b", "event_count": 1}]}
SCHEMA_CHANGE = {"source": SOURCE, "ts_ms": 1, "databaseName": "shop", "schemaName": None, "ddl": "ALTER TABLE orders",
                 "tableChanges": [{"type": "ALTER", "id": '"shop"."orders"', "table": None}]}  # fmt: skip


def under(name: str, value: dict[str, Any]) -> dict[str, Any]:
    """The value with its schema, of this name."""
    return {"schema": {"type": "struct", "optional": False, "name": name}, "payload": value}


def test_an_event_without_row_data_is_neither_a_row_nor_a_dead_letter() -> None:
    older = [{**value} for value in (BEGIN, END, SCHEMA_CHANGE)]
    for value in older:
        del value["ts_ms"]
    common = "io.debezium.connector.common."
    named = [
        under(f"{common}Heartbeat", HEARTBEAT),
        under(f"{common}TransactionMetadataValue", END),
        under("io.debezium.connector.mysql.SchemaChangeValue", SCHEMA_CHANGE),
    ]
    tombstone = {"schema": None, "payload": None}
    decoded = decode([HEARTBEAT, BEGIN, END, SCHEMA_CHANGE, *older, *named, tombstone, event("c", after=ROW)])
    assert decoded.rejections == []
    assert decoded.record_indexes.tolist() == [11]


@pytest.mark.parametrize(
    "value",
    [
        {},
        {"ts_ms": None},
        {**HEARTBEAT, "id": 1},
        under("shop.public.orders.Envelope", HEARTBEAT),
        {"payload": HEARTBEAT},
        {"payload": None},
        {"schema": {"type": "struct"}, "payload": None},
        {**BEGIN, "status": "paid"},
        {**BEGIN, "event_count": 1},
        {**END, "event_count": None},
        {**END, "id": 571},
        {"status": "END", "id": "571", "event_count": 1},
        {**SCHEMA_CHANGE, "source": {"name": "erp"}},
        {**SCHEMA_CHANGE, "tableChanges": None},
        {**SCHEMA_CHANGE, "name": "a"},
    ],
    ids=str,
)
def test_a_value_that_only_resembles_an_event_without_a_row_is_a_dead_letter(value: dict[str, Any]) -> None:
    assert [r.error_class for r in decode([value]).rejections] == ["NotAnEnvelope"]


def test_dates_and_times_may_be_text() -> None:
    source = {**SPEC["source"], "format": {"type": "json", "envelope": {"times": "iso", "metadata": METADATA}}}  # type: ignore[dict-item]
    decoded = decode([event("c", after={**ROW, "day": "2026-01-02Z", "clock": "04:05:06Z"})], source=source)
    assert decoded.rejections == []
    (row,) = decoded.rows.to_pylist()
    assert (row["day"], row["clock"]) == (date(2026, 1, 2), time(4, 5, 6))


def test_places_in_mysqls_log_are_in_its_order() -> None:
    places = [("mysql-bin.000003", 4, 0), ("mysql-bin.000003", 4, 1), ("mysql-bin.000003", 12, 0)]
    places.append(("mysql-bin.000010", 1, 0))
    keys = ("connector", "gtid", "file", "pos", "row")
    events = [event("c", after=ROW, source=dict(zip(keys, ("mysql", None, *p), strict=True))) for p in places]
    found = decode(events).rows["place"].to_pylist()
    assert found == sorted(found)
    assert len(set(found)) == len(found)


def test_a_position_ends_with_the_source_time_even_if_a_column_also_contains_that_time() -> None:
    metadata = {"place": "position", "said_at": "source.ts_ms", "lsn": "source.lsn"}
    source = {**SPEC["source"], "format": {"type": "json", "envelope": {"metadata": metadata}}}  # type: ignore[dict-item]
    bare = {name: value for name, value in SOURCE.items() if name != "ts_ms"}
    events = [event("c", after=ROW), event("c", after=ROW, source=bare)]
    reported, unreported = decode(events, source=source).rows.to_pylist()
    assert (reported["place"], reported["said_at"]) == (
        "00000000000024023128@1767225600000",
        datetime(2026, 1, 1, tzinfo=UTC),
    )
    assert (unreported["place"], unreported["said_at"]) == ("00000000000024023128", None)


def test_a_position_contains_its_row_number_whatever_the_type_of_a_column_with_that_number() -> None:
    metadata = {"place": "position", "line": "source.row"}
    source = {**SPEC["source"], "format": {"type": "json", "envelope": {"metadata": metadata}}}  # type: ignore[dict-item]
    columns = {**SPEC["schema"], "line": "string"}  # type: ignore[dict-item]
    of_mysql = {"connector": "mysql", "file": "mysql-bin.000003", "pos": 4}
    events = [event("c", after=ROW, source={**of_mysql, "row": "7"}), event("c", after=ROW, source=of_mysql)]
    found = decode(events, source=source, schema=columns).rows["place"].to_pylist()
    assert found == [f"mysql-bin.000003/{4:020}/{row:020}" for row in (7, 0)]


def test_avro_envelopes_decode_to_the_same_rows_as_json() -> None:
    def record(name: str, fields: list[Any]) -> dict[str, Any]:
        return {"type": "record", "name": name, "fields": fields}

    def optional(name: str, kind: Any) -> dict[str, Any]:
        return {"name": name, "type": ["null", kind], "default": None}

    value = record("Value", [{"name": "id", "type": "long"}, optional("name", "string"), optional("day", "int")])
    source = record("Source", [{"name": "connector", "type": "string"}, optional("lsn", "long")])
    schema = record(
        "Envelope",
        [
            optional("before", value),
            optional("after", "Value"),
            {"name": "source", "type": source},
            {"name": "op", "type": "string"},
            optional("ts_ms", "long"),
        ],
    )
    parsed = fastavro.parse_schema(json.loads(json.dumps(schema)))

    def encoded(**parts: Any) -> bytes:
        out = io.BytesIO()
        plain = {"before": None, "after": None, "source": {"connector": "postgresql", "lsn": 7}, "ts_ms": 5}
        fastavro.schemaless_writer(out, parsed, {**plain, **parts})
        return out.getvalue()

    metadata = {"lsn": "source.lsn", "said_at": "ts_ms"}
    of = {"type": "avro", "schema-text": json.dumps(schema), "envelope": {"metadata": metadata}}
    columns = {"id": "long not null", "name": "string", "day": "date", "lsn": "long"}
    changed = {
        "source": {**SPEC["source"], "format": of},  # type: ignore[dict-item]
        "schema": {**columns, "said_at": {"type": "timestamptz", "unit": "ms"}},
        "order-by": "lsn",
    }
    values = [
        encoded(op="u", after={"id": 1, "name": "__debezium_unavailable_value", "day": 1}),
        encoded(op="d", before={"id": 2, "name": None, "day": None}),
    ]
    decoded = decode(values, **changed)
    assert decoded.rejections == []
    rows = [{n: row[n] for n in ("id", "name", "day", "lsn", CHANGE)} for row in decoded.rows.to_pylist()]
    assert rows == [
        {"id": 1, "name": None, "day": date(1970, 1, 2), "lsn": 7, CHANGE: UPSERT},
        {"id": 2, "name": None, "day": None, "lsn": 7, CHANGE: DELETE},
    ]
    assert decoded.rows[OMITTED_COLUMNS].to_pylist() == [[2], None]


@pytest.mark.parametrize(
    ("name", "skipped"),
    [
        ("io.debezium.connector.common.Heartbeat", True),
        ("io.debezium.connector.common.TransactionMetadataValue", True),
        ("io.debezium.connector.sqlserver.SchemaChangeValue", True),
        ("shop.Heartbeat", False),
    ],
)
def test_avro_recognises_events_without_a_row_by_the_schema_name(name: str, skipped: bool) -> None:
    schema = {"type": "record", "name": name, "fields": [{"name": "ts_ms", "type": "long"}]}
    of = {"type": "avro", "schema-text": json.dumps(schema), "envelope": {"metadata": {"said_at": "ts_ms"}}}
    columns = {"id": "long not null", "said_at": {"type": "timestamptz", "unit": "ms"}}
    source = {**SPEC["source"], "format": of}  # type: ignore[dict-item]
    decoded = decode([b"\x02"], source=source, schema=columns, **{"order-by": None})
    assert decoded.rows.num_rows == 0
    assert [r.error_class for r in decoded.rejections] == ([] if skipped else ["NotAnEnvelope"])


def test_envelopes_without_rows_cause_neither_rows_nor_dead_letters(
    form: Callable[[dict[str, Any]], dict[str, Any]],
) -> None:
    decoded = decode([form(event("m"))])
    assert (decoded.rows.num_rows, decoded.rejections) == (0, [])
    assert isinstance(change_schema(Schema(), ()), Schema)


MONGO = {
    "after": '{"_id": {"$oid": "65a0"}, "sum": 1.50}', "updateDescription": None, "op": "c", "ts_ms": 1_767_225_600_500,
    "source": {"connector": "mongodb", "ts_ms": 1_767_225_600_000, "collection": "orders", "ord": 1},
}  # fmt: skip


@pytest.mark.parametrize("changed", [{}, {"op": "d", "after": None}, {"op": "u", "after": None}])
def test_a_document_of_mongodb_is_a_dead_letter_with_its_own_remedy(
    form: Callable[[dict[str, Any]], dict[str, Any]], changed: dict[str, Any]
) -> None:
    ((_, _, error),) = decode([form({**MONGO, **changed})]).rejections
    assert "MongoDB's connector writes documents as text: declare no envelope" in error
    assert "replica identity" not in error


def on_page(name: str, events: list[Any]) -> DecodedChunk:
    """Decode events with a declaration of the guide on captured changes."""
    page = [yaml.safe_load(block.text) for block in blocks("docs/how-to/capture-changes.md") if block.kind == "yaml"]
    (declared,) = [one for one in page if one.get("name") == name]
    spec = validate_stream(
        {**declared, "source": {"bootstrap-servers": "127.0.0.1:1", **declared["source"]}}, Path("s.yaml")
    )
    table = iceberg.table_schema(spec)
    units = {table.find_field(name).field_id: unit for name, unit in spec.units.items()}
    filled = value_schema(record_schema(change_schema(table, spec.key), has_coordinates=True), spec.key_header_columns)
    decode = create_decoder(dump_format(spec.value_format), filled, units)
    return decode(RecordChunk.of_values([json.dumps(one).encode() for one in events]))


def test_documents_of_mongodb_become_rows_without_an_envelope() -> None:
    decoded = on_page("documents", [MONGO, {**MONGO, "op": "d", "after": None}])
    assert decoded.rejections == []
    found = [(row["op"], row["document"], row["changed_at"].timestamp()) for row in decoded.rows.to_pylist()]
    assert found == [("c", MONGO["after"], 1_767_225_600.0), ("d", None, 1_767_225_600.0)]


def test_changes_of_sql_server_and_oracle_have_a_column_that_orders_them() -> None:
    of_sql_server = {
        "connector": "sqlserver", "ts_ms": 1_767_225_600_000, "change_lsn": "00000027:00000ac0:0002",
        "commit_lsn": "00000027:00000ac0:0007", "event_serial_no": 1,
    }  # fmt: skip
    row = {"id": 1, "balance": "1.5000"}
    decoded = on_page("accounts", [
        {"op": "c", "after": row, "source": of_sql_server},
        {"op": "r", "after": row, "source": {**of_sql_server, "change_lsn": None, "event_serial_no": None}},
        {"op": "d", "before": row, "source": {**of_sql_server, "change_lsn": "00000027:0b", "event_serial_no": 2}},
    ])  # fmt: skip
    assert decoded.rejections == []
    assert [(row["lsn"], row["serial"], row[CHANGE]) for row in decoded.rows.to_pylist()] == [
        ("00000027:00000ac0:0002", 1, UPSERT), (None, None, UPSERT), ("00000027:0b", 2, DELETE),
    ]  # fmt: skip
    key = "9" * 38
    of_oracle = {"connector": "oracle", "ts_ms": 1_767_225_600_000, "scn": "18446744073709551616", "commit_scn": "5"}
    events = [{"op": "u", "after": {"ID": key, "AMOUNT": "1.50"}, "before": {"ID": key}, "source": of_oracle}]
    decoded = on_page("ledger", [*events, {"op": "d", "before": {"ID": key}, "source": of_oracle}])
    assert decoded.rejections == []
    assert [(str(row["id"]), str(row["scn"]), row[CHANGE]) for row in decoded.rows.to_pylist()] == [
        (key, "18446744073709551616", UPSERT), (key, "18446744073709551616", DELETE),
    ]  # fmt: skip


def test_changes_without_a_position_are_counted() -> None:
    source = {"connector": "sqlserver", "ts_ms": 1_767_225_600_000, "change_lsn": "1"}
    events = [event("c", after=ROW, source=source), event("r", after=ROW, source=source), event("c", after=ROW)]
    assert decode(events).drift.unplaced == 1
    found = decode([event("d", before=ROW, source=source)]).drift
    assert (found.unplaced, SchemaDrift.from_json(json.loads(json.dumps(found.to_json())))) == (1, found)
