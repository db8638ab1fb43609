"""Measures planning and one query of a table, by three engines without caches."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import duckdb
import psutil
from pyiceberg.catalog import Catalog
from pyiceberg.expressions import And, GreaterThanOrEqual, LessThan
from pyiceberg.manifest import clear_manifest_cache
from pyiceberg.table import DataScan
from pyspark.sql import SparkSession

ENGINES = ("PyIceberg", "DuckDB", "Spark")
SQL = "SELECT symbol, count(*), avg(price) FROM {} WHERE ts >= TIMESTAMPTZ '{}' AND ts < TIMESTAMPTZ '{}' GROUP BY 1"
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Cost:
    wall_ms: float
    cpu_ms: float


@dataclass
class Readers:
    """Queries the count and the average price by symbol in a window of event time. Each query loads the table again."""

    catalog: Catalog
    spark: SparkSession
    memory: duckdb.DuckDBPyConnection = field(default_factory=duckdb.connect)

    def __post_init__(self) -> None:
        self.memory.execute("SET threads = 2; SET TimeZone = 'UTC'")
        jvm = self.spark.sparkContext._jvm
        self._java = psutil.Process(jvm.java.lang.ProcessHandle.current().pid())

    def query(self, engine: str, table: str, begin_us: int, end_us: int) -> tuple[int, Cost]:
        """Return the number of rows in the window, and the cost of the query."""
        begin, end = (EPOCH + timedelta(microseconds=us) for us in (begin_us, end_us))
        query = {"PyIceberg": self._pyiceberg, "DuckDB": self._duckdb, "Spark": self._spark}[engine]
        return self.timed(query, table, begin, end)

    def plan(self, engine: str, table: str, times: int = 3) -> float:
        """Return the median time (ms) to plan a scan of all files."""
        query = {"PyIceberg": self._plan_pyiceberg, "Spark": self._plan_spark}[engine]
        return statistics.median(self.timed(query, table)[1].wall_ms for _ in range(times))

    def _pyiceberg(self, table: str, begin: datetime, end: datetime) -> int:
        rows = (
            self._scan(table, begin, end)
            .to_arrow()
            .group_by("symbol")
            .aggregate([([], "count_all"), ("price", "mean")])
        )
        return sum(rows["count_all"].to_pylist())

    def _duckdb(self, table: str, begin: datetime, end: datetime) -> int:
        """Read the files that PyIceberg plans, because DuckDB's own Iceberg extension cannot be installed here."""
        files = [task.file.file_path.removeprefix("file://") for task in self._scan(table, begin, end).plan_files()]
        found = self.memory.execute(SQL.format(f"read_parquet({files!r})", begin, end)).fetchall()
        return sum(row[1] for row in found)

    def _spark(self, table: str, begin: datetime, end: datetime) -> int:
        query = SQL.replace("TIMESTAMPTZ", "TIMESTAMP").format(in_spark(self.catalog, table), begin, end)
        return sum(row[1] for row in self.spark.sql(query).collect())

    def _plan_pyiceberg(self, table: str) -> int:
        return len(list(self.catalog.load_table(table).scan().plan_files()))

    def _plan_spark(self, table: str) -> int:
        plan = self.spark.table(in_spark(self.catalog, table))._jdf.queryExecution()
        return int(plan.toRdd().getNumPartitions())

    def _scan(self, table: str, begin: datetime, end: datetime) -> DataScan:
        chosen = And(GreaterThanOrEqual("ts", begin.isoformat()), LessThan("ts", end.isoformat()))
        return self.catalog.load_table(table).scan(chosen, selected_fields=("symbol", "price"))

    def timed(self, query: Callable[..., int], *arguments: object) -> tuple[int, Cost]:
        clear_manifest_cache()
        wall, cpu = time.perf_counter(), self._cpu_s()
        found = query(*arguments)
        return found, Cost((time.perf_counter() - wall) * 1000, (self._cpu_s() - cpu) * 1000)

    def _cpu_s(self) -> float:
        """Return user and system time of this process and of the JVM, which reports it in steps of 10 ms."""
        java = self._java.cpu_times()
        return time.process_time() + java.user + java.system


def compacted_copy(readers: Readers, source: str, name: str) -> None:
    """Rewrite the source's rows into a table with few files, one manifest and one snapshot."""
    readers.spark.sql(f"DROP TABLE IF EXISTS {in_spark(readers.catalog, name)} PURGE")
    readers.spark.sql(
        f"CREATE TABLE {in_spark(readers.catalog, name)} USING iceberg PARTITIONED BY (hours(ts)) "
        f"TBLPROPERTIES ('format-version'='2', 'write.parquet.compression-codec'='zstd') "
        f"AS SELECT * FROM {in_spark(readers.catalog, source)}"
    )


def in_spark(catalog: Catalog, table: str) -> str:
    return f"`{catalog.name}`.{table}"
