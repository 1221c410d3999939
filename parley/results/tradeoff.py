"""What methods cost and what they achieve: one point each, and which ones nothing beats."""

from collections.abc import Mapping, Sequence
from math import inf, isnan
from pathlib import Path
from statistics import median, quantiles
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke
from matplotlib.text import Annotation, Text
from matplotlib.transforms import Bbox, BboxBase

from parley.results.style import LINES, THEME, checked_path, plain_axes, plain_numbers, save

GREY = THEME["edge"]
SAME = 1.1
"""Costs that differ by less than this factor count as equal."""

FAR = 3.0
"""A gain this many interquartile ranges below the lower quartile is told in words instead."""
HALO = withStroke(linewidth=2.5, foreground="white")
"""Keeps names readable where they cross bars and lines."""
MARKER = 4.0
"""Pixels from the middle of a point to its edge; a name begins twice as far away."""
RISES = sorted((step / 2 for step in range(-60, 60)), key=lambda rise: abs(rise - 0.25))
"""How far above its point a name may begin, in its own heights, the nearest first."""


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
    diverged: bool = False
    """Whether some of its seeds have diverged. The means are those of the others, so it beats
    nothing."""
    named: bool = False
    """Whether its name is shown even if others beat it."""


def front(points: Sequence[Point], cost: int, floor: float = -inf) -> list[Point]:
    """Those for which no other costs about as little and gains more, cheapest first. Of several
    with the same gain it is the cheapest, and a gain must be above `floor`.

    >>> dear, cheap, bad, near = (Point(*p) for p in (("a", (9,), 80, 0), ("b", (1,), 70, 0),
    ...     ("c", (3,), 60, 0), ("d", (8.5,), 79, 0)))
    >>> [p.name for p in front([dear, cheap, bad, near], 0)]
    ['b', 'a']
    >>> [p.name for p in front([dear, cheap, bad, near], 0, floor=75)]
    ['a']
    """
    rivals = [p for p in points if p.compared and not p.diverged and p.gain > floor]
    found: list[Point] = []
    for point in sorted(rivals, key=lambda p: p.costs[cost]):
        beaten = any(
            p.costs[cost] <= SAME * point.costs[cost] and p.gain > point.gain for p in rivals
        )
        if not beaten and (not found or point.gain > found[-1].gain):
            found.append(point)
    return found


def tradeoff_picture(
    settings: Mapping[str, Sequence[Point]],
    costs: Sequence[str],
    gain: str,
    path: str | Path,
    floor: float = -inf,
) -> Path:
    """One row of panels for each setting; methods that nothing beats are named. A gain up to
    `floor` needs no learning, so such methods beat nothing."""
    out = checked_path(path)
    figure = Figure(figsize=(5.6 * len(costs), 4.2 * len(settings)), layout="constrained")
    panels = figure.subplots(len(settings), len(costs), squeeze=False, sharey="row")
    names: list[list[Annotation]] = []
    for (title, points), row in zip(settings.items(), panels, strict=True):
        lowest = _lowest(points)
        inside = [point for point in points if point.gain >= lowest]
        for number, (axes, cost) in enumerate(zip(row, costs, strict=True)):
            names.append(_draw(axes, inside, number, floor))
            axes.set_title(title, loc="left", fontsize=10)
            axes.set_xlabel(cost)
        row[0].set_ylabel(gain)
        row[0].set_ylim(_limits(inside))
        if outside := [f"{p.name} ({p.gain:.1f})" for p in points if p.gain < lowest]:
            note = row[0].text(
                0.02, 0.02, "below: " + ",\n".join(outside), transform=row[0].transAxes,
                fontsize=8, color=GREY,
            )  # fmt: skip
            note.set_in_layout(False)
    figure.draw_without_rendering()  # now it is known where names are
    figure.set_layout_engine("none")  # and nothing else moves any more
    for of_panel in names:
        _keep_apart(of_panel)
    return save(figure, out)


