"""PyIceberg and Spark create, write and see the same tables in the embedded catalog."""

from __future__ import annotations

import threading
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.table import Table

from frazil.commit.snapshot import SnapshotWriter
from frazil.spec import iceberg
from frazil.spec.model import StreamSpec
from frazil.table.catalogs import load_catalog
from frazil.table.tables import ensure_table
from tests.java_rules import check_times

pytestmark = pytest.mark.usefixtures("shared_home")

START = datetime(2013, 1, 1, tzinfo=UTC)


def _spec(name: str, **columns: str) -> StreamSpec:
    return StreamSpec.model_validate(
        {
            "name": name,
            "source": {"bootstrap-servers": "127.0.0.1:9092", "topics": name},
            "table": f"demo.{name}",
            "schema": {"carrier": "string not null", "departed": "timestamptz not null", "delay": "int", **columns},
            "event-time": "departed",
            "partition-by": ["day(departed)", "bucket(4, carrier)"],
            "sort-by": ["departed desc"],
            "coordinates": False,
        }
    )


def _append(table: Table, rows: int) -> None:
    records = [
        {"carrier": "AA" if row % 2 else "UA", "departed": START + timedelta(hours=row), "delay": row}
        for row in range(rows)
    ]
    table.append(pa.Table.from_pylist(records, schema=schema_to_pyarrow(table.schema())))


def test_spark_reads_a_table_written_by_pyiceberg(spark: Any) -> None:
    table = ensure_table(load_catalog(None), _spec("read"))
    _append(table, 48)
    assert spark.sql("SELECT count(*), sum(delay) FROM default.demo.read").first()[:] == (48, sum(range(48)))
    assert spark.sql("SELECT * FROM default.demo.read WHERE departed < '2013-01-02'").count() == 24
    assert spark.table("default.demo.read").columns == ["carrier", "departed", "delay"]


def test_pyiceberg_reads_a_table_written_and_compacted_by_spark(spark: Any) -> None:
    table = ensure_table(load_catalog(None), _spec("both"))
    for _ in range(3):
        _append(table, 24)
    spark.sql("INSERT INTO default.demo.both VALUES ('DL', timestamp '2013-01-01 05:00:00', 7)")
    spark.sql("CALL default.system.rewrite_data_files(table => 'demo.both', options => map('rewrite-all', 'true'))")
    table = load_catalog(None).load_table("demo.both")
    assert table.scan().to_arrow().num_rows == 73
    assert table.schema().as_struct() == iceberg.table_schema(_spec("both")).as_struct()


def test_pyiceberg_sees_a_table_that_spark_made(spark: Any) -> None:
    load_catalog(None).create_namespace_if_not_exists("demo")
    spark.sql("CREATE TABLE default.demo.made (id bigint, name string) USING iceberg")
    spark.sql("INSERT INTO default.demo.made VALUES (1, 'a')")
    assert load_catalog(None).load_table("demo.made").scan().to_arrow().to_pylist() == [{"id": 1, "name": "a"}]


def test_spark_reads_a_table_whose_previous_commit_has_a_time_in_the_future(
    spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Java refuses metadata whose times go back: by a snapshot of ours, a new column, or a property alone."""
    for name in ("snapshot", "column", "property"):
        table = ensure_table(load_catalog(None), _spec(name))
        with monkeypatch.context() as ahead:
            ahead.setattr(time, "time", lambda now=time.time: now() + 3600)
            _append(table, 24)
        if name == "snapshot":
            prepared = SnapshotWriter(()).prepare(table, summary={}, now_ms=time.time_ns() // 1_000_000)
            table.catalog.commit_table(table, prepared.requirements, prepared.updates)
        elif name == "column":
            ensure_table(load_catalog(None), _spec(name, gate="string"))
        else:
            with table.transaction() as change:
                change.set_properties({"owner": "somebody"})
        check_times(load_catalog(None).load_table(f"demo.{name}").metadata)
        assert spark.sql(f"SELECT count(*) FROM default.demo.{name}").first()[0] == 24


def test_frazil_and_spark_commit_to_one_catalog_at_the_same_time(spark: Any) -> None:
    """SQLite lets one write at a time: each waits for the other, in either order."""
    ours, theirs = ensure_table(load_catalog(None), _spec("ours")), ensure_table(load_catalog(None), _spec("theirs"))
    failures: list[BaseException] = []

    def insert() -> None:
        try:
            for _ in range(10):
                spark.sql("INSERT INTO default.demo.theirs VALUES ('DL', timestamp '2013-01-01 05:00:00', 7)")
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=insert)
    thread.start()
    appended = 0
    while thread.is_alive() or appended < 10:
        _append(ours, 1)
        appended += 1
    thread.join()
    assert failures == []
    assert theirs.refresh().scan().to_arrow().num_rows == 10
    assert ours.refresh().scan().to_arrow().num_rows == appended
