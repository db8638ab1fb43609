"""Generates docs/reference/metrics.md from the table of metrics.

`python -m tests.metrics_page > docs/reference/metrics.md` updates the page.
"""

from __future__ import annotations

from frazil.host.heartbeat import StallKind
from frazil.telemetry.metrics import BUCKET_BOUNDS_S, METRICS, Metric, MetricType

_INTRODUCTION = """\
# Metrics

Metrics that writers publish with `FRAZIL_METRICS` ([guide](../how-to/watch-with-prometheus.md)), with the labels
`stream` and `table`. Names that end in `_total` are counters, which start at 0 in each process. Histograms are
{histograms}; all others are gauges.
A stream has at most {series} series, {buckets} of them histogram buckets.
"""


def render() -> str:
    """Return the page as Markdown."""
    times = [metric for metric in METRICS if metric.type is MetricType.HISTOGRAM]
    others = [metric for metric in METRICS if metric.type is not MetricType.HISTOGRAM and not metric.by_partition]
    buckets = len(times) * (len(BUCKET_BOUNDS_S) + 1)
    series = buckets + 2 * len(times) + len(others) + len(StallKind) - 1
    rows = ["| Prometheus | OpenTelemetry | meaning |", "|---|---|---|", *map(_row, METRICS)]
    bounds = ", ".join(f"{bound:g}" for bound in BUCKET_BOUNDS_S)
    end = f"Upper bounds of the histogram buckets, in seconds: {bounds}."
    histograms = ", ".join(f"`{metric.prometheus}`" for metric in times)
    introduction = _INTRODUCTION.format(series=series, buckets=buckets, histograms=histograms)
    return "\n".join([introduction, *rows, "", end, ""])


def _row(metric: Metric) -> str:
    more = [f"`{name}`" for name in metric.labels[2:]]
    by = f" One series per {' and '.join(more)}." if more and "`kind`" not in more else ""
    only = " Only with `FRAZIL_METRICS_PARTITIONS=1`." if metric.by_partition else ""
    description = f"{metric.description}{by}{only}"
    return f"| `{metric.prometheus}` | `{metric.name}` | {description} |"


if __name__ == "__main__":
    print(render(), end="")
