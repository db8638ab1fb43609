"""Small plots of stored benchmark results, as SVG."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib as mpl
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullLocator

BLUE, GREY = "#0369a1", "#9ca3af"
STYLE = {
    "svg.hashsalt": "frazil",
    "svg.fonttype": "none",
    "font.size": 8,
    "axes.titlesize": 8,
    "axes.spines.top": False,
    "axes.spines.right": False,
}


def panels(path: Path, curves: Sequence[tuple[str, str, Sequence[tuple[float, float]]]]) -> None:
    """Draw a panel with a line for each curve: its name, its unit, and its points. The x axis is logarithmic."""
    mpl.rcParams.update(STYLE)
    columns = 4
    rows = -(-len(curves) // columns)
    figure, axes = plt.subplots(rows, columns, figsize=(10, 2.4 * rows), layout="constrained", squeeze=False)
    for axis, (name, unit, points) in zip(axes.flat, curves, strict=False):
        xs, ys = [x for x, _ in points], [y for _, y in points]
        axis.plot(xs, ys, color=BLUE, marker="o", markersize=3, linewidth=1.3)
        axis.set_title(unit, loc="left", fontweight="bold")
        axis.set_xlabel(name)
        axis.set_xscale("log")
        axis.set_xticks(xs, [_short(x) for x in xs])
        axis.xaxis.set_minor_locator(NullLocator())
        axis.set_ylim(0, max(ys, default=1) * 1.2)
        axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
        axis.grid(alpha=0.25, linewidth=0.5)
    for axis in axes.flat[len(curves) :]:
        axis.remove()
    _save(figure, path)


def bars(path: Path, groups: Mapping[str, Mapping[str, tuple[float, float]]], unit: str) -> None:
    """Draw a panel per group with a bar per name: its minimum, with a line up to its median. frazil comes first."""
    mpl.rcParams.update(STYLE)
    figure, axes = plt.subplots(1, len(groups), figsize=(5 * len(groups), 2.6), layout="constrained", squeeze=False)
    for axis, (title, found) in zip(axes.flat, groups.items(), strict=True):
        _bars(axis, found)
        axis.set_title(title, loc="left", fontweight="bold")
        axis.set_xlabel(unit)
    _save(figure, path)


def _bars(axis: Axes, found: Mapping[str, tuple[float, float]]) -> None:
    names = [*found][::-1]
    best = [found[name][0] for name in names]
    error = [[0.0] * len(names), [found[name][1] - found[name][0] for name in names]]
    colours = [GREY] * (len(names) - 1) + [BLUE]
    drawn = axis.barh(names, best, color=colours, height=0.6, xerr=error, error_kw={"linewidth": 1, "capsize": 2})
    axis.bar_label(drawn, [f"{value:.1f}" for value in best], padding=4, label_type="center", color="white")
    axis.grid(axis="x", alpha=0.25, linewidth=0.5)


def _short(number: float) -> str:
    for size, letter in ((1e6, "M"), (1e3, "k")):
        if number >= size:
            return f"{number / size:g}{letter}"
    return f"{number:g}"


def _save(figure: Figure, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None}, facecolor="white")
    plt.close(figure)
