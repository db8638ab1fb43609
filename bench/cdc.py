"""A steady load of captured changes: `python -m bench.cdc --rate 2000 --seconds 120 --interval 10s --transactions`.

Starts the embedded Kafka, a simulated connector, and the writer as its supervisor would. The connector writes the rows
of a snapshot, and then changes at a fixed rate, as Debezium does for PostgreSQL. Prints the CPU without broker and
connector, which run on the same cores, and the freshness.

`--backlog 3000000` measures saturation instead: Kafka has this number of changes before the writer starts again.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

import numpy as np
from confluent_kafka import Producer
from pyiceberg.exceptions import NoSuchTableError

from bench.meter.process_tree import SampledTree
from frazil.commit.marker import read_marker
from frazil.dev.kafka import EmbeddedKafka
from frazil.table.catalogs import load_catalog

MAIN = Path(__file__).parent.parent / "spark_apps" / "write_stream.py"
EVENTS, ENDS = "shop.public.orders", "shop.transaction"
CHANGES = 5
"""Changes per transaction."""
RETRY_TIMEOUT_S = 600
STREAM = """\
name: orders
source:
  topics: [{topic}]
  bootstrap-servers: "{bootstrap}"
  format: {{type: json, envelope: {{{transactions}metadata: {{place: position, said_at: source.ts_ms}}}}}}
table: bench.orders
schema:
  id: long not null
  customer: string
  total: decimal(10, 2)
  state: string
  changed_at: timestamptz
  place: string
  said_at: {{type: timestamptz, unit: ms}}
