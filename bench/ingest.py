"""CPU per record on executors: Kafka to Parquet in one process without Spark, compared with plain librdkafka.

    .venv/bin/python -m bench.ingest --millions 4

CPU is user and system time of the whole process, including librdkafka's threads, in core-seconds per million records.
Decode and write are measured in the main thread; consume is the remainder. Wall time means little on a shared machine.
Repeat and take the minimum: other programs on the same cores may raise the CPU by half.
"""

from __future__ import annotations

import argparse
import gc
import resource
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, Message, TopicPartition
from pyiceberg import types as t
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER
from pyiceberg.transforms import HourTransform

from bench.peer.records import KINDS, PARTITIONS, produce
from frazil.dev.kafka import EmbeddedKafka
from frazil.ingest.contract import OffsetRange, StageContext, StageTask, TargetTable
from frazil.ingest.formats.json.decoder import JsonDecoder
from frazil.ingest.kafka_columns import ColumnReader
from frazil.ingest.kafka_loop import compile_loop
from frazil.ingest.range_reader import DEFAULT_PROPERTIES, FIXED_PROPERTIES
from frazil.ingest.stage import stage
from frazil.ingest.table_writer import TableWriter
from frazil.spec.iceberg import DEAD_LETTER_PARTITION_SPEC, DEAD_LETTER_SCHEMA

RECORDS = KINDS["ticks"]
TOPIC = RECORDS.name

TICKS = Schema(
    t.NestedField(1, "symbol", t.StringType(), required=True),
    t.NestedField(2, "ts", t.TimestamptzType(), required=True),
    t.NestedField(3, "price", t.DoubleType()),
    t.NestedField(4, "size", t.IntegerType()),
    t.NestedField(5, "side", t.StringType()),
    t.NestedField(6, "venue", t.StringType()),
    t.NestedField(7, "trade_id", t.LongType()),
    t.NestedField(8, "kafka_topic", t.StringType(), required=True),
    t.NestedField(9, "kafka_partition", t.IntegerType(), required=True),
    t.NestedField(10, "kafka_offset", t.LongType(), required=True),
    t.NestedField(11, "kafka_timestamp", t.TimestamptzType()),
)
NEW_TABLE = {"write.parquet.format-version": "v2"}
"""The properties of a new frazil table that affect how files are written."""
BY_HOUR = PartitionSpec(PartitionField(2, 1000, HourTransform(), "ts_hour"))


def librdkafka_alone(bootstrap: str, each: int) -> None:
    """Consume every message once, and only check that it is no error."""
    consumer = Consumer({**DEFAULT_PROPERTIES, **FIXED_PROPERTIES, "bootstrap.servers": bootstrap, "group.id": "bench"})
    consumer.assign([TopicPartition(TOPIC, p, 0) for p in range(PARTITIONS)])
    left = each * PARTITIONS
    while left > 0:
        left -= sum(error is None for error in map(Message.error, consumer.consume(min(2000, left), 0.1)))
    consumer.close()


def chunks_alone(bootstrap: str, each: int) -> None:
    """Read values, keys, offsets and timestamps into columns."""
    with ColumnReader({"bootstrap.servers": bootstrap}, ranges(each)) as reader:
        assert sum(map(len, reader)) == each * PARTITIONS


def ranges(each: int) -> tuple[OffsetRange, ...]:
    return tuple(OffsetRange(TOPIC, p, 0, each) for p in range(PARTITIONS))


def context(bootstrap: str, folder: Path) -> StageContext:
    def target(name: str, schema: Schema, spec: PartitionSpec) -> TargetTable:
        return TargetTable(
            schema_json=schema.model_dump_json(),
            spec_json=spec.model_dump_json(),
            sort_order_json=UNSORTED_SORT_ORDER.model_dump_json(),
            properties=NEW_TABLE,
            folder=str(folder / name),
            target_file_bytes=128 * 2**20,
        )

    return StageContext(
        stream="bench",
        epoch=1,
        batch=1,
        kafka={"bootstrap.servers": bootstrap},
        format="json",
        event_time_column="ts",
        coordinates=True,
        targets={
            "main": target("main", TICKS, BY_HOUR),
            "dead-letters": target("dead", DEAD_LETTER_SCHEMA, DEAD_LETTER_PARTITION_SPEC),
        },
        topic_ids={},
    )


