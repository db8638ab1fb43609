"""Compares the runs of several systems on a Markdown page."""

from __future__ import annotations

import platform
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import psutil

from bench.peer.records import PARTITIONS, Records, avro_encoder
from bench.peer.systems import System

COLUMNS = (
    "",
    "CPU core-s, least (median)",
    "core-s per million",
    "times frazil's CPU",
    "wall s, least",
    "peak memory MiB",
    "files of each round",
    "MB",
    "each record once",
)


@dataclass(frozen=True, slots=True)
class Run:
    """The cost and the output of one system in one round."""

    system: str
    round: int
    cpu_s: float
    wall_s: float
    peak_mib: int
    files: int
    megabytes: float
    rows: int
    exact: bool


def page(
    runs: Sequence[Run], records: Records, count: int, systems: Sequence[System], *, encoding: str = "json"
) -> str:
    """Return a Markdown page: the machine, a row per system, and a description of each system."""
    lines = [
        f"# {count:,} {records.name} of {_size(records, encoding)} bytes of {encoding}, {PARTITIONS} Kafka partitions",
        "",
        _machine(),
        "",
        f"| {' | '.join(COLUMNS)} |",
        "|---" * len(COLUMNS) + "|",
    ]
    own = min((r.cpu_s for r in runs if r.system == "frazil"), default=None)
    for system in systems:
        cells = _cells([r for r in runs if r.system == system.name], count, own)
        lines.append(f"| {system.name} | {' | '.join(cells)} |")
    return "\n".join([*lines, "", *(f"- {s.name}: {s.described}" for s in systems), ""])


def _size(records: Records, encoding: str) -> int:
    encode = avro_encoder(records, schema_id=1) if encoding == "avro" else records.value
    return len(encode(12345))


def _cells(runs: Sequence[Run], count: int, own: float | None) -> list[str]:
    cpu = sorted(r.cpu_s for r in runs)
    return [
        f"{cpu[0]:.1f} ({statistics.median(cpu):.1f})",
        f"{cpu[0] / count * 1e6:.2f}",
        f"{cpu[0] / own:.2f}" if own else "–",
        f"{min(r.wall_s for r in runs):.1f}",
        str(max(r.peak_mib for r in runs)),
        ", ".join(str(r.files) for r in runs),
        f"{runs[-1].megabytes:.1f}",
        "yes" if all(r.exact for r in runs) else "NO",
    ]


def _machine() -> str:
    cpuinfo = Path("/proc/cpuinfo").read_text().splitlines()
    processor = next((line.partition(":")[2].strip() for line in cpuinfo if line.startswith("model name")), "unknown")
    return (
        f"{datetime.now(UTC):%d %B %Y}: {psutil.cpu_count()} cores of {processor}, "
        f"{psutil.virtual_memory().total >> 30} GiB, Linux {platform.release()}, Python {platform.python_version()}. "
        "Start-up included; the broker shares the cores, and its CPU is not counted."
    )
