"""A picture of how the classes are distributed over agents."""

from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl
import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from parley.errors import BadValue
from parley.results.style import BAR, THEME, checked_path, every, save, short

Counts = npt.NDArray[np.float64]  # [N, classes]


def partition_picture(
    holdings: npt.ArrayLike, path: str | Path, class_names: Sequence[str] | None = None
) -> Path:
    """Draw the class distribution: one bubble per agent and class, its area the number of examples.

    Bars on the right show how many examples each agent holds in total.
    """
    out = checked_path(path)
    counts = checked_counts(holdings)
    n, classes = counts.shape
    names = names_of(class_names, classes)
    # In inches. Cells shrink as their number grows, down to a limit; then the page grows.
    across, down = (float(np.clip(11.0 / k, 0.11, 0.4)) for k in (classes, n))
    panel = np.array([classes * across, n * down])
    longest = min(max(map(len, names)), 24)
    upright = class_names is not None and longest * 0.085 > across * 0.9
    bottom = 0.55 + (0.07 * longest if upright else 0.0)
    left, gap, top = 0.75, 0.15, 0.5
    bars = max(1.3, 4.6 - left - gap - panel[0] - 0.35)
    size = (left + panel[0] + gap + bars + 0.35, bottom + panel[1] + top)
    figure = Figure(figsize=size)

    def axes_at(x: float, width: float) -> Axes:
        return figure.add_axes((x / size[0], bottom / size[1], width / size[0], panel[1] / size[1]))

    grid = axes_at(left, panel[0])
    grid.set_xlim(-0.5, classes - 0.5)
    grid.set_ylim(n - 0.5, -0.5)  # agent 0 on top, as in a table
    agent, label = np.nonzero(counts)
    held = counts[agent, label]
    largest = float(held.max(initial=1.0))
    diameter = 0.92 * min(across, down) * 72  # points
    area = np.maximum(diameter**2 * held / largest, 1.0)  # a single example can still be seen
    grid.scatter(label, agent, s=area, color=BAR, linewidths=0, zorder=3)
    grid.set_xlabel("class")
    grid.set_ylabel("agent")
    _ticks(grid, "x", names if class_names is not None else None, classes, across, upright)
    _ticks(grid, "y", None, n, down, False)

    totals = axes_at(left + panel[0] + gap, bars)
    totals.barh(range(n), counts.sum(axis=1), height=0.7, color=BAR, zorder=3)
    totals.set_ylim(n - 0.5, -0.5)
    totals.set_yticks([])
    totals.xaxis.set_major_locator(mpl.ticker.MaxNLocator(2))
    totals.set_xlabel("examples")
    for axes in (grid, totals):
        axes.tick_params(length=0, labelsize=8)
        axes.grid(color=THEME["line"], lw=0.6, zorder=0)
        for spine in axes.spines.values():
            spine.set_visible(False)
    title = f"Class distribution; the largest bubble is {largest:g} examples"
    figure.text(0.5, 1 - 0.15 / size[1], title, ha="center", va="top", fontsize=10)
    return save(figure, out)


def _ticks(
    axes: Axes, which: str, names: list[str] | None, n: int, cell: float, upright: bool
) -> None:
    """Labels every row while there is room, otherwise every fifth, tenth, ...; names always."""
    axis = axes.xaxis if which == "x" else axes.yaxis
    if names is None:
        axis.set_ticks(every(n, int(n * cell / (0.22 if which == "x" else 0.15))))
        return
    axis.set_ticks(range(n), [short(name) for name in names])
    for label in axis.get_ticklabels():
        label.set_parse_math(False)
        label.set_fontsize(min(8.0, 60 * cell))
        if upright:
            label.set(rotation=90, ha="center", va="top")


def names_of(class_names: Sequence[str] | None, classes: int) -> list[str]:
    """The given names, one per class, or the classes' numbers."""
    if class_names is None:
        return [str(k) for k in range(classes)]
    if len(class_names) != classes:
        raise BadValue("class_names", len(class_names), f"{classes} names, one per class")
    return [str(name) for name in class_names]


def checked_counts(holdings: npt.ArrayLike, agents: int | None = None) -> Counts:
    """The counts as a validated array."""
    counts = np.asarray(holdings, dtype=np.float64)
    rows = "agents" if agents is None else str(agents)
    if counts.ndim != 2 or 0 in counts.shape or agents not in (None, len(counts)):
        raise BadValue("holdings", counts.shape, f"shape ({rows}, classes)")
    if not (counts >= 0).all():
        raise BadValue("holdings", float(counts.min()), "counts of 0 or more")
    return counts
