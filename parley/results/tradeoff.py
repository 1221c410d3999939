"""What methods cost and what they achieve: one point each, and which ones nothing beats."""

from collections.abc import Mapping, Sequence
from math import inf, isnan
from pathlib import Path
from statistics import median, quantiles
from typing import NamedTuple

from parley.charts.chart import Axis, Chart, Colour, Line
from parley.charts.draw import sheet
from parley.charts.picture import save

SAME = 1.1
"""Costs that differ by less than this factor count as equal."""

FAR = 3.0
"""A gain this many interquartile ranges below the lower quartile is told in words instead."""


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
    rows = []
    for title, points in settings.items():
        lowest = _lowest(points)
        inside = [point for point in points if point.gain >= lowest]
        low, high = _limits(inside)
        outside = [f"{p.name} ({p.gain:.1f})" for p in points if p.gain < lowest]
        note = "below: " + ",\n".join(outside) if outside else ""
        rows.append(
            [
                Chart(title, _marks(inside, number, floor), Axis(cost, log=True),
                      Axis("" if number else gain, low=low, high=high), legend=False,
                      note="" if number else note)
                for number, cost in enumerate(costs)
            ]
        )  # fmt: skip
    return save(sheet(rows, (540, 405)), path)


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


def _marks(points: Sequence[Point], cost: int, floor: float) -> list[Line]:
    """The points, and the names of the best, of those for reference and of those to be found."""
    points = [point for point in points if not isnan(point.costs[cost])]
    best = front(points, cost, floor)
    line = Line("", [p.costs[cost] for p in best], [p.gain for p in best], steps=True, width=1)
    marks = [line] if best else []
    for point in sorted(points, key=lambda point: point in best):
        first = point in best
        colour: Colour = 0 if first else "edge"
        told = first or point.named or not point.compared
        mark = "x" if point.diverged else "o" if point.compared else "s"
        spread = point.spread or 0.0
        marks.append(
            Line(point.name, [point.costs[cost]], [point.gain], [point.gain - spread],
                 [point.gain + spread], bars="y", colour=colour, mark=mark,
                 hollow=not point.compared, joined=False, labels=[point.name if told else ""])
        )  # fmt: skip
    return marks
