"""The systems that are compared. Each writes all records of one topic into one table, and ends.

All write to the same SQLite catalog and the same folder, into tables of the same schema, partitioned by hour. Each
system has two threads, and the settings that its documentation recommends. This module contains all these settings.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from bench.peer import jars
from bench.peer.records import FLINK, FLINK_AVRO, FRAZIL, SPARK, Records
from frazil.dev.kafka import EmbeddedRegistry
from frazil.spark import jars as own_jars
from frazil.spark.java import require_java

CATALOG = "lake"
NAMESPACE = "bench"
COMMIT_S = 60
THREADS = 2
HEAP = "4g"
JDBC_CATALOG = "org.apache.iceberg.jdbc.JdbcCatalog"


@dataclass(frozen=True, slots=True)
class Job:
    """One run of a system: where its records are, and where it may write.

    With a `registry` with Confluent's API, the records are Avro with its schemas; otherwise, they are JSON.
    """

    records: Records
    bootstrap: str
    registry: EmbeddedRegistry | None
    folder: Path
    catalog_file: Path
    warehouse: Path
    table: str
    transform: bool = False
    """Whether `TRANSFORM` computes the columns; only for ticks."""

    @property
    def jdbc(self) -> str:
        return f"jdbc:sqlite:{self.catalog_file}?busy_timeout=30000"


@dataclass(frozen=True, slots=True)
class System:
    """A way to write the records: its command and its settings."""

    name: str
    described: str
    command: Callable[[Job], list[str]]
    ends_by_itself: bool = True
    makes_table: bool = False


TRANSFORM = (
    "SELECT symbol AS ticker, ts, CAST(price AS DECIMAL(12, 4)) AS price, CAST(size AS BIGINT) AS quantity, side, "
    "venue, trade_id FROM records WHERE venue <> 'TEST'"
)
"""A filter, two renames and two casts, in the SQL of DuckDB, Spark and Flink. It drops no record of the benchmark."""
TRANSFORMED = {
    "ticker": "string",
    "ts": "timestamptz",
    "price": "decimal(12, 4)",
    "quantity": "long",
    "side": "string",
    "venue": "string",
    "trade_id": "long",
}


def declared(job: Job) -> dict[str, object]:
    """Return the stream's declaration for frazil. All systems' tables are created from it."""
    encoding = {"type": "avro", "registry": {"url": job.registry.url}} if job.registry else "json"
    fields = {column.name: column.type_in(FRAZIL) for column in job.records.columns}
    source = {"topics": [job.records.name], "format": encoding, "bootstrap-servers": job.bootstrap}
    more = {"source": {**source, "schema": fields}, "schema": TRANSFORMED, "transform": TRANSFORM}
    return {
        "name": job.table,
        "source": source,
        "table": {"identifier": f"{NAMESPACE}.{job.table}", "catalog": CATALOG},
        "schema": fields,
        "event-time": "ts",
        "partition-by": ["hour(ts)"],
        "commit": {"interval": f"{COMMIT_S}s"},
        "resources": {"cores": THREADS},
        **(more if job.transform else {}),
    }


def _frazil(job: Job) -> list[str]:
    streams = job.folder / "streams"
    streams.mkdir(parents=True)
    (streams / f"{job.table}.yaml").write_text(json.dumps(declared(job)))  # JSON is YAML
    frazil = str(Path(sys.executable).with_name("frazil"))
    return [frazil, "run", job.table, "--streams", str(streams), "--until-caught-up"]


def _spark(job: Job, sink: str) -> list[str]:
    checkpoint = job.folder / "checkpoint"
    table = f"{CATALOG}.{NAMESPACE}.{job.table}"
    script = Path(__file__).with_name("spark_main.py")
    sql = TRANSFORM if job.transform else ""
    return spark_submit(
        job, script, sink, job.bootstrap, job.records.name, spark_schema(job), table, str(checkpoint), sql
    )


def spark_schema(job: Job) -> str:
    return ", ".join(f"{column.name} {column.type_in(SPARK)}" for column in job.records.columns)


def spark_submit(job: Job, script: Path, *arguments: str) -> list[str]:
    """Return a command that runs a script with Spark, the catalog and the jars for Kafka."""
    paths = [*own_jars.ensure_jars("spark"), *jars.of_peer("spark")]
    catalog = f"spark.sql.catalog.{CATALOG}"
    settings = {
        "spark.master": f"local[{THREADS}]",
        "spark.driver.memory": HEAP,
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.extraJavaOptions": "-XX:+UseParallelGC",
        "spark.ui.enabled": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.jars": ",".join(map(str, paths)),
        "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
        catalog: "org.apache.iceberg.spark.SparkCatalog",
        f"{catalog}.type": "jdbc",
        f"{catalog}.uri": job.jdbc,
        f"{catalog}.jdbc.schema-version": "V1",
        f"{catalog}.warehouse": job.warehouse.as_uri(),
    }
    confs = [part for key, value in settings.items() for part in ("--conf", f"{key}={value}")]
    bin_folder = Path(sys.executable).parent
    # Its shell script finds Spark, and Spark finds Python, by PATH.
    submit = ["env", f"PATH={bin_folder}:{os.environ['PATH']}", f"PYSPARK_PYTHON={sys.executable}"]
    return [*submit, str(bin_folder / "spark-submit"), *confs, str(script), *arguments]


_FLINK_SQL = """\
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
INSERT INTO {catalog}.{namespace}.{table} {select};
"""

_FLINK_JSON = "'format' = 'json', 'json.timestamp-format.standard' = 'ISO-8601'"
_FLINK_AVRO = "'format' = 'avro-confluent', 'avro-confluent.url' = '{url}'"


def _flink(job: Job) -> list[str]:
    encoding = _FLINK_AVRO.format(url=job.registry.url) if job.registry else _FLINK_JSON
    return flink_client(job, flink_sql(job, _FLINK_SQL, format=encoding))


def flink_sql(job: Job, template: str, *, format: str = _FLINK_JSON) -> str:
    """Fill in a template's catalog, topic and columns."""
    dialect = FLINK_AVRO if job.registry else FLINK
    return template.format(
        catalog=CATALOG,
        implementation=JDBC_CATALOG,
        uri=job.jdbc,
        warehouse=job.warehouse.as_uri(),
        columns=", ".join(f"`{column.name}` {column.type_in(dialect)}" for column in job.records.columns),
        topic=job.records.name,
        bootstrap=job.bootstrap,
        namespace=NAMESPACE,
        table=job.table,
        format=format,
        select=TRANSFORM if job.transform else "SELECT * FROM records",
    )