event-time: said_at
mode: upsert
key: id
order-by: place
partition-by: ["bucket(8, id)"]
commit: {{interval: {interval}, max-records: {most}}}
"""


def event(number: int, key: int, op: str) -> bytes:
    """Return the change with this number. Each transaction has `CHANGES` changes."""
    now_ms, transaction = time.time_ns() // 1_000_000, number // CHANGES
    order, lsn, before = number % CHANGES + 1, 100 * number + 50, 100 * CHANGES * transaction
    source = {"version": "3.6.3.Final", "connector": "postgresql", "name": "shop", "ts_ms": now_ms, "snapshot": "false",
              "db": "shop", "sequence": f'["{before}","{lsn}"]', "schema": "public", "table": "orders",
              "txId": transaction, "lsn": lsn, "xmin": None}  # fmt: skip
    row = {"id": key, "customer": f"customer {key % 5000:05}", "total": f"{number % 100_000}.25",
           "state": ("placed", "paid", "sent")[number % 3], "changed_at": "2026-11-23T09:00:00.123456Z"}  # fmt: skip
    of = {"id": f"{transaction}:{lsn}", "total_order": order, "data_collection_order": order}
    parts = {"before": None, "after": row, "source": source, "transaction": None if op == "r" else of, "op": op}
    return json.dumps({**parts, "ts_ms": now_ms}, separators=(",", ":")).encode()


def end(transaction: int) -> bytes:
    tables = [{"data_collection": "public.orders", "event_count": CHANGES}]
    reported = {"status": "END", "id": f"{transaction}:0", "event_count": CHANGES, "data_collections": tables}
    return json.dumps(reported).encode()


def snapshot(bootstrap: str, keys: int) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 50, "compression.type": "lz4"})
    for key in range(keys):
        producer.produce(EVENTS, event(key, key, "r"), key=b"%d" % key)
        if key % 10_000 == 0:
            producer.flush()
    producer.flush()


def connect(bootstrap: str, keys: int, rate: int, seconds: int) -> None:
    """Send `rate` changes per second, in slices of 20 ms. Print the due time of the first, and the number sent."""
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 5, "compression.type": "lz4"})
    draw, begin, sent = Random(1), time.monotonic(), 0
    first_ms = time.time_ns() // 1_000_000
    while (elapsed := time.monotonic() - begin) < seconds:
        due = int(elapsed * rate) // CHANGES * CHANGES
        for number in range(sent, due):
            producer.produce(EVENTS, event(keys + number, draw.randrange(keys), "u"))
            if (number + 1) % CHANGES == 0:
                producer.produce(ENDS, end((keys + number) // CHANGES))
        sent = due
        producer.poll(0)
        time.sleep(0.02)
    producer.flush(60)
    print(first_ms, sent)


def fill(bootstrap: str, keys: int, changes: int) -> None:
    """Send `changes` changes without pauses."""
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 50, "compression.type": "lz4"})
    draw = Random(1)
    for number in range(changes):
        producer.produce(EVENTS, event(keys + number, draw.randrange(keys), "u"))
        if (number + 1) % CHANGES == 0:
            producer.produce(ENDS, end((keys + number) // CHANGES))
        if number % 10_000 == 0:
            producer.flush()
    producer.flush()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--keys", type=int, default=500_000, help="rows of the table before the changes")
    parser.add_argument("--rate", type=int, default=2_000)
    parser.add_argument("--seconds", type=int, default=120)
    parser.add_argument("--interval", default="10s")
    parser.add_argument("--transactions", action="store_true", help="publish whole transactions alone")
    parser.add_argument("--backlog", type=int, help="changes that lie in Kafka at once, instead of a rate")
    parser.add_argument("--max-records", type=int, default=1_000_000, help="of a batch")
    parser.add_argument("--connect", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.connect:
        connect(options.connect, options.keys, options.rate, options.seconds)
        return
    with tempfile.TemporaryDirectory() as folder:
        os.environ["FRAZIL_HOME"] = folder
        with EmbeddedKafka(Path(folder) / "kafka") as kafka:
            for topic in (EVENTS, ENDS):
                kafka.create_topic(topic, 1)
            snapshot(kafka.bootstrap, options.keys)
            streams = Path(folder) / "declared"
            streams.mkdir()
            whole = f"transactions: {ENDS}, " if options.transactions else ""
            declared = {"interval": options.interval, "most": options.max_records, "transactions": whole}
            text = STREAM.format(topic=EVENTS, bootstrap=kafka.bootstrap, **declared)
            (streams / "orders.yaml").write_text(text)
            (saturate if options.backlog else measure)(kafka.bootstrap, streams, options)


class Commits:
    """The table's commits, found by polling the table."""

    def __init__(self) -> None:
        self.seen: dict[int, int] = {}
        """Time of each commit in milliseconds, by the offset that it reached."""

    def count(self) -> int:
        """Return the offset that the table has reached, and record its commit."""
        try:
            table = load_catalog(None).load_table("bench.orders")
        except NoSuchTableError:
            return 0
        marker, head = read_marker(table.metadata.properties, "orders"), table.current_snapshot()
        if marker is None or head is None:
            return 0
        at = marker.offsets.get((EVENTS, 0), 0)
        self.seen.setdefault(at, head.timestamp_ms)
        return at

    def ages_s(self, first_offset: int, first_ms: int, rate: int) -> np.ndarray:
        """Return the time from each landed change's due time to its commit."""
        ages, start = [], first_offset
        for at, committed_ms in sorted(self.seen.items()):
            if at > start:
                due_ms = first_ms + np.arange(start - first_offset, at - first_offset) * 1000 / rate
                ages.append((committed_ms - due_ms) / 1000)
                start = at
        return np.concatenate(ages)


@contextmanager
def running(streams: Path) -> Iterator[tuple[subprocess.Popen[bytes], SampledTree]]:
    """Run the writer until the `with` block ends, then print the batches that it wrote."""
    log = streams / "writer.log"
    with log.open("w") as out:
        writer = subprocess.Popen([sys.executable, str(MAIN), "orders", "--streams", str(streams)], stderr=out)
    try:
        yield writer, SampledTree(writer.pid, "driver")
    finally:
        writer.send_signal(signal.SIGTERM)
        writer.wait(60)
        print("\n".join(line for line in log.read_text().splitlines() if "batch " in line and "files" in line))


