"""A writer's fixed costs: `python -m bench.fixed_costs [--rounds 3] [--idle 75] [--batches 1]`.

With `--substrate rest+s3`, catalog and storage are servers, and a proxy counts their requests. At the end, prints the
cost of all batches according to frazil's commit records.

Starts the embedded Kafka, sends 1,000 records and runs `frazil run`. Prints the wall time from start to first commit,
by phase, and the life and CPU time of each process. Then, `--batches` times: leaves the writer idle for `--idle`
seconds, prints the CPU of each process, sends 1,000 records, and prints the cost of their batch.

CPU is user and system time, sampled 20 times a second from /proc. The last 50 ms of a process may be missed.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, field
from pathlib import Path

from confluent_kafka import Producer

from bench.meter.process_tree import SampledTree
from bench.substrates import NAMES, substrate
from frazil.dev.kafka import EmbeddedKafka
from frazil.spec.load import find_stream
from frazil.status.cost import StreamCost, cost_of

RECORDS = 1_000
PARTITIONS = 4
POLL_INTERVAL_S = 0.05
DEADLINE_S = 300.0
STREAM = """\
name: ticks
source: {{topics: [ticks], format: json, bootstrap-servers: "{bootstrap}"}}
table: bench.ticks
schema:
  symbol: string not null
  price: double not null
  at: {{type: timestamptz, required: true}}
