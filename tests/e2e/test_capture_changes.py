"""Debezium's events through a broker: the table equals the source after whole transactions, despite resent events."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from confluent_kafka import Producer
from pyiceberg.schema import Schema
from pyiceberg.types import IcebergType, LongType, NestedField, StringType, TimestamptzType

from frazil.audit.declared_stream import audit_declared_stream
from frazil.table.catalogs import load_catalog

DECLARED = """\
name: events
source:
  topics: [{topic}]
  bootstrap-servers: '{bootstrap}'
  format: {{type: json, envelope: {{metadata: {{place: position, at: source.ts_ms}}}}}}
table: test.events
schema:
  id: long not null
  name: string
  note: string
  place: string
  at: {{type: timestamptz, unit: ms}}
event-time: at
mode: upsert
key: id
order-by: place
commit: {{interval: 1s}}
"""
UNAVAILABLE = "__debezium_unavailable_value"


class Database:
    """A table of rows with a log, and a connector that sends the log's events to Kafka."""

    def __init__(self, stream: Any, seed: int) -> None:
        self.stream, self.draw = stream, random.Random(seed)
        self.rows: dict[int, dict[str, Any]] = {}
        self.heartbeats = 0
        self.log: list[tuple[int, dict[str, Any] | None]] = []

    def change(self, times: int) -> None:
        for _ in range(times):
            key = self.draw.randrange(30)
            row = self.rows.get(key)
            if row is None:
                self.rows[key] = {"id": key, "name": self.draw.choice("ab"), "note": "long text" * 3}
                self._write(key, "c", after=self.rows[key])
            elif self.draw.random() < 0.3:
                del self.rows[key]
                self._write(key, "d", before={"id": key, "name": None, "note": None})
                self.log.append((key, None))
            else:
                changed = {"name": self.draw.choice("cdef")} if self.draw.random() < 0.7 else {"note": "another"}
                self.rows[key] = {**row, **changed}
                reported = {"note": UNAVAILABLE} if "name" in changed else {}
                self._write(key, "u", before={"id": key}, after={**self.rows[key], **reported})

    def _write(self, key: int, op: str, **states: Any) -> None:
        lsn = len(self.log) + 1
        source = {"connector": "postgresql", "lsn": lsn, "ts_ms": 1_767_225_600_000 + lsn}
        self.log.append((key, {"before": None, "after": None, "op": op, "source": source, **states}))

    def send(self, *, since: int = 0) -> None:
        producer = Producer({"bootstrap.servers": self.stream.bootstrap, "linger.ms": 5, "max.in.flight": 1})
        for key, event in self.log[since:]:
            value = None if event is None else json.dumps(event)
            producer.produce(self.stream.topic, value, key=json.dumps({"id": key}), partition=key % 4)
        producer.produce(self.stream.topic, b'{"ts_ms": 1767225600000}', key=b'{"serverName": "shop"}', partition=0)
        self.heartbeats += 1
        assert producer.flush(30) == 0

    def check(self) -> None:
        self.stream.catch_up()
        found = self.stream.table().scan(selected_fields=("id", "name", "note")).to_arrow().to_pylist()
        assert sorted(found, key=lambda row: row["id"]) == [self.rows[key] for key in sorted(self.rows)]
        assert self.stream.table("_dead_letters").scan().to_arrow().num_rows == 0
        reported = [snapshot.summary for snapshot in self.stream.table().metadata.snapshots]
        assert sum(int(one.get("frazil.other-events") or 0) for one in reported) == self.heartbeats


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(2, 12))])
def test_the_table_equals_the_source(stream: Any, seed: int) -> None:
    text = DECLARED.format(topic=stream.topic, bootstrap=stream.bootstrap)
    (stream.streams / "events.yaml").write_text(text)
    database = Database(stream, seed)
    sent = 0
    for _ in range(4):
        database.change(60)
        # After a crash, a connector sends again what it had not noted as sent: here all since the round before.
        database.send(since=max(0, sent))
        if database.draw.random() < 0.5:
            sent = len(database.log)
        database.check()


@pytest.mark.parametrize("route", ["", "route: {by: field, name: name, template: 'test.of_{value}'}\n"])
def test_an_update_that_changes_a_key_column_removes_the_previous_row(stream: Any, route: str) -> None:
    text = DECLARED.format(topic=stream.topic, bootstrap=stream.bootstrap)
    text = text.replace("key: id", "key: [id, name]").replace("name: string", "name: string not null")
    (stream.streams / "events.yaml").write_text(text + route)
    database = Database(stream, 1)
    row = {"id": 1, "name": "a", "note": None}
    for key in (1, 2):
        database._write(key, "c", after={**row, "id": key})
    database.send()
    stream.catch_up()
    sent = len(database.log)
    for name, before in (("b", "a"), ("c", "b"), ("b", "c")):
        database._write(1, "u", before={**row, "name": before}, after={**row, "name": name})
    for since in (sent, 0):  # the connector sends all again
        database.send(since=since)
        stream.catch_up()
        identifiers = ("test.of_a", "test.of_b", "test.of_c") if route else ("test.events",)
        found = [load_catalog(None).load_table(of).scan(selected_fields=("id", "name")) for of in identifiers]
        assert sorted(tuple(row.values()) for of in found for row in of.to_arrow().to_pylist()) == [(1, "b"), (2, "a")]
    records = [int(one.summary.get("frazil.records") or 0) for one in stream.table().metadata.snapshots]
    assert sum(records) == sent + 3 + len(database.log)
    assert audit_declared_stream(stream.spec, window=None, with_source=True).findings == ()


