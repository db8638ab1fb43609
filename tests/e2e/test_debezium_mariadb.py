"""Real MariaDB and Debezium: each snapshot of the table equals the source after a whole transaction."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from frazil.dev.kafka import EmbeddedKafka
from frazil.errors import TopicMissing
from tests.debezium import MARIADB, Debezium
from tests.mariadb import PASSWORD, USER, EmbeddedMariaDB
from tests.polling import eventually

pytestmark = [pytest.mark.soak, pytest.mark.timeout(900)]
STREAM = """\
name: events
source:
  topics: [binlog.shop.orders]
  bootstrap-servers: '{bootstrap}'
  format:
    type: json
    envelope: {{transactions: binlog.transaction, metadata: {{place: position, said_at: source.ts_ms}}}}
table: test.events
schema:
  id: long not null
  name: string
  total: decimal(10, 2)
  day: date
  at: {{type: timestamp, unit: us}}
  stamp: timestamptz
  raw: binary
  place: string
  said_at: {{type: timestamptz, unit: ms}}
event-time: said_at
mode: upsert
key: id
order-by: place
commit: {{interval: 1s}}
"""
TABLE = """
create table orders (id bigint primary key, name varchar(20), total decimal(10, 2), day date, at datetime(6),
stamp timestamp(6), raw varbinary(20));
"""
COLUMNS = ("id", "name", "total", "day", "at", "stamp", "raw")
STATE = "select 'row', id, name, total, day, at, stamp, hex(raw) from orders order by id; select 'end';"


class Source:
    """The database, and random transactions on it."""

    def __init__(self, server: EmbeddedMariaDB) -> None:
        self._server, self.draw = server, random.Random(3)
        self.states: list[list[tuple[str, ...]]] = []
        """The rows after each transaction."""

    def define(self, sql: str) -> None:
        self._server.run(f"use shop; {sql}")

    def transactions(self, count: int) -> None:
        script = ["use shop;"]
        for _ in range(count):
            changes = [self._change(self.draw.randrange(40)) for _ in range(self.draw.randrange(1, 6))]
            end = "rollback;" if self.draw.random() < 0.1 else "commit;"
            script += ["start transaction;", *changes, end, STATE]
        rows: list[tuple[str, ...]] = []
        for kind, *fields in self._server.run("\n".join(script)):
            if kind == "row":
                rows.append(tuple(fields))
            else:
                self.states.append(rows)
                rows = []

    def _change(self, key: int) -> str:
        name = self.draw.choice("abc")
        match self.draw.randrange(4):
            case 0 | 1:
                values = f"({key}, '{name}', {key}.25, '2026-02-03', '2026-02-03 04:05:06.000007', now(6), 0x00ff)"
                into = f"insert into orders ({', '.join(COLUMNS)}) values {values}"
                return f"{into} on duplicate key update name = '{name}', total = 7.5;"
            case 2:
                return f"delete from orders where id = {key};"
        return f"delete from orders where id = {key + 100}; update orders set id = id + 100 where id = {key};"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[EmbeddedMariaDB]:
    with EmbeddedMariaDB(tmp_path / "mariadb") as running:
        yield running


def landed(stream: Any, snapshot: int | None = None) -> list[tuple[str, ...]]:
    rows = stream.table().scan(selected_fields=COLUMNS, snapshot_id=snapshot).to_arrow().sort_by("id").to_pylist()
    moment = "%Y-%m-%d %H:%M:%S.%f"
    return [
        (
            *(str(row[name]) for name in ("id", "name", "total", "day")),
            *(row[name].strftime(moment) for name in ("at", "stamp")),
            row["raw"].hex().upper(),
        )
        for row in rows
    ]


def test_every_snapshot_is_the_source_after_a_whole_transaction(
    stream: Any, kafka: EmbeddedKafka, server: EmbeddedMariaDB, tmp_path: Path
) -> None:
    (stream.streams / "events.yaml").write_text(STREAM.format(bootstrap=kafka.bootstrap))
    source = Source(server)
    source.define(TABLE)
    source.transactions(30)
    settings = {
        "connector.class": "io.debezium.connector.mariadb.MariaDbConnector",
        "topic.prefix": "binlog",
        "database.hostname": "127.0.0.1",
        "database.port": str(server.port),
        "database.user": USER,
        "database.password": PASSWORD,
        "database.server.id": "70",
        "database.ssl.mode": "disable",
        "database.include.list": "shop",
        "table.include.list": "shop.orders",
        "schema.history.internal": "io.debezium.storage.file.history.FileSchemaHistory",
        "schema.history.internal.file.filename": str(tmp_path / "history"),
    }
    debezium = Debezium(tmp_path / "debezium", bootstrap=kafka.bootstrap, settings=settings, connector=MARIADB)

    def equal() -> bool:
        try:
            stream.catch_up()
        except TopicMissing:  # Debezium makes it with the first event
            return False
        return landed(stream) == source.states[-1]

    try:
        debezium.start()
        eventually(equal, within_s=90)
        snapshotted = len(stream.table().snapshots())
        for round_ in range(5):
            source.transactions(source.draw.randrange(5, 40))
            stream.catch_up()
            if round_ in {1, 3}:
                debezium.kill()
                source.transactions(20)
                debezium.start()
            if round_ == 2:
                source.define("alter table orders add column extra varchar(3) default 'e'")
            if round_ == 3:
                source.define("alter table orders drop column extra")
        eventually(equal, within_s=90)
    finally:
        debezium.stop()
    assert stream.table("_dead_letters").scan().to_arrow().num_rows == 0
    published = [snapshot.snapshot_id for snapshot in stream.table().snapshots()][snapshotted:]
    assert len(published) > 4
    assert [snapshot for snapshot in published if landed(stream, snapshot) not in source.states] == []
