"""Generates docs/reference/metrics.md from the table, so that it names what there is.

`python -m frazil.telemetry.page > docs/reference/metrics.md` updates the page.
"""

from __future__ import annotations

from frazil.host.heartbeat import StallKind
from frazil.telemetry.metrics import BOUNDS_S, METRICS, Metric, Sort

_INTRODUCTION = """\
# Metrics

What a process that writes streams publishes, if `FRAZIL_METRICS` says so:
[Watch with Prometheus](../how-to/watch-with-prometheus.md) is the guide. This page is generated from the table
(`python -m frazil.telemetry.page`).

The names in OpenTelemetry become those in Prometheus by the rules of OpenTelemetry's specification, so a collector that
exports to Prometheus yields the same ones. Times are seconds, sizes bytes. Every metric has the labels `stream` and
`table`; more are named. So there are {series} series for each stream at most, of which {buckets} are buckets of times.
Counters begin at 0 with each process.
"""


def render() -> str:
    """The whole page, as Markdown."""
    times = [metric for metric in METRICS if metric.sort is Sort.HISTOGRAM]
    others = [metric for metric in METRICS if metric.sort is not Sort.HISTOGRAM and not metric.by_partition]
    buckets = len(times) * (len(BOUNDS_S) + 1)
    series = buckets + 2 * len(times) + len(others) + len(StallKind) - 1
    rows = ["| Prometheus | OpenTelemetry | kind | unit | meaning |", "|---|---|---|---|---|", *map(_row, METRICS)]
    bounds = ", ".join(f"{bound:g}" for bound in BOUNDS_S)
    end = f"The buckets of times end at {bounds} seconds."
    return "\n".join([_INTRODUCTION.format(series=series, buckets=buckets), *rows, "", end, ""])


def _row(metric: Metric) -> str:
    more = [f"`{name}`" for name in metric.labels[2:]]
    by = f" By {' and '.join(more)}." if more and "`kind`" not in more else ""
    only = " Only with `FRAZIL_METRICS_PARTITIONS=1`." if metric.by_partition else ""
    means = f"{metric.means}{by}{only}"
    return f"| `{metric.prometheus}` | `{metric.name}` | {metric.sort} | `{metric.unit}` | {means} |"


if __name__ == "__main__":
    print(render(), end="")