@pytest.mark.parametrize("route", ["", "route: {by: field, name: name, template: 'test.of_{value}'}\n"])
def test_a_dead_letter_that_changes_a_column_of_the_key_is_replayed(stream: Any, frazil: Any, route: str) -> None:
    text = DECLARED.format(topic=stream.topic, bootstrap=stream.bootstrap) + route
    text = text.replace("key: id", "key: [id, name]").replace("name: string", "name: string not null")
    declaration, database = stream.streams / "events.yaml", Database(stream, 1)
    declaration.write_text(text.replace("note: string", "note: string not null"))
    row = {"id": 1, "name": "a", "note": "x"}
    for changed in ({}, {"id": 2}, {"id": 3, "name": "b"}):
        database._write(1, "c", after={**row, **changed})
    database._write(1, "u", before=row, after={**row, "name": "b", "note": None})
    database.send()
    stream.catch_up()
    declaration.write_text(text)
    identifiers = {"test.events", "test.of_a", "test.of_b"} if route else {"test.events"}
    for identifier in identifiers:
        with load_catalog(None).load_table(identifier).update_schema() as update:
            update.make_column_optional("note")
    replayed = frazil("dlq", "replay", "events")
    assert replayed.returncode == 0, replayed.stderr
    found = [load_catalog(None).load_table(of).scan(selected_fields=("id", "name")) for of in identifiers]
    rows = sorted(tuple(row.values()) for of in found for row in of.to_arrow().to_pylist())
    assert rows == [(1, "b"), (2, "a"), (3, "b")]


def test_a_new_column_of_the_source_becomes_a_column_of_the_table(stream: Any) -> None:
    text = DECLARED.format(topic=stream.topic, bootstrap=stream.bootstrap).replace("name: string", "name: int")
    (stream.streams / "events.yaml").write_text(f"evolution: full\n{text}")
    database = Database(stream, 1)
    big = ["x" * 9] * 3
    database.rows = {key: {"id": key, "name": 1, "note": "n"} for key in range(6)}
    for key, row in database.rows.items():
        database._write(key, "r", after=row)
    database.send()
    stream.catch_up()
    # alter table add column tags text[], add column price float8; alter column name type bigint
    database.rows = {key: {**row, "tags": None, "price": None} for key, row in database.rows.items()}
    changes: list[tuple[int, dict[str, Any], dict[str, Any]]] = [
        (0, {"tags": big, "price": 1.5}, {}),
        (0, {"name": 2**40}, {"tags": [UNAVAILABLE]}),
        (1, {"name": 2}, {"tags": None}),
        (2, {"tags": []}, {"note": UNAVAILABLE}),
        (7, {"id": 7, "name": 7, "note": None, "tags": ["a"], "price": 2}, {}),
    ]
    for key, changed, reported in changes:
        database.rows[key] = {**database.rows.get(key, {}), **changed}
        before = {"id": key, "tags": ["no", "state"], "gone": 1}
        database._write(key, "u", before=before, after={**database.rows[key], **reported})
    del database.rows[3]
    database._write(3, "d", before={"id": 3, "name": 1, "note": "n", "tags": None, "price": None})
    for _ in range(2):  # the connector sends all again, and the writer starts again
        database.send()
        stream.catch_up()
    table = stream.table()
    names = ("id", "name", "note", "tags", "price")
    found = table.scan(selected_fields=names).to_arrow().to_pylist()
    assert sorted(found, key=lambda row: row["id"]) == [database.rows[key] for key in sorted(database.rows)]
    assert stream.table("_dead_letters").scan().to_arrow().num_rows == 0
    assert [field.name for field in table.schema().fields if not field.name.startswith("kafka_")] == [
        "id", "name", "note", "place", "at", "price", "tags",
    ]  # fmt: skip
    assert len(table.metadata.schemas) == 2


WHOLE = (
    DECLARED.replace("{{metadata:", "{{transactions: {topic}.transaction, metadata:")
    .replace("{topic}]", "{topic}.orders]")
    .replace("{{interval: 1s}}", "{{interval: 1s, max-records: 7}}")
)


