"""Prints a simulated day as Markdown: the tables' final sizes, and query times relative to a compacted copy."""

from __future__ import annotations

from collections.abc import Iterator

from bench.day.queries import ENGINES
from bench.day.samples import Samples

STATE = {
    "data_files": "files",
    "manifests": "manifests",
    "manifest_list_bytes": "manifest list, bytes",
    "metadata_bytes": "metadata.json, bytes",
    "snapshots": "snapshots",
    "commit": "commit p50, ms",
    "plan PyIceberg": "PyIceberg plans, ms",
    "plan Spark": "Spark plans, ms",
}


def report(samples: Samples) -> Iterator[str]:
    hours = list(samples.p95("maintained", f"complete {ENGINES[0]} wall"))
    yield f"| before the hour's maintenance: with, without | {' | '.join(f'hour {h}' for h in hours)} |"
    yield "|---" * (len(hours) + 1) + "|"
    for measure, title in STATE.items():
        pairs = [[_first(samples, hour, table, measure) for table in ("maintained", "unattended")] for hour in hours]
        yield f"| {title} | {' | '.join(f'{a:,.0f}, {b:,.0f}' for a, b in pairs)} |"
    yield ""
    yield f"| query p95, ms: with, without, freshly compacted | {' | '.join(f'hour {h}' for h in hours)} |"
    yield "|---" * (len(hours) + 1) + "|"
    for hour_state in ("complete", "open"):
        for engine in ENGINES:
            for clock in ("wall", "CPU"):
                yield _queries(samples, f"{hour_state} {engine} {clock}", hours)


def _queries(samples: Samples, measure: str, hours: list[int]) -> str:
    found = [samples.p95(table, measure) for table in ("maintained", "unattended", "compacted")]
    cells = []
    for hour in hours:
        times = [of[hour] for of in found if hour in of]
        cells.append(f"{', '.join(f'{t:,.0f}' for t in times)} ({times[0] / times[-1]:.2f}×)")
    return f"| {measure} | {' | '.join(cells)} |"


def _first(samples: Samples, hour: int, table: str, measure: str) -> float:
    hours, values = samples.line(table, measure)
    return values[hours.index(hour)]
