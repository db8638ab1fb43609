"""Real PostgreSQL and Debezium: each snapshot equals the source after a whole transaction, despite kills."""

from __future__ import annotations

import json
import random
import string
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg2  # type: ignore[import-untyped]
import pytest

from frazil.dev.kafka import EmbeddedKafka
from frazil.dev.postgres import EmbeddedPostgres
from tests.debezium import Debezium
from tests.polling import eventually

pytestmark = [pytest.mark.soak, pytest.mark.timeout(900)]
STREAM = """\
name: events
evolution: additive
source:
  topics: [shop_{identity}.public.orders]
  bootstrap-servers: '{bootstrap}'
  format:
    type: json
    envelope: {{transactions: shop_{identity}.transaction, metadata: {{place: position, said_at: source.ts_ms}}}}
table: test.events
schema:
  id: long not null
  name: string
  total: decimal(10, 2)
  day: date
  at: {{type: timestamp, unit: us}}
  zoned: timestamptz
  big: string
  raw: binary
  tags: list<string>
  numbers: list<int>
  doc: string
  place: string
  said_at: {{type: timestamptz, unit: ms}}
event-time: said_at
mode: upsert
key: id
order-by: place
commit: {{interval: 1s}}
"""
TABLE = """
create table orders (id bigint primary key, name text, total numeric(10, 2), day date, at timestamp, zoned timestamptz,
big text, raw bytea, tags text[], numbers int[], doc jsonb)
"""
EXTRA = "extra"
"""A column that the source gets while it is captured."""
COLUMNS = ("id", "name", "total", "day", "at", "zoned", "big", "raw", "tags", "numbers", "doc")


class Source:
    """The database, and random transactions on it."""

    def __init__(self, postgres: EmbeddedPostgres, *, kinds: int, seed: int = 3) -> None:
        self.connection = psycopg2.connect(postgres.uri.replace("+psycopg2", ""))
        self.draw, self._kinds = random.Random(seed), kinds
        self.states: list[list[tuple[Any, ...]]] = []
        """The rows after each transaction."""
        self.extra = False

    def run(self, sql: str, *values: object) -> None:
        with self.connection.cursor() as cursor:
            cursor.execute(sql, values)

    def transactions(self, count: int) -> None:
        for _ in range(count):
            for _ in range(self.draw.randrange(1, 6)):
                self._change(self.draw.randrange(40))
            if self.draw.random() < 0.1:
                self.connection.rollback()
            else:
                self.connection.commit()
                self.states.append(self.rows())

    def _change(self, key: int) -> None:
        # Each so long that it is stored apart, or null.
        large = "".join(self.draw.choices(string.ascii_letters, k=9000))
        tags = self.draw.choice([None, [large[n : n + 9] for n in range(0, 9000, 9)]])
        numbers = self.draw.choice([None, [self.draw.randrange(2**31) for _ in range(3000)]])
        match self.draw.randrange(self._kinds):
            case 0 | 1:
                self.run(
                    f"insert into orders values ({', '.join(['%s'] * len(COLUMNS))}) on conflict (id) do update set "
                    "name = excluded.name, total = excluded.total",
                    *(key, self.draw.choice("abc"), f"{key}.25", "2026-02-03", "2026-02-03 04:05:06.000007"),
                    *("2026-02-03 04:05:06+02", large, b"\x00\xff" * 3),
                    *(tags, numbers, json.dumps({"large": large[::-1]})),
                )
            case 2 if self.extra:
                values = self.draw.choice([None, "short", large]), self.draw.choice("xyz")
                self.run("update orders set extra = %s, name = %s where id = %s", *values, key)
            case 2:
                self.run("update orders set name = %s where id = %s", self.draw.choice("xyz"), key)
            case 3:
                self.run("delete from orders where id = %s", key)
            case 4:
                self.run("delete from orders where id = %s", key + 100)
                self.run("update orders set id = id + 100 where id = %s", key)

    def rows(self) -> list[tuple[Any, ...]]:
        with self.connection.cursor() as cursor:
            extra = EXTRA if self.extra else "null"
            cursor.execute(f"select {', '.join(COLUMNS[:-1])}, doc::text, {extra} from orders order by id")
            found = [tuple(bytes(v) if isinstance(v, memoryview) else v for v in row) for row in cursor.fetchall()]
        self.connection.rollback()
        return found

    def define(self, sql: str) -> None:
        self.run(sql)
        self.connection.commit()


