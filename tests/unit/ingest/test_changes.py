"""The change files of an upsert stream: a delete needs only its key, a row all required columns."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.schema import Schema

from frazil.commit.merging import UPSERT_MODE
from frazil.ingest.changes import CHANGE, DELETE, OMITTED_COLUMNS, UPSERT
from frazil.ingest.contract import OffsetRange, RecordFile, StageContext, StageResult, StageTask
from frazil.ingest.stage import stage
from frazil.spec.formats import dump_format
from frazil.spec.model import StreamSpec
from frazil.stream.stage_context import change_rules
from tests.made_registry import made_registry
from tests.unit.ingest.test_stage import RANGE_START, Record, World, rows

ORDERS = {
    "name": "s",
    "source": {"bootstrap-servers": "x:1", "topics": "t", "format": "json", "key": {"column": "ref"}},
    "table": "a.b",
    "schema": {"ref": "string not null", "at": "timestamptz not null", "price": "int not null", "op": "string"},
    "event-time": "at",
    "partition-by": ["bucket(4, ref)"],
    "mode": "upsert",
    "key": "ref",
    "delete": {"column": "op", "values": ["d"], "tombstones": True},
}

Stage = Callable[..., StageResult]


@pytest.fixture(params=[True, False], ids=["coordinates", "no coordinates"])
def world(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    spec = StreamSpec.model_validate({**ORDERS, "coordinates": request.param})
    return World(tmp_path, spec, monkeypatch)


def context(world: World) -> StageContext:
    plain = world.context()
    schema = Schema.model_validate_json(plain.main.schema_json)
    rules = change_rules(world.spec, schema, {})
    assert rules
    targets = {**plain.targets, "main": UPSERT_MODE.staging_target(plain.main, rules.key)}
    return replace(
        plain, changes=rules, targets=targets, coordinates=True, key_header_columns=world.spec.key_header_columns
    )


def changes(result: StageResult) -> dict[int, dict[str, Any]]:
    found = {}
    for file in result.files:
        if file.target == "main":
            assert file.content == "changes"
            for row in pq.read_table(file.path).to_pylist():
                found[row["kafka_offset"] - RANGE_START] = row
    return found


AT = '"at": "2026-01-01T00:00:00Z"'


def test_each_record_is_a_change_or_a_dead_letter(world: World) -> None:
    records = [
        Record(b'{%s, "price": 1}' % AT.encode(), b"a"),
        Record(b'{"op": "d"}', b"a"),
        Record(None, b"b"),
        Record(b"{%s}" % AT.encode(), b"c"),
        Record(None, None),
        Record(b'{"op": "x", "price": 2}', b"c"),
        Record(b"nonsense", b"d"),
    ]
    result = world.stage(records, context(world))
    found = changes(result)
    assert {offset: (row["ref"], row[CHANGE], row["price"], row[OMITTED_COLUMNS]) for offset, row in found.items()} == {
        0: ("a", UPSERT, 1, None),
        1: ("a", DELETE, None, None),
        2: ("b", DELETE, None, None),
    }
    dead_letters = {offset - RANGE_START: row["error"] for offset, row in rows(result, "dead-letters").items()}
    assert sorted(dead_letters) == [3, 4, 5, 6]
    assert dead_letters[3] == "price: required, and missing or null"
    assert dead_letters[5] == "at: required, and missing or null"
    (progress,) = result.progress
    assert (progress.records, progress.rejected) == (3, 4)


BY_FIELDS = {
    **ORDERS,
    "source": {"bootstrap-servers": "x:1", "topics": "t", "format": "json"},
    "schema": {
        "id": "long not null",
        "day": {"type": "timestamptz", "required": True, "unit": "ms"},
        "price": "int not null",
    },
    "event-time": "kafka_timestamp",
    "partition-by": ["bucket(4, id)"],
    "key": ["id", "day"],
    "delete": "tombstones",
}
DAY = datetime(2026, 1, 1, tzinfo=UTC)


def test_a_tombstone_deletes_the_row_identified_by_the_fields_of_its_json_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path, StreamSpec.model_validate(BY_FIELDS), monkeypatch)
    records = [
        Record(b'{"id": 1, "day": 1767225600000, "price": 1}', b"whatever"),
        Record(None, b'{"id": 2, "day": 1767225600000}'),
        Record(None, b'{"day": 1767225600000, "more": {}, "id": 3}'),
        Record(None, b'{"schema": {"type": "struct"}, "payload": {"id": 4, "day": 1767225600000}}'),
        Record(None, b'{"id": 5}'),
        Record(None, b'{"id": "x", "day": 1767225600000}'),
        Record(None, b"6"),
        Record(None, None),
        Record(b"{", b'{"id": 8, "day": 1767225600000}'),
    ]
    result = world.stage(records, context(world))
    found = changes(result)
    assert {offset: (row["id"], row["day"], row[CHANGE], row["price"]) for offset, row in found.items()} == {
        0: (1, DAY, UPSERT, 1),
        **{n: (n + 1, DAY, DELETE, None) for n in (1, 2, 3)},
    }
    dead_letters = {offset - RANGE_START: row["error"] for offset, row in rows(result, "dead-letters").items()}
    assert sorted(dead_letters) == [4, 5, 6, 7, 8]
    assert dead_letters[4] == "the record's key: day: required, and missing or null"
    assert dead_letters[5].startswith("the record's key: id: ")
    assert dead_letters[7] == "the record's key: id: required, and missing or null"
    assert "key" not in dead_letters[8]


def test_a_lenient_key_is_cast_in_tombstones_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(tmp_path, StreamSpec.model_validate({**BY_FIELDS, "cast": "lenient"}), monkeypatch)
    key = b'{"id": "2", "day": "1767225600000"}'
    records = [
        Record(b'{"id": "1", "day": 1767225600000, "price": 1.0}', b"whatever"),
        Record(None, key),
        Record(None, b'{"schema": {"type": "struct"}, "payload": %s}' % key),
    ]
    found = changes(world.stage(records, context(world)))
    assert [(row["id"], row["day"], row[CHANGE]) for row in found.values()] == [
        (1, DAY, UPSERT), (2, DAY, DELETE), (2, DAY, DELETE),
    ]  # fmt: skip


def test_a_key_column_may_be_named_payload_like_the_connect_envelope(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    schema = {"payload": "string not null", "at": "timestamptz not null", "price": "int"}
    source = {"bootstrap-servers": "x:1", "topics": "t", "format": "json"}
    spec = {"name": "s", "source": source, "table": "a.b", "schema": schema, "event-time": "at", "mode": "upsert"}
    spec |= {"key": "payload", "delete": "tombstones"}
    world = World(tmp_path, StreamSpec.model_validate(spec), monkeypatch)
    result = world.stage(
        [Record(None, b'{"payload": "a"}'), Record(None, b'{"payload": {"payload": "b"}}')], context(world)
    )
    assert [(row["payload"], row[CHANGE]) for row in changes(result).values()] == [("a", DELETE)]
    (dead_letter,) = rows(result, "dead-letters").values()
    assert dead_letter["error"].startswith("the record's key: payload: ")


def test_keys_of_avro_have_a_schema_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def record(name: str, *fields: str) -> dict[str, Any]:
        return {"type": "record", "name": name, "fields": [{"name": f, "type": "long"} for f in fields]}

    def encoded(number: int, schema: dict[str, Any], **values: int) -> bytes:
        out = io.BytesIO(b"\0" + number.to_bytes(4, "big"))
        out.seek(5)
        fastavro.schemaless_writer(out, fastavro.parse_schema(schema), values)
        return out.getvalue()

    key, value = record("Key", "id", "day"), record("Value", "id", "day", "price")
    with made_registry() as registry:
        for number, schema in ((1, key), (2, value)):
            registry.answers[f"/schemas/ids/{number}"] = [(200, {"schema": json.dumps(schema)})]
        of = {"type": "avro", "registry": {"url": registry.url}}
        declared = {**BY_FIELDS, "source": {"bootstrap-servers": "x:1", "topics": "t", "format": of}}
        spec = StreamSpec.model_validate(declared)
        world = World(tmp_path, spec, monkeypatch)
        records = [
            Record(encoded(2, value, id=1, day=1767225600000, price=1), None),
            Record(None, encoded(1, key, id=1, day=1767225600000)),
        ]
        result = world.stage(records, replace(context(world), format=dump_format(spec.value_format)))
    assert [(r["id"], r["day"], r[CHANGE]) for r in changes(result).values()] == [(1, DAY, UPSERT), (1, DAY, DELETE)]


def test_events_without_a_row_are_counted_and_do_not_open_the_circuit_breaker(world: World) -> None:
    spec = StreamSpec.model_validate(
        {
            **ORDERS,
            "source": {"bootstrap-servers": "x:1", "topics": "t", "format": {"type": "json", "envelope": "debezium"}},
            "schema": {"ref": "string not null", "at": "timestamptz"},
            "delete": None,
            "coordinates": world.spec.coordinates,
        }
    )
    captured = World(world.folder, spec, world.monkeypatch)
    records = [
        Record(b'{"op": "c", "after": {"ref": "a"}}', b"a"),
        Record(b'{"ts_ms": 1}', b"a"),
        Record(None, b"a"),
        Record(b'{"op": "m"}', b"a"),
        Record(b'{"id": 1}', b"a"),
    ]
    of_envelopes = replace(context(captured), format=dump_format(spec.value_format))
    result = captured.stage(records, of_envelopes)
    assert (len(changes(result)), len(rows(result, "dead-letters")), result.other_events) == (1, 1, 2)
    assert dict(result.rejects.counts) == {"NotAnEnvelope": 1}
    assert StageResult.from_json(result.to_json()).other_events == 2
    dead_letters = {
        "kafka_topic": ["t"] * 5,
        "kafka_partition": pa.array([0] * 5, pa.int32()),
        "kafka_offset": [RANGE_START + n for n in range(5)],
        "kafka_timestamp": pa.array([0] * 5, pa.timestamp("us", "UTC")),
        "key": [record.key for record in records],
        "value": [record.value for record in records],
        "headers": pa.nulls(5, pa.list_(pa.struct({"name": pa.string(), "value": pa.binary()}))),
    }
    pq.write_table(pa.table(dead_letters), path := world.folder / "in.letters")
    of = OffsetRange("t", 0, RANGE_START, RANGE_START + 5)
    of_dead_letters = replace(of_envelopes, files=(RecordFile(str(path), path.stat().st_size, 0, (of,)),))
    replayed = stage(of_dead_letters, StageTask(0, (of,)), attempt=0)
    (progress,) = replayed.progress
    assert (progress.records, progress.rejected, replayed.other_events) == (1, 4, 0), "each letter is one of the two"
    assert replayed.rejects.counts == {"NoChange": 3, "NotAnEnvelope": 1}


@pytest.mark.parametrize(("within", "expected"), [(None, {0: ("a", 1), 1: ("b", 2)}), ((0, 10), {0: ("a", 1)})])
def test_rows_of_a_parquet_file_in_the_event_time_range_are_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, within: tuple[int, int] | None, expected: dict[int, Any]
) -> None:
    world = World(tmp_path, StreamSpec.model_validate({**ORDERS, "delete": None}), monkeypatch)
    columns = {
        "kafka_topic": ["t"] * 2,
        "kafka_partition": pa.array([0] * 2, pa.int32()),
        "kafka_offset": [RANGE_START, RANGE_START + 1],
        "ref": ["a", "b"],
        "at": pa.array([5, 15], pa.timestamp("us", "UTC")),
        "price": pa.array([1, 2], pa.int32()),
    }
    pq.write_table(pa.table(columns), path := tmp_path / "in.parquet")
    of = OffsetRange("t", 0, RANGE_START, RANGE_START + 2)
    file = RecordFile(str(path), path.stat().st_size, 0, (of,))
    result = stage(replace(context(world), files=(file,), event_times_us=within), StageTask(0, (of,)), attempt=0)
    found = {n: (row["ref"], row["price"]) for n, row in changes(result).items() if row[CHANGE] == UPSERT}
    assert (found, rows(result, "dead-letters")) == (expected, {})


def test_each_file_covers_one_partition_and_has_bounds_only_for_the_key(world: World) -> None:
    result = world.stage([Record(b'{%s, "price": 1}' % AT.encode(), b"%d" % n) for n in range(50)], context(world))
    files = [file for file in result.files if file.target == "main"]
    assert len({file.partition for file in files}) == len(files) == 4
    assert all(set(file.lower_bounds) == {1} for file in files)