def flink_client(job: Job, sql: str, *, checkpoint_s: float = COMMIT_S) -> list[str]:
    """Return a command that runs SQL with Flink in one process."""
    conf = job.folder / "conf"
    conf.mkdir(parents=True)
    settings = {
        "execution.target": "local",
        "parallelism.default": THREADS,
        "execution.checkpointing.interval": f"{checkpoint_s}s",
        "execution.checkpointing.dir": (job.folder / "checkpoints").as_uri(),
        "taskmanager.numberOfTaskSlots": THREADS,
        "rest.address": "127.0.0.1",
        "rest.bind-address": "127.0.0.1",
    }
    (conf / "config.yaml").write_text("".join(f"{key}: {value}\n" for key, value in settings.items()))
    script = job.folder / "write.sql"
    script.write_text(sql)
    paths = os.pathsep.join(map(str, [*jars.of_flink(), *jars.of_peer("flink"), jars.sqlite()]))
    packages = (
        *(f"java.{name}" for name in ("lang", "net", "io", "nio", "text", "time", "util", "util.concurrent")),
        *("java.util.concurrent.atomic", "java.util.concurrent.locks", "sun.nio.ch"),
    )
    opens = [f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in packages]
    client = ["org.apache.flink.table.client.SqlClient", "embedded", "-f", str(script)]
    return ["env", f"FLINK_CONF_DIR={conf}", str(require_java()), f"-Xmx{HEAP}", *opens, "-cp", paths, *client]


def _connect(job: Job) -> list[str]:
    job.folder.mkdir(parents=True)
    group = f"connect-{job.table}"
    worker = {
        "bootstrap.servers": job.bootstrap,
        "key.converter": "org.apache.kafka.connect.storage.StringConverter",
        "value.converter": "org.apache.kafka.connect.json.JsonConverter",
        "value.converter.schemas.enable": "false",
        "offset.storage.file.filename": job.folder / "offsets",
        "listeners": "http://127.0.0.1:0",
        "plugin.discovery": "service_load",
        "consumer.auto.offset.reset": "earliest",
        "consumer.isolation.level": "read_committed",
        "connector.client.config.override.policy": "All",
    }
    connector = {
        "name": group,
        "connector.class": "org.apache.iceberg.connect.IcebergSinkConnector",
        "tasks.max": THREADS,
        "topics": job.records.name,
        "iceberg.tables": f"{NAMESPACE}.{job.table}",
        "iceberg.control.commit.interval-ms": COMMIT_S * 1000,
        "iceberg.control.topic": f"control-{job.table}",
        "iceberg.kafka.auto.offset.reset": "earliest",
        "iceberg.catalog": CATALOG,
        "iceberg.catalog.catalog-impl": JDBC_CATALOG,
        "iceberg.catalog.uri": job.jdbc,
        "iceberg.catalog.jdbc.schema-version": "V1",
        "iceberg.catalog.warehouse": job.warehouse.as_uri(),
    }
    files = []
    for name, properties in (("worker", worker), ("connector", connector)):
        files.append(job.folder / f"{name}.properties")
        files[-1].write_text("".join(f"{key}={value}\n" for key, value in properties.items()))
    paths = os.pathsep.join(map(str, [*jars.of_peer("connect"), jars.sqlite()]))
    main = "org.apache.kafka.connect.cli.ConnectStandalone"
    return [str(require_java()), f"-Xmx{HEAP}", "-cp", paths, main, *map(str, files)]


SYSTEMS = {
    system.name: system
    for system in (
        System(
            "frazil",
            "`frazil run --until-caught-up`; besides the columns of the others, it writes four of Kafka coordinates",
            _frazil,
            makes_table=True,
        ),
        System(
            "spark",
            "Spark 4.1 with Iceberg 1.12, its streaming sink, `availableNow`, fan-out writers, ParallelGC",
            lambda job: _spark(job, "sink"),
        ),
        System(
            "foreachbatch",
            "Spark 4.1 with Iceberg 1.12, `foreachBatch` with `writeTo(…).append()`, ParallelGC",
            lambda job: _spark(job, "foreachBatch"),
        ),
        System(
            "flink",
            f"Flink {jars.FLINK} with Iceberg {jars.ICEBERG_OF_FLINK}, SQL, bounded, a checkpoint each {COMMIT_S} s",
            _flink,
        ),
        System(
            "connect",
            f"Kafka Connect {jars.KAFKA} with Iceberg {jars.ICEBERG}, {THREADS} tasks, a commit each {COMMIT_S} s; "
            "ended when the table has all rows",
            _connect,
            ends_by_itself=False,
        ),
    )
}