@contextmanager
def timed(legs: dict[str, float], owner: type, method: str, leg: str) -> Iterator[None]:
    """Add the main thread's CPU time in a method to its part."""
    original: Callable[..., Any] = getattr(owner, method)

    @wraps(original)
    def measured(*arguments: Any) -> Any:
        start = time.thread_time()
        try:
            return original(*arguments)
        finally:
            legs[leg] += time.thread_time() - start

    setattr(owner, method, measured)
    try:
        yield
    finally:
        setattr(owner, method, original)


def run_stage(bootstrap: str, each: int) -> dict[str, float]:
    legs: dict[str, float] = defaultdict(float)
    with (
        tempfile.TemporaryDirectory() as folder,
        timed(legs, JsonDecoder, "__call__", "decode"),
        timed(legs, TableWriter, "add", "split+write"),
        timed(legs, TableWriter, "finish", "split+write"),
    ):
        start = time.process_time()
        result = stage(
            context(bootstrap, Path(folder)), StageTask(0, ranges(each)), attempt=0, on_progress=lambda _: None
        )
        legs["stage"] = time.process_time() - start
    assert sum(p.records for p in result.progress) == each * PARTITIONS
    legs["consume+rest"] = legs["stage"] - legs["decode"] - legs["split+write"]
    legs["bytes"] = sum(f.bytes for f in result.files)
    return legs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--millions", type=float, default=4)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--bootstrap", help="a broker that has the topic already, instead of an embedded one")
    options = parser.parse_args()
    each = int(options.millions * 1e6) // PARTITIONS
    if options.bootstrap:
        measure(options.bootstrap, each, options.repeats)
        return
    with tempfile.TemporaryDirectory() as folder, EmbeddedKafka(Path(folder)) as kafka:
        kafka.create_topic(TOPIC, PARTITIONS, {})
        produce(kafka.bootstrap, RECORDS, each * PARTITIONS)
        measure(kafka.bootstrap, each, options.repeats)


def measure(bootstrap: str, each: int, repeats: int) -> None:
    gc.disable()  # as `stage` does while it reads
    millions = each * PARTITIONS / 1e6
    print(f"{millions:.1f} M records of {len(RECORDS.value(12345))} bytes, {PARTITIONS} partitions; core-s per million")
    works = (
        ("confluent-kafka consume alone", librdkafka_alone),
        ("ColumnReader alone", chunks_alone),
    )
    start = time.process_time()
    compile_loop()
    print(f"  {'the loop, from the cache or compiled':36} {time.process_time() - start:.2f} core-s")
    for _ in range(repeats):
        for name, work in works:
            start, wall = time.process_time(), time.perf_counter()
            work(bootstrap, each)
            seconds = time.perf_counter() - wall
            print(f"  {name:30} {(time.process_time() - start) / millions:5.2f}   (wall {seconds / millions:.2f} s)")
        wall = time.perf_counter()
        legs = run_stage(bootstrap, each)
        seconds = time.perf_counter() - wall
        parts = ", ".join(f"{leg} {legs[leg] / millions:.2f}" for leg in ("consume+rest", "decode", "split+write"))
        print(
            f"  {'stage':30} {legs['stage'] / millions:5.2f}   (wall {seconds / millions:.2f} s) = {parts}", flush=True
        )
    print(f"  {'Parquet bytes per record':30} {legs['bytes'] / millions / 1e6:5.1f}")
    print(f"  {'peak RSS, all of the above':30} {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:5.0f} MiB")


if __name__ == "__main__":
    main()
