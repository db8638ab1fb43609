"""A writer that does not read Kafka, but keeps every promise that a writer makes to its supervisor.

It takes its declaration's fingerprint from its launch, because reading the file would take most of its start time. It
writes heartbeats to its run folder, and commits a batch every 0.2 s. After SIGTERM, it ends with 0 when the current
batch is committed. It obeys `<FRAZIL_HOME>/orders-<name>.json`:

- `{"exit": 11, "error": "..."}` ends it.
- `{"crash-at-start": true}` ends it before its first batch.
- `{"hang": true}` stops all progress.
- `{"batch-seconds": 5}` makes its batches long.
- `{"stall": "t-0"}` makes it report that this topic-partition holds it back.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

from frazil.home import home, run_folder
from frazil.host.heartbeat import Heartbeat, Phase, Stall, StallKind
from frazil.host.lock import read_launch

stop = threading.Event()


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("name")
    parser.add_argument("--streams", type=Path, required=True)
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    folder, orders_file = run_folder(options.name), home() / f"orders-{options.name}.json"
    launch = read_launch(folder)
    fingerprint = launch.spec_fingerprint if launch else ""
    started = now_ms()
    print(f"fake writer {os.getpid()} starts {options.name}", flush=True)

    def heartbeat(phase: Phase, batch: int, *, advanced: int, error: str | None = None) -> None:
        last = advanced if batch else None
        by = orders.get("stall")
        stall = Stall(StallKind.OFFSETS, advanced, by, f"{by} holds the offsets back") if by else None
        Heartbeat(
            options.name, os.getpid(), fingerprint, phase, now_ms(), advanced, 1, batch,
            lag=0, last_commit_at_ms=last, error=error, stall=stall,
        ).write(folder)  # fmt: skip

    batch, advanced = 0, started
    orders: dict[str, Any] = {}
    heartbeat(Phase.STARTING, batch, advanced=advanced)
    while True:
        orders = json.loads(orders_file.read_text()) if orders_file.exists() else {}
        if "exit" in orders or orders.get("crash-at-start"):
            code = orders.get("exit", 3)
            error = orders.get("error", "asked to crash")
            print(error, flush=True)
            heartbeat(Phase.ENDED, batch, advanced=now_ms(), error=error)
            return int(code)
        if stop.is_set():
            print("the current batch is committed; ending", flush=True)
            heartbeat(Phase.ENDED, batch, advanced=now_ms())
            return 0
        if orders.get("hang"):
            heartbeat(Phase.STAGING, batch, advanced=advanced)
            time.sleep(0.05)
            continue
        time.sleep(orders.get("batch-seconds", 0.2))
        batch, advanced = batch + 1, now_ms()
        heartbeat(Phase.WAITING, batch, advanced=advanced)


if __name__ == "__main__":
    sys.exit(main())
