"""The description of a chart: what is shown, without a word on how."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

Colour: TypeAlias = int | str
"""A method's place among the colours of lines, or a name of the palette: ``ink``, ``faint``,
``edge``, ``node``, ``line``, ``paper``, ``class3``, ``heat16``, or ``#rrggbb``."""


@dataclass(frozen=True)
class Axis:
    """One side of a chart."""

    name: str = ""
    unit: str = ""
    log: bool = False
    whole: bool = False
    """Whether only whole numbers are marked."""
    low: float | None = None
    """Where it begins and ends; by default with what is shown."""
    high: float | None = None
    names: Sequence[str] = ()
    """Of the places 0, 1, 2, …: a side without numbers."""
    down: bool = False
    """Whether the first place is at the top, as in a table."""


@dataclass(frozen=True)
class Line:
    """A curve, or points, with a band or bars around it."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] = ()
    """The lower end of the band, for each point."""
    high: Sequence[float] = ()
    bars: str = ""
    """``y`` or ``x``: bars in this direction instead of a band."""
    colour: Colour = 0
    dash: int = 0
    """Which way to interrupt the line; 0: none."""
    mark: str = ""
    """One of `MARKS`, at every point or, with `ends`, at the last; none if empty."""
    ends: bool = False
    hollow: bool = False
    """Whether marks are outlines."""
    joined: bool = True
    """Whether a line connects the points."""
    width: float = 2.0
    """Of the line, in pixels."""
    steps: bool = False
    """Whether it keeps its height until the next point."""
    spread: str = "std"
    """What the band shows: a standard deviation to either side (`std`), or a `range`."""
    labels: Sequence[str] = ()
    """A name beside each point; empty ones are not shown."""


MARKS = "osD^vP*X<>x"
"""Circle, square, diamond, triangles, plus, star, cross, triangles, thin cross."""


@dataclass(frozen=True)
class Heat:
    """A matrix as cells: rows from top to bottom."""

    values: Sequence[Sequence[float | None]]
    """None: not known."""
    low: float = 0.0
    high: float = 1.0
    unit: str = ""
    zeros: bool = False
    """Whether a 0 is written like any other number."""


@dataclass(frozen=True)
class Spans:
    """Bars from a start to an end, such as what agents do over time: one row of places each."""

    name: str
    rows: Sequence[float]
    start: Sequence[float]
    end: Sequence[float]
    colour: Colour = 0
    height: float = 0.7
    """Of a row."""


@dataclass(frozen=True)
class Bubbles:
    """Circles whose areas are numbers."""

    x: Sequence[float]
    y: Sequence[float]
    sizes: Sequence[float]
    colour: Colour = 0


@dataclass(frozen=True)
class Edge:
    """A line between two agents, or an arrow from one to the other."""

    start: int
    end: int
    weight: float
    one_way: bool = False
    paired: bool = False
    """Whether there is also an arrow in the other direction."""
    around: bool = False
    """Whether it wraps around the border of a torus."""


@dataclass(frozen=True)
class Network:
    """Agents at given places, as circles or as rings of the classes they hold, and their edges."""

    places: Sequence[tuple[float, float]]
    edges: Sequence[Edge]
    shares: Sequence[Sequence[float]] = ()
    """How much of each class every agent holds."""
    classes: Sequence[str] = ()
    texts: Sequence[str] = ()
    """What else is to be said of each agent."""


Mark: TypeAlias = Line | Heat | Spans | Bubbles | Network


@dataclass(frozen=True)
class Chart:
    """One chart; later marks are drawn over earlier ones."""

    title: str
    marks: Sequence[Mark]
    x: Axis = field(default_factory=Axis)
    y: Axis = field(default_factory=Axis)
    link: str = ""
    """Charts with the same link share a legend, and on a page hide and show series together."""
    legend: bool = True
    note: str = ""
    """Words in the lower left corner."""
    about: str = ""
    """The chart in a sentence, for those who cannot see it."""

    @property
    def lines(self) -> list[Line]:
        """The curves, in order."""
        return [mark for mark in self.marks if isinstance(mark, Line)]

    @property
    def named(self) -> list[Line | Spans]:
        """What a legend names, each name once."""
        found = {m.name: m for m in self.marks if isinstance(m, Line | Spans) and m.name}
        return list(found.values())

    @property
    def network(self) -> Network | None:
        """The graph, if it shows one."""
        return next((mark for mark in self.marks if isinstance(mark, Network)), None)

    @property
    def heat(self) -> Heat | None:
        """The heat map, if it shows one."""
        return next((mark for mark in self.marks if isinstance(mark, Heat)), None)

    def values(self) -> dict[str, Any]:
        """The numbers of the curves as JSON, for a page that shows them when asked."""
        keys = ("name", "x", "y", "low", "high", "spread")
        series = [{key: getattr(line, key) for key in keys} for line in self.lines]
        return {"x": self.x.name, "y": self.y.name, "unit": self.y.unit, "series": series}


def short_number(number: float) -> float:
    """Rounded to six digits, which is more than a chart can show."""
    return float(f"{number:.6g}")


def in_words(value: float | None, unit: str = "") -> str:
    """A number in few characters.

    >>> [in_words(v) for v in (0.01234, 12.34, 12345.6, 0.00001234, 0, None)]
    ['0.0123', '12.3', '12,346', '1.23e-05', '0', '–']
    """
    if value is None or value != value:
        return "–"
    size = abs(value)
    if size and (size < 1e-3 or size >= 1e7):
        text = f"{value:.2e}"
    elif size >= 1000:
        text = f"{value:,.0f}"
    else:
        text = f"{value:.{4 if unit == '%' else 3}g}"
    return f"{text} {unit}" if unit else text


def about(chart: Chart) -> str:
    """A chart of curves in a sentence."""
    unit = chart.y.unit and f" {chart.y.unit}"
    ends = "; ".join(
        f"{line.name} from {line.y[0]:.4g} to {line.y[-1]:.4g}{unit}"
        for line in chart.lines
        if line.y
    )
    return f"{chart.title}, {chart.y.name} over {chart.x.name}: {ends}."