@pytest.fixture
def database(tmp_path: Path) -> Iterator[EmbeddedPostgres]:
    """A server of its own, that writes what a connector needs to its log."""
    # Where root runs the tests, another user must reach the data, and pytest's folders are for their owner alone.
    with tempfile.TemporaryDirectory(prefix="frazil-postgres-") as folder:
        Path(folder).chmod(0o755)
        with EmbeddedPostgres(tmp_path / "postgres", data=Path(folder) / "data") as server:
            connection = psycopg2.connect(server.uri.replace("+psycopg2", ""))
            connection.autocommit = True
            with connection.cursor() as cursor:
                cursor.execute("alter system set wal_level = logical")
            connection.close()
            server.stop()
            yield server.start()


def landed(stream: Any, snapshot: int | None = None) -> list[tuple[Any, ...]]:
    rows = stream.table().scan(snapshot_id=snapshot).to_arrow().sort_by("id").to_pylist()
    return [tuple(row.get(name) for name in (*COLUMNS, EXTRA)) for row in rows]


def snapshots(stream: Any) -> list[int]:
    return [snapshot.snapshot_id for snapshot in stream.table().snapshots()]


@contextmanager
def writer(stream: Any) -> Iterator[subprocess.Popen[bytes]]:
    """Run a writer in its own process, which is killed at the end."""
    process = subprocess.Popen(stream.command(without_jvm=True))
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def equal(stream: Any, source: Source) -> bool:
    stream.catch_up()
    return landed(stream) == source.rows()


@pytest.mark.parametrize("identity", ["default", "full"])
def test_the_table_equals_the_source_whatever_process_is_killed(
    stream: Any, kafka: EmbeddedKafka, database: EmbeddedPostgres, tmp_path: Path, identity: str
) -> None:
    (stream.streams / "events.yaml").write_text(STREAM.format(bootstrap=kafka.bootstrap, identity=identity))
    # Of a row whose key changes, the log has all values with a full identity alone.
    source = Source(database, kinds=5 if identity == "full" else 4)
    source.define(TABLE)
    source.define(f"alter table orders replica identity {identity}")
    source.transactions(30)
    user, _, rest = database.uri.partition("//")[2].partition(":")
    password, _, place = rest.partition("@")
    settings = {
        "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
        "plugin.name": "pgoutput",
        "topic.prefix": f"shop_{identity}",
        "database.hostname": "127.0.0.1",
        "database.port": place.partition(":")[2].partition("/")[0],
        "database.user": user,
        "database.password": password,
        "database.dbname": place.partition("/")[2],
        "table.include.list": "public.orders",
    }
    debezium = Debezium(tmp_path / "debezium", bootstrap=kafka.bootstrap, settings=settings)
    draw = source.draw
    try:
        debezium.start()
        eventually(lambda: equal(stream, source), within_s=90)
        snapshotted = len(snapshots(stream))
        for round_ in range(5):
            with writer(stream) as running:
                before = len(snapshots(stream))
                for _ in range(draw.randrange(3, 20)):
                    source.transactions(2)
                if round_ % 2:  # else it may die before its first batch
                    eventually(lambda before=before: len(snapshots(stream)) > before, within_s=90)  # type: ignore[misc]
                source.transactions(draw.randrange(20))
                assert running.poll() is None
            if round_ in {1, 3}:
                debezium.kill()
                source.transactions(20)
                debezium.start()
            if round_ == 2:
                source.define("alter table orders add column extra text, add column gone text default 'e'")
                source.extra = True
            if round_ == 4:
                source.define("alter table orders drop column gone")
        eventually(lambda: equal(stream, source), within_s=90)
    finally:
        debezium.stop()
    assert stream.table("_dead_letters").scan().to_arrow().num_rows == 0
    assert {"extra", "gone"} <= {*stream.table().schema().column_names}
    published = snapshots(stream)[snapshotted:]
    assert len(published) > 4
    assert [snapshot for snapshot in published if landed(stream, snapshot) not in source.states] == []
