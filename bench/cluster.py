"""The cost of a record on a standalone cluster, and on this host alone: `python -m bench.cluster --millions 4`.

One broker and one embedded cluster run on this machine; executors have one core. In each round, a local writer and a
writer on the cluster read the same ticks, in batches of a million. The result is the user and system CPU after the
first batch: of the writer and, on the cluster, also of master, workers and executors. The cost of starting is printed
separately.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from bench.meter.process_tree import SampledTree
from bench.peer.records import FRAZIL, KINDS, PARTITIONS, produce
from frazil.dev.kafka import EmbeddedKafka
from frazil.dev.spark_cluster import EmbeddedSparkCluster

POLL_INTERVAL_S = 0.1
DEADLINE_S = 900.0
BATCH = 1_000_000
MAIN = Path(__file__).parent.parent / "spark_apps" / "write_stream.py"
TICKS = KINDS["ticks"]


def declare(folder: Path, *, name: str, bootstrap: str, master: str) -> None:
    folder.mkdir(exist_ok=True)
    columns = {column.name: column.type_in(FRAZIL) for column in TICKS.columns}
    declared = {
        "name": name,
        "source": {"topics": [TICKS.name], "format": "json", "bootstrap-servers": bootstrap},
        "table": f"bench.{name}",
        "schema": columns,
        "event-time": "ts",
        "partition-by": ["hour(ts)"],
        "commit": {"max-records": BATCH},
        "resources": {"cores": 2, "master": master},
    }
    (folder / f"{name}.yaml").write_text(json.dumps(declared))


def used(trees: list[SampledTree]) -> Counter[str]:
    spent: Counter[str] = Counter()
    for tree in trees:
        spent.update(tree.cpu_s())
    return spent


def measure(streams: Path, name: str, cluster: EmbeddedSparkCluster | None, *, millions: int) -> float:
    """Core-seconds per million records after the first batch."""
    servers = [found for server in cluster.servers.values() if (found := server.server())] if cluster else []
    around = [SampledTree(server.pid, role="cluster") for server in servers]
    idle = used(around)
    command = [sys.executable, str(MAIN), name, "--streams", str(streams), "--until-caught-up"]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as writer:
        trees = [SampledTree(writer.pid, role="driver"), *around]
        status, first = Path(os.environ["FRAZIL_HOME"]) / "streams" / name / "status.json", None
        deadline = time.monotonic() + DEADLINE_S
        while writer.poll() is None and time.monotonic() < deadline:
            last = used(trees)
            if first is None and '"last_commit_snapshot": null' not in (said := _last_commit(status)) and said:
                first = last
            time.sleep(POLL_INTERVAL_S)
        if writer.wait(10) != 0 or first is None:
            sys.exit(f"the writer of {name} ended with {writer.returncode}")
    start = Counter(first)
    start.subtract(idle)
    spent = Counter(last)
    spent.subtract(first)
    each = spent.total() / (millions - 1)
    roles = ", ".join(f"{role} {cpu_s:.1f}" for role, cpu_s in spent.most_common() if cpu_s > 0.05)
    print(
        f"{name:<12} {each:.2f} core-s per million; start and first batch {start.total():.1f}; then {roles}", flush=True
    )
    return each


def _last_commit(status: Path) -> str:
    try:
        heartbeat = json.loads(status.read_text())
    except (OSError, ValueError):
        return ""
    return json.dumps({"last_commit_snapshot": heartbeat.get("last_commit_snapshot")})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--millions", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=2)
    arguments = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="frazil-bench-") as made,
        EmbeddedKafka(Path(made) / "kafka") as kafka,
        EmbeddedSparkCluster(Path(made) / "spark") as cluster,
    ):
        os.environ["FRAZIL_HOME"] = str(Path(made) / "home")
        kafka.create_topic(TICKS.name, PARTITIONS)
        produce(kafka.bootstrap, TICKS, arguments.millions * BATCH)
        streams, best = Path(made) / "streams", {"local": float("inf"), "cluster": float("inf")}
        for number in range(1, arguments.rounds + 1):
            for kind, where in (("local", None), ("cluster", cluster)):
                name = f"{kind}_{number}"
                master = where.master.address if where else "local[*]"
                declare(streams, name=name, bootstrap=kafka.bootstrap, master=master)
                best[kind] = min(best[kind], measure(streams, name, where, millions=arguments.millions))
        print(f"cluster {best['cluster']:.2f}, local {best['local']:.2f}: {best['cluster'] / best['local']:.2f} times")


if __name__ == "__main__":
    main()
