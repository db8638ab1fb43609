"""Many small streams in one application: `python -m bench.shared --streams 1 10 100 --seconds 180`.

Starts the embedded Kafka (and PostgreSQL for `--catalog postgres`), declares the streams of one application, and runs
it as its supervisor would. A producer process sends `--rate` records per second to each topic. For each number of
streams, prints the time until every stream has committed. Then measures for `--seconds`: the CPU of each kind of
process, the peak memory (PSS) of all processes together, and the gaps between a stream's commits. At the end, checks
that every record is in its table.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil
from confluent_kafka import Producer

from frazil.dev.kafka import EmbeddedKafka
from frazil.dev.postgres import EmbeddedPostgres
from frazil.spec.units import parse_duration
from frazil.table.catalogs import load_catalog

MAIN = Path(__file__).parent.parent / "spark_apps" / "write_application.py"
FIRST = 100
"""Records in each topic before the application starts."""
DEADLINE_S = 300.0
ROLES = (("org.apache.spark.deploy.SparkSubmit", "JVM"), ("daemon", "Python workers"))
STREAM = """\
name: {name}
application: small
source: {{topics: [{name}], format: json, bootstrap-servers: "{bootstrap}"}}
table: bench.{name}
schema:
  symbol: string not null
  price: double not null
  size: int
  venue: string
  at: {{type: timestamptz, required: true}}