event-time: {{column: at, unit: ms}}
partition-by: [hour(at)]
commit: {{interval: {interval}}}
"""


@dataclass(slots=True)
class Writer:
    """A writer in the foreground, whose processes and heartbeat are sampled."""

    home: Path
    process: subprocess.Popen[bytes] = field(init=False)
    tree: SampledTree = field(init=False)
    phases: list[tuple[float, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        frazil = str(Path(sys.executable).with_name("frazil"))
        self.process = subprocess.Popen([frazil, "run", "ticks"], stdout=subprocess.DEVNULL)
        self.tree = SampledTree(self.process.pid)

    def watch(self, until: Callable[[dict[str, object]], bool]) -> dict[str, object]:
        """Sample processes until the heartbeat satisfies `until`, and return the heartbeat."""
        deadline = time.monotonic() + DEADLINE_S
        while True:
            self.tree.sample()
            heartbeat = self._heartbeat()
            now = time.monotonic() - self.tree.began
            if heartbeat and (not self.phases or self.phases[-1][1] != heartbeat["phase"]):
                self.phases.append((now, str(heartbeat["phase"])))
            if heartbeat and until(heartbeat):
                return heartbeat
            if self.process.poll() is not None or time.monotonic() > deadline:
                sys.exit(f"the writer ended ({self.process.returncode}) or did not get there in {DEADLINE_S:.0f} s")
            time.sleep(POLL_INTERVAL_S)

    def watch_for(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        self.watch(lambda _: time.monotonic() >= end)

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(60)

    def _heartbeat(self) -> dict[str, object] | None:
        try:
            heartbeat: dict[str, object] = json.loads((self.home / "streams" / "ticks" / "status.json").read_text())
        except (OSError, ValueError):
            return None
        return heartbeat


def send(bootstrap: str) -> None:
    producer = Producer({"bootstrap.servers": bootstrap})
    now_ms = time.time_ns() // 1_000_000
    for number in range(RECORDS):
        value = b'{"symbol":"SYM%05d","price":%d.5,"at":%d}' % (number, number, now_ms)
        producer.produce("ticks", value, partition=number % PARTITIONS)
    producer.flush(60)


def commit_of(heartbeat: dict[str, object]) -> object:
    return heartbeat.get("last_commit_snapshot")


def measure_start(writer: Writer) -> tuple[float, float]:
    """Print the costs up to the first commit by phase. Return the wall and CPU seconds."""
    writer.watch(lambda heartbeat: commit_of(heartbeat) is not None)
    wall = time.monotonic() - writer.tree.began
    spent = writer.tree.cpu_s()
    print(f"\nstart to first commit: {wall:.1f} s wall, {spent.total():.1f} core-s")
    print("  phases: " + ", ".join(f"{name} at {at_s:.1f}" for at_s, name in writer.phases))
    for line in rows(writer.tree):
        print(f"  {line}")
    print("  by role: " + ", ".join(f"{role} {cpu_s:.1f}" for role, cpu_s in spent.most_common()), flush=True)
    return wall, spent.total()


def rows(tree: SampledTree) -> Iterator[str]:
    for process in sorted(tree.sampled.values(), key=lambda s: s.first_s):
        alive = f"{process.first_s:5.1f} to {process.last_s:5.1f} s"
        yield f"{process.role:<22} {alive}  {process.cpu_s:5.2f} core-s"


def measure_idle(writer: Writer, seconds: float) -> float:
    """Print the CPU of each idle process. Return the CPU seconds per second."""
    writer.watch_for(5)  # what a batch leaves behind
    before, began = writer.tree.cpu_s(), time.monotonic()
    writer.watch_for(seconds)
    took = time.monotonic() - began
    used = writer.tree.cpu_s()
    used.subtract(before)
    each = ", ".join(f"{role} {100 * cpu_s / took:.2f} %" for role, cpu_s in used.most_common() if cpu_s > 0.005)
    print(f"idle for {took:.0f} s: {100 * used.total() / took:.2f} % of a core: {each}", flush=True)
    return used.total() / took


def measure_batch(writer: Writer, bootstrap: str, idle: float) -> tuple[float, float]:
    """Return a batch's wall seconds from plan to commit, and its CPU seconds beyond those of an idle writer."""
    last = commit_of(writer.watch(lambda _: True))
    send(bootstrap)
    before, began = writer.tree.cpu_s(), time.monotonic()

    def staging(heartbeat: dict[str, object]) -> bool:
        nonlocal before, began
        if heartbeat["phase"] == "waiting" and commit_of(heartbeat) == last:
            before, began = writer.tree.cpu_s(), time.monotonic()
            return False
        return True

    writer.watch(staging)
    writer.watch(lambda heartbeat: commit_of(heartbeat) != last)
    wall = time.monotonic() - began
    writer.watch_for(1)
    used = writer.tree.cpu_s()
    used.subtract(before)
    cpu = used.total() - idle * (time.monotonic() - began)
    each = ", ".join(f"{role} {cpu_s:.2f}" for role, cpu_s in used.most_common() if cpu_s > 0.005)
    print(f"batch of {RECORDS}: {wall:.2f} s wall, {cpu:.2f} core-s ({each})", flush=True)
    return wall, cpu


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--batches", type=int, default=1)
    parser.add_argument("--idle", type=float, default=75, help="seconds of idling before each batch")
    parser.add_argument("--interval", default="10s")
    parser.add_argument("--substrate", choices=NAMES)
    options = parser.parse_args()
    starts = []
    with ExitStack() as servers:
        folder = servers.enter_context(tempfile.TemporaryDirectory())
        there = substrate(options.substrate, Path(folder)) if options.substrate else nullcontext(Counter[str]())
        calls = servers.enter_context(there)
        kafka = servers.enter_context(EmbeddedKafka(Path(folder) / "kafka"))
        streams = Path(folder) / "declared"
        streams.mkdir()
        (streams / "ticks.yaml").write_text(STREAM.format(bootstrap=kafka.bootstrap, interval=options.interval))
        kafka.create_topic("ticks", PARTITIONS)
        send(kafka.bootstrap)
        for number in range(options.rounds):
            home = Path(folder) / f"home-{number}"
            os.environ |= {"FRAZIL_HOME": str(home), "FRAZIL_STREAMS": str(streams)}
            writer = Writer(home)
            try:
                starts.append(measure_start(writer))
                for _ in range(options.batches):
                    idle = measure_idle(writer, options.idle)
                    before = Counter(calls)
                    measure_batch(writer, kafka.bootstrap, idle)
                    if calls:
                        print("requests: " + ", ".join(f"{n} {kind}" for kind, n in sorted((calls - before).items())))
            finally:
                writer.stop()
            print(sum(cost_of(find_stream(streams, "ticks"), since_ms=0).days.values(), StreamCost()))
            shutil.rmtree(home, ignore_errors=True)
    walls, cpus = sorted(w for w, _ in starts), sorted(c for _, c in starts)
    print(f"\n{len(starts)} starts: wall p50 {walls[len(walls) // 2]:.1f} s, CPU p50 {cpus[len(cpus) // 2]:.1f} core-s")


if __name__ == "__main__":
    main()