class Connector:
    """Random transactions, and a connector that sends them to a topic of one partition, and their ends to another."""

    def __init__(self, stream: Any, seed: int) -> None:
        self.stream, self.draw = stream, random.Random(seed)
        self.producer = Producer({"bootstrap.servers": stream.bootstrap, "linger.ms": 5, "max.in.flight": 1})
        self.states: list[dict[int, str]] = [{}]
        """The rows after each transaction."""
        self.log: list[tuple[str, dict[str, Any] | None]] = []
        """Topic and value of all that is sent, in its order."""

    def transaction(self, changes: int) -> None:
        number, rows = len(self.states), dict(self.states[-1])
        for order in range(1, changes + 1):
            key, lsn = self.draw.randrange(8), 1000 * number + order
            source = {"connector": "postgresql", "schema": "public", "table": "orders", "lsn": lsn, "ts_ms": 5}
            source["sequence"] = f'["{1000 * number - 100}","{lsn}"]'
            # PostgreSQL's ids have the place of the single event.
            of = {"id": f"{number}:{lsn}", "total_order": order, "data_collection_order": order}
            event = {"before": None, "after": None, "source": source, "transaction": of}
            if key in rows and self.draw.random() < 0.3:
                del rows[key]
                self.log.append(("orders", {**event, "op": "d", "before": {"id": key}}))
                if order < changes:  # the last one's would lie behind the end
                    self.log.append(("orders", None))
            else:
                rows[key] = f"{number}.{order}"
                self.log.append(("orders", {**event, "op": "u", "after": {"id": key, "name": rows[key], "note": "x"}}))
        self.states.append(rows)
        tables = [{"data_collection": "public.orders", "event_count": changes}]
        end = {"status": "END", "id": f"{number}:{1000 * number + 900}", "event_count": changes}
        self.log.append(("transaction", {**end, "data_collections": tables}))

    def send(self, since: int, until: int) -> None:
        for topic, value in self.log[since:until]:
            encoded = None if value is None else json.dumps(value)
            self.producer.produce(f"{self.stream.topic}.{topic}", encoded, partition=0)
        assert self.producer.flush(30) == 0


@pytest.mark.rotates(2)
@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(2, 12))])
def test_every_snapshot_is_the_source_after_a_whole_transaction(stream: Any, kafka: Any, seed: int) -> None:
    for topic in ("orders", "transaction"):
        kafka.create_topic(f"{stream.topic}.{topic}", 1)
    text = WHOLE.format(topic=stream.topic, bootstrap=stream.bootstrap)
    (stream.streams / "events.yaml").write_text(text)
    connector = Connector(stream, seed)
    draw, sent = connector.draw, 0
    for _ in range(6):
        for _ in range(draw.randrange(1, 6)):
            connector.transaction(draw.choice([1, 1, 2, 3, 5, 20]))
        until = draw.randrange(sent, len(connector.log))
        connector.send(sent, until)
        stream.catch_up()
        sent = max(0, until - draw.choice([0, 0, 3, 30]))  # it died, and had not noted all that it sent
    connector.send(sent, len(connector.log))
    stream.catch_up()
    table = stream.table()
    found = []
    for snapshot in table.snapshots():
        rows = table.scan(snapshot_id=snapshot.snapshot_id, selected_fields=("id", "name")).to_arrow().to_pylist()
        found.append({row["id"]: row["name"] for row in rows})
    assert [rows for rows in found if rows not in connector.states] == []
    assert found[-1] == connector.states[-1]
    assert len(found) > 8


def test_a_routed_table_with_columns_in_another_order_keeps_the_values_that_an_event_omits(stream: Any) -> None:
    text = DECLARED.format(topic=stream.topic, bootstrap=stream.bootstrap)
    text = text.replace("key: id", "key: [name, id]").replace("name: string", "name: string not null")
    route = "route: {by: field, name: name, tables: {a: test.a}, template: 'test.of_{value}'}\n"
    (stream.streams / "events.yaml").write_text(text + route)
    catalog = load_catalog(None)
    catalog.create_namespace_if_not_exists("test")
    types: dict[str, IcebergType] = {"at": TimestamptzType(), "note": StringType(), "place": StringType()}
    types |= {"name": StringType(), "id": LongType()}
    fields = [
        NestedField(n, name, kind, required=name in {"name", "id"}) for n, (name, kind) in enumerate(types.items(), 1)
    ]
    catalog.create_table("test.a", Schema(*fields))
    database = Database(stream, 1)
    for name in "ab":
        row = {"id": 1, "name": name, "note": "long text"}
        database._write(1, "c", after=row)
        database._write(1, "u", after={**row, "note": UNAVAILABLE})
    database.send()
    stream.catch_up()
    sent = len(database.log)
    for name in "ab":
        database._write(1, "u", after={"id": 1, "name": name, "note": UNAVAILABLE})
    database.send(since=sent)
    stream.catch_up()
    for identifier in ("test.of_b", "test.a"):
        table = catalog.load_table(identifier)
        found = table.scan(selected_fields=("note", "place")).to_arrow().to_pylist()
        assert [(row["note"], row["place"] is None) for row in found] == [("long text", False)], identifier
