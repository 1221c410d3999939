"""What methods cost and what they achieve: one point each, and which ones nothing beats."""

from collections.abc import Mapping, Sequence
from math import isnan, log
from pathlib import Path
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from parley.results.style import LINES, THEME, checked_path, plain_axes, plain_numbers, save

GREY = THEME["edge"]
SAME = 1.1
"""Costs that differ by less than this factor count as equal: points that close have one name."""


class Point(NamedTuple):
    """A method's means over its seeds."""

    name: str
    costs: tuple[float, ...]
    """One for each panel; NaN: it is not shown there."""
    gain: float
    spread: float | None
    """Of the gain, over the seeds; None with one seed."""
    compared: bool = True
    """Whether it takes part, rather than being shown for reference."""


def front(points: Sequence[Point], cost: int) -> list[Point]:
    """Those for which no other costs about as little and gains more, cheapest first.

    >>> dear, cheap, bad = (Point(*p) for p in (("a", (9,), 80, 0), ("b", (1,), 70, 0),
    ...     ("c", (3,), 60, 0)))
    >>> [p.name for p in front([dear, cheap, bad], 0)]
    ['b', 'a']
    """
    found: list[Point] = []
    for point in sorted(
        points, key=lambda p: (round(log(max(p.costs[cost], 1e-9), SAME)), -p.gain)
    ):
        if point.compared and (not found or point.gain > found[-1].gain):
            found.append(point)
    return found


def tradeoff_picture(
    settings: Mapping[str, Sequence[Point]], costs: Sequence[str], gain: str, path: str | Path
) -> Path:
    """One row of panels for each setting; methods that nothing beats are named."""
    out = checked_path(path)
    figure = Figure(figsize=(5.6 * len(costs), 4.2 * len(settings)), layout="constrained")
    panels = figure.subplots(len(settings), len(costs), squeeze=False, sharey="row")
    for (title, points), row in zip(settings.items(), panels, strict=True):
        for number, (axes, cost) in enumerate(zip(row, costs, strict=True)):
            _draw(axes, points, number)
            axes.set_title(title, loc="left", fontsize=10)
            axes.set_xlabel(cost)
        row[0].set_ylabel(gain)
    return save(figure, out)


def _draw(axes: Axes, points: Sequence[Point], cost: int) -> None:
    points = [point for point in points if not isnan(point.costs[cost])]
    best = front(points, cost)
    plain_axes(axes)
    axes.set_xscale("log")
    axes.step(
        [p.costs[cost] for p in best], [p.gain for p in best],
        where="post", color=LINES[0], lw=1, alpha=0.5, zorder=1,
    )  # fmt: skip
    for point in points:
        first = point in best
        colour = LINES[0] if first else GREY
        marker = "o" if point.compared else "s"
        face = colour if point.compared else "none"
        x = point.costs[cost]
        axes.errorbar(
            x, point.gain, point.spread, fmt=marker, color=colour, mfc=face,
            ms=5 if first else 4, lw=1, zorder=3 if first else 2,
        )  # fmt: skip
        if first or not point.compared:
            axes.annotate(
                point.name, (x, point.gain), (5, 4), textcoords="offset points",
                fontsize=8, color=colour, zorder=4,
            )  # fmt: skip
    plain_numbers(axes.xaxis)
    axes.margins(x=0.15)