def _lowest(points: Sequence[Point]) -> float:
    """Gains below this are so far from the others that showing them would squeeze those.

    >>> _lowest([Point("", (1,), gain, None) for gain in (10, 80, 82, 83, 84)])
    71.0
    """
    if len(points) < 4:
        return -inf
    low, _, high = quantiles([point.gain for point in points], method="inclusive")
    return low - FAR * max(high - low, 1.0)


def _limits(points: Sequence[Point]) -> tuple[float, float]:
    """Of the gains that are shown: all points, and of their bars as much as is usual.

    >>> _limits([Point("", (1,), gain, spread) for gain, spread in ((60, 30), (70, 2), (80, 1))])
    (56.0, 84.0)
    >>> _limits([Point("", (1,), 70, None)])
    (69.0, 71.0)
    """
    least, most = min(p.gain for p in points), max(p.gain for p in points)
    room = (0.1 * (most - least) + median(p.spread or 0 for p in points)) or 1.0
    return least - room, most + room


def _draw(axes: Axes, points: Sequence[Point], cost: int, floor: float) -> list[Annotation]:
    """The points, and the names of the best, of those for reference and of those to be found."""
    points = [point for point in points if not isnan(point.costs[cost])]
    best = front(points, cost, floor)
    plain_axes(axes)
    axes.set_xscale("log")
    axes.step(
        [p.costs[cost] for p in best], [p.gain for p in best],
        where="post", color=LINES[0], lw=1, alpha=0.5, zorder=1,
    )  # fmt: skip
    names = []
    for point in points:
        first = point in best
        colour = LINES[0] if first else GREY
        marker = "x" if point.diverged else "o" if point.compared else "s"
        face = colour if point.compared else "none"
        x = point.costs[cost]
        axes.errorbar(
            x, point.gain, point.spread, fmt=marker, color=colour, mfc=face,
            ms=5 if first else 4, lw=1, zorder=3 if first else 2,
        )  # fmt: skip
        if first or point.named or not point.compared:
            names.append(
                axes.annotate(
                    point.name, (x, point.gain), (5, 4), textcoords="offset points",
                    fontsize=8, color=colour, zorder=4, path_effects=[HALO],
                    arrowprops={"arrowstyle": "-", "lw": 0.6, "color": colour, "shrinkB": 3},
                )
            )  # fmt: skip
    plain_numbers(axes.xaxis)
    axes.margins(x=0.1)
    left, right = axes.get_xlim()
    axes.set_xlim(left, right * (right / left) ** 0.15)  # room for the last names
    return names


def _keep_apart(names: Sequence[Annotation]) -> None:
    """Puts each name beside its point, as near as it can be without covering a point or another
    name, and inside its panel if there is room."""
    if not names or not (axes := names[0].axes):
        return
    marks = axes.transData.transform([bars[0].get_xydata()[0] for bars in axes.containers])
    taken = [Bbox.from_extents(x - MARKER, y - MARKER, x + MARKER, y + MARKER) for x, y in marks]
    for name in sorted(names, key=lambda n: _box(n).y0):
        x, y = axes.transData.transform(name.xy)
        box = _box(name)
        sides = (x + 2 * MARKER, x - 2 * MARKER - box.width)
        places = [
            box.translated(left - box.x0, y + rise * box.height - box.y0)
            for rise in RISES
            for left in sides
        ]
        best = min(
            places, key=lambda place: (_overlaps(place, taken), not _holds(axes.bbox, place))
        )
        at, points = name.get_position(), 72 / name.figure.dpi
        name.set_position(
            (at[0] + points * (best.x0 - box.x0), at[1] + points * (best.y0 - box.y0))
        )
        taken.append(best)


def _overlaps(box: Bbox, others: Sequence[Bbox]) -> bool:
    return any(box.overlaps(other) for other in others)


def _holds(panel: BboxBase, box: Bbox) -> bool:
    """Whether all of a box is inside the panel."""
    return all(panel.contains(x, y) for x, y in box.corners())


def _box(name: Annotation) -> Bbox:
    """Of the words alone, without the line to the point."""
    return Text.get_window_extent(name)
