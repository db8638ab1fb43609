"""The systems that are compared. Each merges all changes of one topic into one table, and ends."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from bench.peer.records import FRAZIL, Column, Records
from bench.peer.systems import (
    CATALOG,
    COMMIT_S,
    NAMESPACE,
    THREADS,
    Job,
    System,
    flink_client,
    flink_sql,
    spark_schema,
    spark_submit,
)

KEY = ("day", "id")
ORDERS = Records(
    "orders",
    (
        Column("day", "date"),
        Column("id", "long"),
        Column("updated_at", "timestamptz"),
        Column("amount", "double"),
        Column("state", "string"),
        Column("customer", "string"),
        Column("note", "string"),
        Column("op", "string"),
    ),
    value=lambda _: b"",
)


def declared(job: Job, *, how: str, per_batch: int) -> dict[str, object]:
    """Return the stream's declaration for frazil. All systems' tables are created from it."""
    types = {column.name: column.type_in(FRAZIL) for column in ORDERS.columns}
    return {
        "name": job.table,
        "source": {"topics": [ORDERS.name], "format": "json", "bootstrap-servers": job.bootstrap},
        "table": {"identifier": f"{NAMESPACE}.{job.table}", "catalog": CATALOG},
        "schema": {name: f"{kind} not null" if name in KEY else kind for name, kind in types.items()},
        "event-time": "updated_at",
        "mode": "upsert",
        "key": list(KEY),
        "order-by": "updated_at",
        "delete": {"column": "op", "values": ["d"]},
        "merge": how,
        "partition-by": ["day"],
        "complete": "none",
        "coordinates": False,
        "commit": {"interval": f"{COMMIT_S}s", "max-records": per_batch},
        "resources": {"cores": THREADS},
    }


def frazil(job: Job, *, how: str, per_batch: int) -> list[str]:
    streams = job.folder / "streams"
    streams.mkdir(parents=True)
    (streams / f"{job.table}.yaml").write_text(json.dumps(declared(job, how=how, per_batch=per_batch)))
    command = str(Path(sys.executable).with_name("frazil"))
    of = f"{job.table} --streams {streams}"
    return ["sh", "-c", f"{command} adopt {of} --yes && exec {command} run {of} --until-caught-up"]


def merge_into(job: Job, *, per_batch: int) -> list[str]:
    script, checkpoint = Path(__file__).with_name("spark_main.py"), job.folder / "checkpoint"
    table = f"{CATALOG}.{NAMESPACE}.{job.table}"
    place = (spark_schema(job), table, str(checkpoint), str(per_batch))
    return spark_submit(job, script, job.bootstrap, ORDERS.name, *place)


_UPSERT_SQL = """\
SET 'execution.runtime-mode' = 'streaming';
SET 'table.dml-sync' = 'true';
SET 'table.local-time-zone' = 'UTC';
CREATE CATALOG {catalog} WITH (
  'type' = 'iceberg', 'catalog-impl' = '{implementation}', 'uri' = '{uri}', 'jdbc.schema-version' = 'V1',
  'warehouse' = '{warehouse}');
CREATE TEMPORARY TABLE records ({columns}) WITH (
  'connector' = 'kafka', 'topic' = '{topic}', 'properties.bootstrap.servers' = '{bootstrap}',
  'properties.isolation.level' = 'read_committed', 'scan.startup.mode' = 'earliest-offset',
  'scan.bounded.mode' = 'latest-offset', {format});
INSERT INTO {catalog}.{namespace}.{table} /*+ OPTIONS('upsert-enabled'='true', 'equality-field-columns'='day,id') */
  SELECT * FROM records;
"""


def flink(job: Job) -> list[str]:
    return flink_client(job, flink_sql(job, _UPSERT_SQL), checkpoint_s=5)


def systems(per_batch: int) -> dict[str, System]:
    """Return the systems by name. `PROPERTIES` has the properties of each system's table."""
    return {
        system.name: system
        for system in (
            System("frazil", "`mode: upsert`", lambda job: frazil(job, how="auto", per_batch=per_batch)),
            System(
                "frazil-cow",
                "`mode: upsert`, `merge: copy-on-write`",
                lambda job: frazil(job, how="copy-on-write", per_batch=per_batch),
            ),
            System("merge", "`MERGE INTO` in `foreachBatch`", lambda job: merge_into(job, per_batch=per_batch)),
            System(
                "merge-on-read",
                "the same, with `write.merge.mode=merge-on-read`",
                lambda job: merge_into(job, per_batch=per_batch),
            ),
            System(
                "flink",
                "Flink's upsert, with equality deletes; it applies stale changes, and deletes as updates",
                flink,
            ),
        )
    }


PROPERTIES = {
    "merge-on-read": {f"write.{what}.mode": "merge-on-read" for what in ("merge", "update", "delete")},
    "flink": {"write.upsert.enabled": "true"},
}
