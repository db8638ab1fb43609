"""What a record costs as things grow: `python -m bench.growth`, or only some curves with `--curves columns,cores`.

Each point is `stage`, from Kafka to Parquet, in a process of its own without Spark, on records that an embedded broker
has. A first small run compiles and imports; then CPU (user + system, librdkafka's threads included) is counted, in
core-seconds per million records. Memory is the process's highest resident set. Keeps the points in
`bench/results/growth.json`, and draws them to `docs/explanation/growth.svg`; `--draw` only draws.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import multiprocessing
import resource
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

from confluent_kafka import Producer
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import BucketTransform, HourTransform

from bench.ingest import context
from bench.peer.records import FRAZIL, KINDS, PARTITIONS, Column, produce
from frazil.dev.kafka import EmbeddedKafka
from frazil.ingest.contract import OffsetRange, StageTask
from frazil.ingest.stage import stage
from frazil.spec import iceberg
from frazil.spec.model import StreamSpec

RESULTS = Path(__file__).parent / "results" / "growth.json"
PLOT = Path("docs/explanation/growth.svg")
TICKS = KINDS["ticks"]


@dataclass(frozen=True, slots=True)
class Point:
    """One measurement: `x` of what the curve is named after."""

    curve: str
    x: int
    records: int
    cpu_s_per_million: float
    wall_s: float
    peak_mib: int
    files: int
    bytes_per_record: float


@dataclass(frozen=True, slots=True)
class Work:
    """One process's input: the first `each` records of each of its partitions."""

    bootstrap: str
    topic: str
    columns: tuple[Column, ...]
    partitions: range
    each: int
    buckets: int | None = None
    """Live table partitions, over which `trade_id` is spread; None for a table by hour, of which one is live."""


@dataclass(frozen=True, slots=True)
class Done:
    cpu_s: float
    wall_s: float
    peak_mib: int
    files: int
    bytes: int


def staged(work: Work) -> Done:
    """Stage in a separate process."""
    _stage(dataclasses.replace(work, each=min(work.each, 200)))
    start, wall = time.process_time(), time.perf_counter()
    files, size = _stage(work)
    wall_s = time.perf_counter() - wall
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    return Done(time.process_time() - start, wall_s, peak, files, size)


def _stage(work: Work) -> tuple[int, int]:
    schema = _schema(work.columns)
    with tempfile.TemporaryDirectory() as folder:
        given = context(work.bootstrap, Path(folder))
        main = dataclasses.replace(
            given.main,
            schema_json=schema.model_dump_json(),
            spec_json=_spec(schema, work.buckets).model_dump_json(),
        )
        given = dataclasses.replace(given, targets={**given.targets, "main": main})
        ranges = tuple(OffsetRange(work.topic, p, 0, work.each) for p in work.partitions)
        result = stage(given, StageTask(0, ranges), attempt=0, on_progress=lambda _: None)
    records = sum(file.records for file in result.files)
    if records != work.each * len(ranges):
        raise RuntimeError(f"{records} of {work.each * len(ranges)} records are in the files")
    return len(result.files), sum(file.bytes for file in result.files)


def _schema(columns: tuple[Column, ...]) -> Schema:
    declared = {
        "name": "growth",
        "source": {"topics": ["growth"], "format": "json", "bootstrap-servers": "broker:9092"},
        "table": "bench.growth",
        "schema": {column.name: column.type_in(FRAZIL) for column in columns},
        "event-time": "ts",
        "partition-by": ["hour(ts)"],
    }
    return iceberg.table_schema(StreamSpec.model_validate(declared))


def _spec(schema: Schema, buckets: int | None) -> PartitionSpec:
    if buckets is None:
        return PartitionSpec(PartitionField(schema.find_field("ts").field_id, 1000, HourTransform(), "ts_hour"))
    return PartitionSpec(PartitionField(schema.find_field("trade_id").field_id, 1000, BucketTransform(buckets), "b"))