def measure(bootstrap: str, streams: Path, options: argparse.Namespace) -> None:
    commits = Commits()
    status = Path(os.environ["FRAZIL_HOME"]) / "streams" / "orders" / "status.json"
    with running(streams) as (writer, tree):
        wait_until(lambda: status.exists() and commits.count() >= options.keys, writer, tree)
        before = tree.cpu_s()
        command = [sys.executable, "-m", "bench.cdc", "--connect", bootstrap, "--keys", str(options.keys)]
        command += ["--rate", str(options.rate), "--seconds", str(options.seconds)]
        connector = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        while connector.poll() is None:
            tree.sample()
            commits.count()
            time.sleep(0.5)
        first_ms, sent = map(int, connector.communicate()[0].split())
        wait_until(lambda: commits.count() >= options.keys + sent, writer, tree)
        report(sent, tree.cpu_s() - before, commits.ages_s(options.keys, first_ms, options.rate), options)


def saturate(bootstrap: str, streams: Path, options: argparse.Namespace) -> None:
    """Print the writer's throughput for a backlog: including its start, and from its first commit to its last."""
    commits = Commits()
    with running(streams) as (writer, tree):
        wait_until(lambda: commits.count() >= options.keys, writer, tree)
    fill(bootstrap, options.keys, options.backlog)
    commits, began = Commits(), time.monotonic()
    with running(streams) as (writer, tree):
        wait_until(lambda: commits.count() > options.keys, writer, tree)
        first, after_first = commits.count(), tree.cpu_s()
        wait_until(lambda: commits.count() >= options.keys + options.backlog, writer, tree)
        wall_s, used = time.monotonic() - began, tree.cpu_s()
    rest, rest_cpu_s = options.keys + options.backlog - first, (used - after_first).total()
    rest_s = (max(commits.seen.values()) - commits.seen[first]) / 1000
    print(f"load: {os.getloadavg()[0]:.1f} in the last minute, this writer included")
    print(f"{options.backlog:,} changes to {options.keys:,} rows, interval {options.interval}, start included: "
          f"{wall_s:.1f} s, {options.backlog / wall_s:,.0f} a second; {used.total():.1f} core-s, "
          f"{options.backlog / used.total():,.0f} a second and core")  # fmt: skip
    if rest:
        print(f"from the first commit to the last: {rest:,} changes in {rest_s:.1f} s, {rest / rest_s:,.0f} a second; "
              f"{rest_cpu_s:.1f} core-s, {rest / rest_cpu_s:,.0f} a second and core; "
              + ", ".join(f"{name} {cpu_s:.1f}" for name, cpu_s in sorted((used - after_first).items())))  # fmt: skip


def wait_until(condition: Callable[[], bool], writer: subprocess.Popen[bytes], tree: SampledTree) -> None:
    deadline = time.monotonic() + RETRY_TIMEOUT_S
    while not condition():
        if writer.poll() is not None or time.monotonic() > deadline:
            sys.exit(f"the writer ended ({writer.returncode}) or did not get there in {RETRY_TIMEOUT_S} s")
        tree.sample()
        time.sleep(0.2)


def report(sent: int, cpu_s: Counter[str], ages_s: np.ndarray, options: argparse.Namespace) -> None:
    total = cpu_s.total()
    p50, p95, worst = np.percentile(ages_s, [50, 95, 100])
    rows = load_catalog(None).load_table("bench.orders").scan().count()
    print(f"{sent} changes at {options.rate}/s to {rows} rows, interval {options.interval}, "
          f"{'whole transactions' if options.transactions else 'batches by offset'}")  # fmt: skip
    print(f"freshness: p50 {p50:.1f} s, p95 {p95:.1f} s, worst {worst:.1f} s")
    print(f"writer CPU: {total:.1f} core-s, {total / sent * 1e6:.1f} core-s per million, {sent / total:.0f} changes a "
          "second and core; " + ", ".join(f"{name} {used:.1f}" for name, used in sorted(cpu_s.items())))  # fmt: skip


if __name__ == "__main__":
    main()
