"""A steady load through the real writer: `python -m bench.sustained --rate 78000 --seconds 240 --interval 60s`.

Starts the embedded Kafka, the writer as its supervisor would, and a producer process that sends 120-byte JSON ticks to
32 partitions at a steady rate. Then lets the writer catch up, and prints freshness, CPU, files, and the final number of
commits and size of metadata. Broker and producer share this machine's cores. With `--csv`, a file gets a row per
minute: freshness, commits, CPU, metadata, and a query of the last minute. With `--maintain-after M`, `frazil maintain`
runs once after M minutes, with a niceness 10 higher than the writer's.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import numpy as np
from confluent_kafka import Producer

from bench.meter.minutes import Minutes
from bench.meter.process_tree import SampledTree
from frazil.dev.kafka import EmbeddedKafka
from frazil.table.catalogs import load_catalog

PARTITIONS = 32
NOTE_INTERVAL_S = 60.0
MAINTENANCE_USAGE = "maintain.usage.json"
MAIN = Path(__file__).parent.parent / "spark_apps" / "write_stream.py"
STREAM = """\
name: ticks
source: {{topics: [ticks], format: json, bootstrap-servers: "{bootstrap}"}}
table: bench.ticks
schema:
  symbol: string not null
  price: double not null
  size: int
  venue: string
  at: {{type: timestamptz, required: true}}
