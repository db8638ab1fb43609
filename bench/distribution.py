"""Files and CPU of a batch over many live partitions with Zipf skew, with and without a shuffle, on a real Spark.

    .venv/bin/python -m bench.distribution --millions 2 --tasks 4 --symbols 2000

Each round stages the same records twice: with `distribution: none`, then with `hash` and shares computed from the
previous batch. The number of files is compared with the ideal, bytes / target file size + live partitions. A task's
seconds are those of its reader and its writer together. CPU is that of all processes that Spark started, in
core-seconds per million records. Memory is their common peak. Both exclude this process, which is Spark's driver.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from confluent_kafka import Producer
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.transforms import IdentityTransform

from bench.ingest import context
from bench.meter.process_tree import PeakMemory, SampledTree
from frazil.dev.kafka import EmbeddedKafka
from frazil.ingest.contract import OffsetRange, Shuffle, StageContext, StagedFile
from frazil.spec.model import StreamSpec
from frazil.stream.distribution import RecentSizes, decide_distribution
from frazil.stream.engine import TaskAnswer
from frazil.stream.plan import split_ranges
from frazil.stream.progress import ProgressFolder
from frazil.stream.spark_engine import SparkEngine
from frazil.stream.stage_rows import StageRows

TOPIC = "zipf"
PARTITIONS = 32
BY_SYMBOL = PartitionSpec(PartitionField(1, 1000, IdentityTransform(), "symbol"))


def produce(bootstrap: str, count: int, *, symbols: int) -> None:
    """Send ticks without keys, so each Kafka partition has every symbol. Symbol number i is 1/i as frequent as the
    first.
    """
    weights = 1 / np.arange(1, symbols + 1)
    drawn = np.random.default_rng(7).choice(symbols, count, p=weights / weights.sum())
    producer = Producer(
        {"bootstrap.servers": bootstrap, "compression.type": "lz4", "queue.buffering.max.messages": 1_000_000}
    )
    for number, symbol in enumerate(drawn.tolist()):
        value = (
            f'{{"symbol":"S{symbol:04}","ts":"2026-01-01T00:{number // 60_000 % 60:02}:{number // 1000 % 60:02}.'
            f'{number % 1000:03}Z","price":{number * 104_729 % 5_000_000 / 10_000:.4f},"size":{1 + number * 31 % 999},'
            f'"side":"B","venue":"XNAS","trade_id":{number}}}'
        )
        producer.produce(TOPIC, value, partition=number % PARTITIONS)
        if number % 10_000 == 0:
            producer.poll(0)
    producer.flush()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--millions", type=float, default=2)
    parser.add_argument("--tasks", type=int, default=4)
    parser.add_argument("--symbols", type=int, default=2000, help="live partitions")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    each = int(options.millions * 1e6) // PARTITIONS
    ranges = [OffsetRange(TOPIC, partition, 0, each) for partition in range(PARTITIONS)]
    plans = [json.dumps(t.to_json()) for t in split_ranges(ranges, tasks=options.tasks)]
    with tempfile.TemporaryDirectory() as folder, EmbeddedKafka(Path(folder) / "kafka") as kafka:
        kafka.create_topic(TOPIC, PARTITIONS, {})
        produce(kafka.bootstrap, each * PARTITIONS, symbols=options.symbols)
        measure(plans, context(kafka.bootstrap, Path(folder)), records=each * PARTITIONS, rounds=options.rounds)


def measure(plans: Sequence[str], unpartitioned: StageContext, *, records: int, rounds: int) -> None:
    table = replace(unpartitioned.main, spec_json=BY_SYMBOL.model_dump_json())
    whole = replace(unpartitioned, targets={**unpartitioned.targets, "main": table})
    spec = StreamSpec.model_validate(
        {
            "name": "bench",
            "source": {"bootstrap-servers": "x:1", "topics": TOPIC},
            "table": "a.b",
            "schema": {"ts": "timestamptz not null"},
            "event-time": "ts",
        }
    )
    recent = RecentSizes(BY_SYMBOL.spec_id)
    with SparkEngine(spec) as engine:
        for _ in range(rounds + 1):  # the first warms up
            for declared in ("none", "hash"):
                chosen = decide_distribution(
                    "none" if declared == "none" else "hash",
                    recent,
                    is_partitioned=True,
                    tasks=len(plans),
                    target_file_bytes=table.target_file_bytes,
                    previous=None,
                )
                answers = run(engine, plans, whole, chosen.shuffle, records=records, name=declared)
                partitions = sum(a.partitions or 0 for a in answers) or None
                recent = recent.after(staged(answers), partitions=partitions)


def run(  # noqa: PLR0913 - what a run is of
    engine: SparkEngine, plans: Sequence[str], whole: StageContext, shuffle: Shuffle | None, *, records: int, name: str
) -> tuple[TaskAnswer, ...]:
    with tempfile.TemporaryDirectory() as folder:
        table = replace(whole.main, folder=f"{folder}/main")
        of_run = replace(whole, shuffle=shuffle, targets={**whole.targets, "main": table})
        tree = SampledTree()
        before, began = tree.cpu_s(), time.monotonic()
        with PeakMemory(without="kafka.Kafka") as memory:
            answers = engine.run(plans, StageRows(of_run, ProgressFolder(f"{folder}/progress", {})))
        wall, used = time.monotonic() - began, tree.cpu_s() - before
        cpu = used.total() - used["Kafka"] - used["command"]
    files = staged(answers)
    if sum(file.records for file in files) != records:
        raise AssertionError("rows are missing, or there twice")
    size, live = sum(file.bytes for file in files), len({file.partition for file in files})
    seconds = [answer.seconds for answer in answers]
    by_writer = Counter[int]()
    for number, answer in enumerate(answers):
        by_writer[number] = sum(file.records for file in answer.result.files)
    print(
        f"{name}: {len(files)} files, {len(files) / (size / table.target_file_bytes + live):.2f} x ideal, {live} live "
        f"partitions, {size / 2**20:.0f} MiB; slowest task {max(seconds) / statistics.median(seconds):.2f} x median "
        f"({max(seconds):.1f} s); most rows {max(by_writer.values()) / statistics.median(by_writer.values()):.2f} x "
        f"median; {cpu / records * 1e6:.2f} core-s per million; {wall:.1f} s; "
        f"{memory.peak_bytes / 2**20:.0f} MiB at most",
        flush=True,
    )
    return answers


def staged(answers: Sequence[TaskAnswer]) -> list[StagedFile]:
    return [file for answer in answers for file in answer.result.files if file.target == "main"]


if __name__ == "__main__":
    main()