event-time: {{column: at, unit: ms}}
partition-by: [day(at)]
commit: {{interval: {interval}}}
"""


def names(count: int) -> list[str]:
    return [f"topic{number:03}" for number in range(count)]


def produce(bootstrap: str, count: int, *, rate: int, seconds: float) -> int:
    """Send `rate` records per second to each topic. Return the number of records per topic."""
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 100, "compression.type": "lz4"})
    begin, sent = time.monotonic(), 0
    while (elapsed := time.monotonic() - begin) < seconds:
        due = int(elapsed * rate)
        now_ms = time.time_ns() // 1_000_000
        for name in names(count):
            for number in range(sent, due):
                producer.produce(name, one_tick(number, now_ms))
        sent = due
        producer.poll(0)
        time.sleep(0.2)
    producer.flush(60)
    return sent


def one_tick(number: int, now_ms: int) -> bytes:
    return b'{"symbol":"SYM%05d","price":%d.5,"size":%d,"venue":"XNYS-ARCA-%04d","note":"........","at":%d}' % (
        number % 10_000, number % 997, number % 1000, number % 50, now_ms)  # fmt: skip


class Meter:
    """CPU seconds by role, and PSS, of a process and all its descendants."""

    def __init__(self, pid: int) -> None:
        self._root = psutil.Process(pid)
        self._cpu: dict[int, tuple[str, float]] = {}
        self.max_bytes = 0

    def sample(self, *, memory: bool = False) -> None:
        total = 0
        for process in [self._root, *self._root.children(recursive=True)]:
            try:
                times = process.cpu_times()
                self._cpu[process.pid] = (self._role(process), times.user + times.system)
                total += process.memory_full_info().pss if memory else 0
            except psutil.Error:
                continue
        self.max_bytes = max(self.max_bytes, total)

    def cpu_s(self) -> Counter[str]:
        spent: Counter[str] = Counter()
        for role, used in self._cpu.values():
            spent[role] += used
        return spent

    def _role(self, process: psutil.Process) -> str:
        if process.pid == self._root.pid:
            return "driver"
        words = " ".join(process.cmdline())
        return next((role for part, role in ROLES if part in words), "other")


def heartbeat(name: str) -> dict[str, Any]:
    file = Path(os.environ["FRAZIL_HOME"]) / "streams" / name / "status.json"
    return dict(json.loads(file.read_text())) if file.exists() else {}


@contextmanager
def catalog(kind: str, folder: Path) -> Iterator[None]:
    if kind == "sqlite":
        yield
        return
    with tempfile.TemporaryDirectory(prefix="frazil-postgres-") as data:
        Path(data).chmod(0o755)
        with EmbeddedPostgres(folder / "postgres", data=Path(data) / "data") as server:
            os.environ["PYICEBERG_CATALOG__DEFAULT__URI"] = server.uri
            os.environ["PYICEBERG_CATALOG__DEFAULT__TYPE"] = "sql"
            os.environ["PYICEBERG_CATALOG__DEFAULT__WAREHOUSE"] = f"file://{folder}/warehouse"
            yield


def measure(count: int, options: argparse.Namespace) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as made, ExitStack() as servers:
        folder = Path(made)
        os.environ["FRAZIL_HOME"] = str(folder / "home")
        kafka = servers.enter_context(EmbeddedKafka(folder / "kafka"))
        servers.enter_context(catalog(options.catalog, folder))
        streams = folder / "declared"
        streams.mkdir()
        for name in names(count):
            kafka.create_topic(name, options.partitions)
            text = STREAM.format(name=name, bootstrap=kafka.bootstrap, interval=options.interval)
            (streams / f"{name}.yaml").write_text(text)
        first = produce_first(kafka.bootstrap, count)
        log = folder / "application.log"
        with log.open("w") as out:
            command = [sys.executable, str(MAIN), "small", "--streams", str(streams)]
            application = subprocess.Popen(command, stderr=out, stdout=out, start_new_session=True)
        try:
            return run(application, kafka.bootstrap, count, first, options)
        finally:
            application.send_signal(signal.SIGTERM)
            began = time.monotonic()
            application.wait(120)
            print(f"  stopped in {time.monotonic() - began:.1f} s with exit code {application.returncode}")
            text = log.read_text()
            if options.log:
                Path(options.log).write_text(text)
            troubles = [line for line in text.splitlines() if " WARNING " in line or " ERROR " in line]
            print(f"  warnings and errors in the log: {len(troubles)}", *troubles[:5], sep="\n    ")


def produce_first(bootstrap: str, count: int) -> int:
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 100})
    for name in names(count):
        for number in range(FIRST):
            producer.produce(name, one_tick(number, time.time_ns() // 1_000_000))
    producer.flush(60)
    return FIRST


def run(
    application: subprocess.Popen[bytes], bootstrap: str, count: int, first: int, options: argparse.Namespace
) -> dict[str, Any]:
    began, meter = time.monotonic(), Meter(application.pid)
    wait_for(application, lambda: all(heartbeat(name).get("last_commit_at_ms") for name in names(count)), meter)
    start_s = time.monotonic() - began
    start_cpu_s = meter.cpu_s().total()
    print(f"{count} streams: each has committed after {start_s:.1f} s, {start_cpu_s:.1f} core-s", flush=True)
    producer = subprocess.Popen(
        [sys.executable, "-m", "bench.shared", "--produce", bootstrap, "--streams", str(count),
         "--rate", str(options.rate), "--seconds", str(options.settle + options.seconds)],
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    observe_for(meter, options.settle)
    before, from_ms, measured = meter.cpu_s(), time.time() * 1000, time.monotonic()
    observe_for(meter, options.seconds)
    took_s, to_ms = time.monotonic() - measured, time.time() * 1000
    used = meter.cpu_s()
    used.subtract(before)
    sent = first + int(producer.communicate()[0])
    wait_for(application, lambda: all(committed(name) >= sent for name in names(count)), meter)
    rows = {committed(name) for name in names(count)}
    gaps = [gap for name in names(count) for gap in gaps_s(name, from_ms, to_ms)]
    result = {
        "streams": count,
        "start_s": round(start_s, 1),
        "start_core_s": round(start_cpu_s, 1),
        "cores": round(used.total() / took_s, 3),
        "cores_by_role": {role: round(cpu / took_s, 3) for role, cpu in used.most_common() if cpu / took_s > 0.001},
        "max_memory_mb": round(meter.max_bytes / 2**20),
        "commits": len(gaps),
        "gap_p50_s": round(statistics.median(gaps), 1) if gaps else None,
        "gap_most_s": round(max(gaps), 1) if gaps else None,
        "late": sum(gap > parse_duration(options.interval).total_seconds() for gap in gaps),
        "records_a_stream": sent,
        "exact": rows == {sent},
    }
    print(f"  {json.dumps(result)}", flush=True)
    return result


def observe_for(meter: Meter, seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        meter.sample(memory=True)
        time.sleep(2)


def committed(name: str) -> int:
    snapshot = load_catalog(None).load_table(f"bench.{name}").current_snapshot()
    return int(snapshot.summary["total-records"]) if snapshot and snapshot.summary else 0


def gaps_s(name: str, from_ms: float, to_ms: float) -> list[float]:
    """Return the times (s) between a stream's commits, for commits within the period."""
    table = load_catalog(None).load_table(f"bench.{name}")
    times = [s.timestamp_ms for s in table.metadata.snapshots if s.summary and int(s.summary["added-records"] or 0)]
    return [(b - a) / 1000 for a, b in pairwise(times) if from_ms <= b <= to_ms]


def wait_for(application: subprocess.Popen[bytes], condition: Any, meter: Meter) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        if application.poll() is not None or time.monotonic() > deadline:
            sys.exit(f"the application ended ({application.returncode}) or did not get there in {DEADLINE_S:.0f} s")
        meter.sample()
        time.sleep(0.5)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 10, 100])
    parser.add_argument("--rate", type=int, default=50, help="records a second for each stream")
    parser.add_argument("--seconds", type=float, default=180)
    parser.add_argument("--settle", type=float, default=120, help="seconds under load before the measurement")
    parser.add_argument("--interval", default="60s")
    parser.add_argument("--partitions", type=int, default=2)
    parser.add_argument("--catalog", choices=("sqlite", "postgres"), default="sqlite")
    parser.add_argument("--log", help="keep the application's last log in this file")
    parser.add_argument("--produce", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.produce:
        print(produce(options.produce, options.streams[0], rate=options.rate, seconds=options.seconds))
        return
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by SIGTERM"))  # so that the servers end too
    for count in options.streams:
        measure(count, options)


if __name__ == "__main__":
    main()
