"""How soon does each command answer? `python bench/commands.py [TIMES]`.

One stream with 2,000 records in the embedded catalog (SQLite, local files), written by `frazil run`; first with its
broker, then without. Each command is its own process. CPU is its user and system time. CPU and
wall time are each the minimum of TIMES (3) runs, as on an otherwise idle machine.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from confluent_kafka import Producer

from frazil.dev.kafka import EmbeddedKafka

STREAM = """
name: ticks
source: {{topics: [ticks], bootstrap-servers: "{servers}"}}
table: demo.ticks
schema: {{at: timestamptz not null, id: long}}
event-time: at
partition-by: [day(at)]
complete: hour
"""
COMMANDS = (
    "--help",
    "validate",
    "dev status",
    "status",
    "health",
    "partitions demo.ticks",
    "orphans demo.ticks",
    "maintain demo.ticks --dry-run",
    "backfill ticks --status",
    "audit ticks",
    "resume ticks",
    "adopt ticks",
    "audit ticks --source",
    "backfill ticks --dry-run",
    "reset ticks --to marker",
    "forget ticks",
)
FRAZIL = str(Path(sys.executable).with_name("frazil"))


def once(command: str) -> tuple[float, float, int]:
    """Wall and CPU seconds, and the exit code; no one answers questions."""
    before, begin = os.times(), time.monotonic()
    done = subprocess.run([FRAZIL, *command.split()], capture_output=True, stdin=subprocess.DEVNULL, check=False)
    wall, after = time.monotonic() - begin, os.times()
    used = after.children_user + after.children_system - before.children_user - before.children_system
    return wall, used, done.returncode


def measure(times: int) -> None:
    for command in COMMANDS:
        tries = [once(command) for _ in range(times)]
        wall, cpu = min(t[0] for t in tries), min(t[1] for t in tries)
        print(f"{command:<30}  {wall:>8.2f}  {cpu:>8.2f}  {tries[-1][2]:>4}", flush=True)


def main() -> None:
    times = int(sys.argv[1]) if sys.argv[1:] else 3
    with tempfile.TemporaryDirectory() as folder:
        streams = Path(folder, "streams")
        streams.mkdir()
        os.environ |= {"FRAZIL_HOME": folder, "FRAZIL_STREAMS": str(streams)}
        print(f"{'command':<30}  {'wall s':>8}  {'CPU s':>8}  {'exit':>4}")
        with EmbeddedKafka(Path(folder, "kafka")) as kafka:
            (streams / "ticks.yaml").write_text(STREAM.format(servers=kafka.bootstrap))
            kafka.create_topic("ticks", 4)
            producer = Producer({"bootstrap.servers": kafka.bootstrap})
            for number in range(2_000):
                producer.produce("ticks", f'{{"at": "2013-12-30T{number % 24:02}:00:00Z", "id": {number}}}')
            producer.flush()
            del producer  # it would tell about the broker's end
            subprocess.run([FRAZIL, "run", "ticks", "--until-caught-up"], check=True, stdout=subprocess.DEVNULL)
            measure(times)
        print("without its broker")
        measure(times)


if __name__ == "__main__":
    main()