event-time: {{column: at, unit: ms}}
partition-by: [hour(at)]
commit: {{interval: {interval}}}
maintenance: {{compaction: {{{fold}}}}}
"""


def produce(bootstrap: str, rate: int, seconds: int) -> None:
    """Send `rate` records per second, in slices of 20 ms. Print the number of records sent."""
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 50, "compression.type": "lz4",
                         "queue.buffering.max.messages": 2_000_000, "batch.num.messages": 20_000})  # fmt: skip
    begin, sent = time.monotonic(), 0
    while (elapsed := time.monotonic() - begin) < seconds:
        due = int(elapsed * rate)
        now_ms = time.time_ns() // 1_000_000
        tail = b'.5,"size":%d,"venue":"XNYS-ARCA-%04d","note":"........","at":%d}'
        for number in range(sent, due):
            value = b'{"symbol":"SYM%05d","price":%d' % (number % 10_000, number % 997) + tail % (
                number % 1000, number % 50, now_ms)  # fmt: skip
            producer.produce("ticks", value, partition=number % PARTITIONS)
        sent = due
        producer.poll(0)
        time.sleep(0.02)
    producer.flush(60)
    print(sent)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rate", type=int, default=78_000)
    parser.add_argument("--seconds", type=int, default=240)
    parser.add_argument("--interval", default="60s")
    parser.add_argument("--fold-files", type=int, help="as the declaration's maintenance.compaction.fold-files")
    parser.add_argument("--maintain-after", type=float, help="minutes until `frazil maintain` runs, once")
    parser.add_argument("--csv", type=Path, help="a file for a row of each minute")
    parser.add_argument("--produce", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.produce:
        produce(options.produce, options.rate, options.seconds)
        return
    with tempfile.TemporaryDirectory() as folder:
        os.environ["FRAZIL_HOME"] = folder
        with EmbeddedKafka(Path(folder) / "kafka") as kafka:
            kafka.create_topic("ticks", PARTITIONS)
            streams = Path(folder) / "declared"
            streams.mkdir()
            fold = f"fold-files: {options.fold_files}" if options.fold_files else ""
            text = STREAM.format(bootstrap=kafka.bootstrap, interval=options.interval, fold=fold)
            (streams / "ticks.yaml").write_text(text)
            measure(kafka.bootstrap, streams, options)


def measure(bootstrap: str, streams: Path, options: argparse.Namespace) -> None:
    log = streams / "writer.log"
    with log.open("w") as out:
        writer = subprocess.Popen([sys.executable, str(MAIN), "ticks", "--streams", str(streams)], stderr=out)
    tree = SampledTree(writer.pid, "driver")
    status = Path(os.environ["FRAZIL_HOME"]) / "streams" / "ticks" / "status.json"
    try:
        wait_for(lambda: status.exists() and json.loads(status.read_text())["phase"] == "waiting", writer)
        idle = tree.cpu_s()
        producer = subprocess.Popen(
            [sys.executable, "-m", "bench.sustained", "--produce", bootstrap, "--rate", str(options.rate),
             "--seconds", str(options.seconds)], stdout=subprocess.PIPE, text=True)  # fmt: skip
        minutes = Minutes(load_catalog(None), "bench.ticks", tree, log)
        while producer.poll() is None:
            watch(minutes, streams, options)
            time.sleep(0.5)
        sent = int(producer.communicate()[0])
        wait_for(lambda: minutes.landed() == sent, writer, tree=tree)
        minutes.note()
        report(sent, tree.cpu_s() - idle, minutes, options)
        if (usage := streams / MAINTENANCE_USAGE).exists():
            print(f"maintenance: {usage.read_text()}")
    finally:
        writer.send_signal(signal.SIGTERM)
        writer.wait(60)
        report_commits([float(found) for found in re.findall(r"committed in ([0-9.]+) s", log.read_text())])


def watch(minutes: Minutes, streams: Path, options: argparse.Namespace) -> None:
    """Sample the writer, note each minute, and start maintenance when it is due."""
    minutes.writer.sample()
    passed_s = time.monotonic() - minutes.began
    if passed_s >= NOTE_INTERVAL_S * (len(minutes.rows) + 1):
        row = minutes.note()
        print(" ".join(f"{name}={value}" for name, value in row.items()), f"load={os.getloadavg()[0]:.1f}", flush=True)
        if options.csv:
            minutes.write(options.csv)
    if options.maintain_after and passed_s >= options.maintain_after * 60:
        options.maintain_after = None
        usage = streams / MAINTENANCE_USAGE
        command = [Path(sys.executable).with_name("frazil"), "maintain", "bench.ticks", "--streams", streams]
        subprocess.Popen(["nice", "-n", "10", sys.executable, "-m", "bench.meter.process_tree", usage, *command])


def wait_for(condition, writer: subprocess.Popen[bytes], *, tree: SampledTree | None = None) -> None:  # type: ignore[no-untyped-def]
    deadline = time.monotonic() + 300
    while not condition():
        if writer.poll() is not None or time.monotonic() > deadline:
            sys.exit(f"the writer ended ({writer.returncode}) or did not get there in 300 s")
        if tree:
            tree.sample()
        time.sleep(0.2)


def report_commits(commit_s: list[float]) -> None:
    """Print the commit durations by tenth of the run, to show whether commits become slower."""
    for number, part in enumerate(np.array_split(commit_s, 10), 1):
        p50, p95 = np.percentile(part, [50, 95]) * 1000
        print(f"tenth {number} of {len(commit_s)} commits: p50 {p50:.0f} ms, p95 {p95:.0f} ms, worst {max(part):.3f} s")


def report(sent: int, cpu_s: Counter[str], minutes: Minutes, options: argparse.Namespace) -> None:
    table = load_catalog(None).load_table("bench.ticks")
    head = table.current_snapshot()
    rows = int(head.summary["total-records"]) if head and head.summary else 0
    ages = np.concatenate(minutes.ages_s)
    files = int(head.summary["total-data-files"]) if head and head.summary else 0
    size = int(head.summary["total-files-size"]) if head and head.summary else 0
    total = cpu_s.total()
    print(f"sent {sent}, in the table {rows}, at {options.rate}/s for {options.seconds} s, interval {options.interval}")
    p50, p95 = np.percentile(ages, [50, 95])
    print(f"freshness: p50 {p50:.1f} s, p95 {p95:.1f} s, worst {ages.max():.1f} s, of {len(ages)} rows")
    metadata_kb = len(table.io.new_input(table.metadata_location)) / 1000
    manifests = len(head.manifests(table.io)) if head else 0
    print(f"{len(minutes.commit_s)} commits, {len(table.metadata.snapshots)} snapshots are left; metadata.json has "
          f"{metadata_kb:.0f} kB; {manifests} manifests, {files} files, {size / max(rows, 1):.1f} bytes a row"
          )  # fmt: skip
    print(f"writer CPU: {total:.1f} core-s, {total / max(rows, 1) * 1e6:.2f} core-s per million; "
          + ", ".join(f"{name} {used:.1f}" for name, used in sorted(cpu_s.items())))  # fmt: skip


if __name__ == "__main__":
    main()
