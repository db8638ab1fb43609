"""Plots a simulated day from saved samples: `python -m bench.day.plot SAMPLES SVG`."""

from __future__ import annotations

import sys
from pathlib import Path

import matplotlib as mpl
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from bench.day.samples import Samples

LINES = {
    "unattended": ("without", "#c2410c", "-"),
    "maintained": ("with", "#0369a1", "-"),
    "compacted": ("freshly compacted", "#4b5563", "--"),
}
SIZES = {
    "data_files": ("data files", 1),
    "manifest_list_bytes": ("manifest list, KiB", 1024),
    "metadata_bytes": ("metadata.json, KiB", 1024),
    "commit": ("commit, p50, ms", 1),
    "plan PyIceberg": ("PyIceberg: planning, s", 1000),
    "plan Spark": ("Spark: planning, s", 1000),
}
QUERIES = {
    f"complete {engine} CPU": (f"{engine}: query p95, CPU s", 1000) for engine in ("PyIceberg", "DuckDB", "Spark")
}


def draw(samples: Samples, path: Path) -> None:
    """Draw nine small plots over the hours of the day, in the format of the path's suffix, such as SVG."""
    mpl.rcParams.update(
        {
            "svg.hashsalt": "frazil",
            "font.size": 8,
            "axes.titlesize": 8,
            "axes.spines.top": False,
            "axes.spines.right": False,
        }
    )
    figure, axes = plt.subplots(3, 3, figsize=(10, 7.5), sharex=True, layout="constrained", facecolor="white")
    for axis, (measure, (title, unit)) in zip(axes.flat, (SIZES | QUERIES).items(), strict=True):
        _panel(axis, samples, measure, unit)
        axis.set_title(title, loc="left", fontweight="bold")
    for axis in axes[-1]:
        axis.set_xlabel("hour of the day")
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None, dpi=110)
    plt.close(figure)


def _panel(axis: Axes, samples: Samples, measure: str, unit: float) -> None:
    last = {}
    for table, (label, colour, style) in LINES.items():
        if measure in QUERIES:
            of_hour = samples.p95(table, measure)
            hours, values = list(of_hour), list(of_hour.values())
        else:
            hours, values = samples.line(table, measure)
        if hours:
            marker = "o" if measure in QUERIES else None
            axis.plot(
                hours, [v / unit for v in values], style, color=colour, linewidth=1.3, marker=marker, markersize=3
            )
            last[table] = (hours[-1], values[-1] / unit, label, colour)
    axis.set_yscale("log")
    axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
    axis.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5), numticks=7))
    axis.yaxis.set_minor_locator(NullLocator())
    axis.margins(y=0.18)
    axis.set_xlim(0, max((hour for hour, *_ in last.values()), default=1) * 1.02)
    axis.set_xticks(range(0, 25, 6))
    axis.grid(alpha=0.25, linewidth=0.5)
    for hour, value, label, colour in last.values():
        above = label == "without" or (label == "with" and "compacted" in last)
        axis.annotate(
            label, (hour, value), (-2, 5 if above else -11), textcoords="offset points", color=colour, ha="right"
        )


if __name__ == "__main__":
    with Path(sys.argv[1]).open() as lines:
        draw(Samples.load(lines), Path(sys.argv[2]))