class Growth:
    """A broker, and the curves that are measured with it."""

    def __init__(self, kafka: EmbeddedKafka, ticks: int) -> None:
        self._kafka = kafka
        self._ticks = ticks
        kafka.create_topic(TICKS.name, PARTITIONS)
        produce(kafka.bootstrap, TICKS, ticks)

    def kafka_partitions(self) -> Iterator[Point]:
        for x in (1, 8, 32, 128, 512):
            count = min(1_000_000, 100_000 * x)
            topic = self._topic(f"p{x}", x, count, TICKS.value)
            yield self._point("Kafka partitions", x, topic, TICKS.columns, range(x), count // x)

    def table_partitions(self) -> Iterator[Point]:
        for x in (1, 10, 100, 500, 2_000):
            yield self._of_ticks("live table partitions", x, 1_000_000, buckets=x)

    def columns(self) -> Iterator[Point]:
        for x in (5, 25, 100, 400):
            columns = (Column("ts", "timestamptz"), *(Column(f"c{i}", "long") for i in range(x - 1)))

            def value(number: int, count: int = x - 1) -> bytes:
                rest = ",".join(f'"c{i}":{number * (i + 3) % 100_003}' for i in range(count))
                return f'{{"ts":"2026-01-01T00:{number // 60 % 60:02}:{number % 60:02}.123Z",{rest}}}'.encode()

            count = 4_000_000 // x // PARTITIONS * PARTITIONS
            topic = self._topic(f"c{x}", PARTITIONS, count, value)
            yield self._point("columns", x, topic, columns, range(PARTITIONS), count // PARTITIONS)

    def record_size(self) -> Iterator[Point]:
        columns = (Column("ts", "timestamptz"), Column("text", "string"))
        for x in (100, 1_000, 10_000, 100_000):

            def value(number: int, size: int = x) -> bytes:
                head = f'{{"ts":"2026-01-01T00:{number // 60 % 60:02}:{number % 60:02}.123Z","text":"{number:08}'
                words = b" the quick brown fox jumps over the lazy dog"
                return head.encode() + (words * (size // len(words) + 1))[: size - len(head) - 2] + b'"}'

            count = min(1_000_000, 200_000_000 // x) // PARTITIONS * PARTITIONS
            topic = self._topic(f"s{x}", PARTITIONS, count, value)
            yield self._point("bytes of a record", x, topic, columns, range(PARTITIONS), count // PARTITIONS)

    def cores(self) -> Iterator[Point]:
        for x in (1, 2):
            yield self._of_ticks("cores", x, 4_000_000, processes=x)

    def backlog(self) -> Iterator[Point]:
        for millions in (1, 2, 5, 10, 20):
            if millions * 1_000_000 <= self._ticks:
                yield self._of_ticks("backlog, records", millions * 1_000_000, millions * 1_000_000)

    def _of_ticks(self, curve: str, x: int, count: int, *, buckets: int | None = None, processes: int = 1) -> Point:
        each = min(count, self._ticks) // PARTITIONS
        parts = range(PARTITIONS)
        return self._point(curve, x, TICKS.name, TICKS.columns, parts, each, buckets=buckets, processes=processes)

    def _point(  # noqa: PLR0913, PLR0917 - a point's dimensions
        self,
        curve: str,
        x: int,
        topic: str,
        columns: tuple[Column, ...],
        partitions: range,
        each: int,
        *,
        buckets: int | None = None,
        processes: int = 1,
    ) -> Point:
        works = [
            Work(self._kafka.bootstrap, topic, columns, partitions[i::processes], each, buckets)
            for i in range(processes)
        ]
        with ProcessPoolExecutor(processes, mp_context=multiprocessing.get_context("spawn")) as pool:
            done = [*pool.map(staged, works)]
        records = each * len(partitions)
        point = Point(
            curve,
            x,
            records,
            round(sum(d.cpu_s for d in done) / records * 1e6, 3),
            round(max(d.wall_s for d in done), 2),
            max(d.peak_mib for d in done),
            sum(d.files for d in done),
            round(sum(d.bytes for d in done) / records, 2),
        )
        print(point, flush=True)
        return point

    def _topic(self, name: str, partitions: int, count: int, value: Callable[[int], bytes]) -> str:
        self._kafka.create_topic(name, partitions)
        producer = Producer(
            {"bootstrap.servers": self._kafka.bootstrap, "compression.type": "lz4", "linger.ms": 50,
             "queue.buffering.max.kbytes": 200_000}
        )  # fmt: skip
        for number in range(count // partitions * partitions):
            while True:
                try:
                    producer.produce(name, value(number), partition=number % partitions)
                    break
                except BufferError:
                    producer.poll(0.1)
            if number % 1000 == 0:
                producer.poll(0)
        if producer.flush(120):
            raise RuntimeError("records were left in the producer")
        return name


CURVES: dict[str, Callable[[Growth], Iterator[Point]]] = {
    "kafka-partitions": Growth.kafka_partitions,
    "table-partitions": Growth.table_partitions,
    "columns": Growth.columns,
    "record-size": Growth.record_size,
    "cores": Growth.cores,
    "backlog": Growth.backlog,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--curves", default=",".join(CURVES), help="comma-separated")
    parser.add_argument("--millions", type=int, default=20, help="ticks, the longest backlog")
    parser.add_argument("--draw", action="store_true", help="measure nothing, draw what was kept")
    options = parser.parse_args()
    kept = [Point(**found) for found in json.loads(RESULTS.read_text())] if RESULTS.exists() else []
    if not options.draw:
        with tempfile.TemporaryDirectory() as folder, EmbeddedKafka(Path(folder)) as kafka:
            growth = Growth(kafka, options.millions * 1_000_000)
            points = [point for name in options.curves.split(",") for point in CURVES[name](growth)]
        measured = {point.curve for point in points}
        kept = [*(point for point in kept if point.curve not in measured), *points]
        RESULTS.parent.mkdir(exist_ok=True)
        RESULTS.write_text(json.dumps([asdict(point) for point in kept], indent=1) + "\n")
    draw(kept, PLOT)


def draw(points: list[Point], path: Path) -> None:
    """A panel a curve: CPU a million records, or a megabyte; for a backlog, memory."""
    from bench.peer.plots import panels  # matplotlib, which a worker's process has no need of

    curves: dict[str, list[Point]] = {}
    for point in points:
        curves.setdefault(point.curve, []).append(point)
    shown: dict[str, tuple[str, Callable[[Point], float]]] = {
        "columns": ("core-µs a value", lambda p: p.cpu_s_per_million / p.x),
        "bytes of a record": ("core-s a GB", lambda p: p.cpu_s_per_million * 1000 / p.x),
    }
    usual: tuple[str, Callable[[Point], float]] = ("core-s a million records", lambda p: p.cpu_s_per_million)
    panels(
        path,
        [
            *(_panel(curve, found, *shown.get(curve, usual)) for curve, found in curves.items()),
            _panel("backlog, records", curves.get("backlog, records", []), "peak memory, MiB", lambda p: p.peak_mib),
        ],
    )


def _panel(
    curve: str, points: list[Point], unit: str, value: Callable[[Point], float]
) -> tuple[str, str, list[tuple[float, float]]]:
    return curve, unit, [(point.x, value(point)) for point in points]


if __name__ == "__main__":
    main()
