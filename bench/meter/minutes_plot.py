"""Plots a sustained load: `python -m bench.meter.minutes_plot MINUTES_CSV SVG`."""

from __future__ import annotations

import csv
import sys
from pathlib import Path

import matplotlib as mpl
import matplotlib.pyplot as plt

PANELS = {
    "freshness, s": {"fresh_worst_s": "worst", "fresh_p95_s": "p95", "fresh_p50_s": "p50"},
    "commit, ms": {"commit_p95_ms": "p95", "commit_p50_ms": "p50"},
    "writer, core-s per million records": {"core_s_per_million": ""},
    "files": {"files": "in the table", "query_files": "opened by the query"},
    "metadata.json, kB": {"metadata_kb": ""},
    "query of the last minute, ms": {"query_ms": ""},
}
COLOURS = ("#c2410c", "#0369a1", "#4b5563")
STYLE = {"svg.hashsalt": "frazil", "font.size": 8, "axes.spines.top": False, "axes.spines.right": False}


def draw(rows: list[dict[str, str]], path: Path) -> None:
    mpl.rcParams.update(STYLE)
    figure, axes = plt.subplots(2, 3, figsize=(10, 4.6), sharex=True, layout="constrained", facecolor="white")
    minutes = [float(row["minute"]) for row in rows]
    for axis, (title, lines) in zip(axes.flat, PANELS.items(), strict=True):
        for (name, label), colour in zip(lines.items(), COLOURS, strict=False):
            axis.plot(minutes, [float(row[name]) for row in rows], color=colour, label=label, linewidth=1.3)
        axis.set_title(title, loc="left", fontsize=8, fontweight="bold")
        axis.set_ylim(bottom=0)
        axis.set_xlim(0, max(minutes))
        axis.grid(alpha=0.25, linewidth=0.5)
        if any(lines.values()):
            axis.legend(frameon=False, ncols=len(lines), loc="best")
    for axis in axes[-1]:
        axis.set_xlabel("minute")
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None, dpi=110)
    plt.close(figure)


if __name__ == "__main__":
    with Path(sys.argv[1]).open(newline="") as file:
        draw(list(csv.DictReader(file)), Path(sys.argv[2]))
