"""What a chart is drawn with: paths, circles and words, and the palette of their colours."""

import colorsys
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any, NamedTuple

from parley.charts.chart import Colour

Place = tuple[float, float]
HEATS = 32
"""Steps of the colour scale of heat maps."""
FONT = 12.0
"""Pixels, as all lengths."""


class Box(NamedTuple):
    """A rectangle: its left upper corner, width and height."""

    left: float
    top: float
    width: float
    height: float

    @property
    def right(self) -> float:
        """Its right side."""
        return self.left + self.width

    @property
    def bottom(self) -> float:
        """Its lower side."""
        return self.top + self.height

    def inside(self, left: float, top: float, right: float, bottom: float) -> "Box":
        """What is left of it without these margins."""
        width, height = self.width - left - right, self.height - top - bottom
        return Box(self.left + left, self.top + top, max(width, 1.0), max(height, 1.0))

    def overlaps(self, other: "Box") -> bool:
        """Whether they have a point in common."""
        across = self.left < other.right and other.left < self.right
        return across and self.top < other.bottom and other.top < self.bottom


@dataclass(frozen=True)
class Shape:
    """What all have in common."""

    of: str = ""
    """The series or agent that it belongs to, by which a page finds it."""
    tip: str = ""
    """Shown when it is pointed at."""
    clip: Box | None = None
    """What is outside is not shown."""


@dataclass(frozen=True)
class Path(Shape):
    """Lines through points, or areas within them."""

    lines: Sequence[Sequence[Place]] = ()
    stroke: Colour | None = None
    width: float = 1.0
    dash: Sequence[float] = ()
    fill: Colour | None = None
    opacity: float = 1.0


@dataclass(frozen=True)
class Circle(Shape):
    """A circle."""

    x: float = 0.0
    y: float = 0.0
    radius: float = 1.0
    fill: Colour | None = None
    stroke: Colour | None = None
    width: float = 1.0
    opacity: float = 1.0


@dataclass(frozen=True)
class Words(Shape):
    """A line of text; `y` is where it stands."""

    x: float = 0.0
    y: float = 0.0
    text: str = ""
    size: float = FONT
    anchor: str = "start"
    """What of it is at `x`: ``start``, ``middle`` or ``end``."""
    colour: Colour = "ink"
    bold: bool = False
    upright: bool = False
    """Whether it is turned to the left, and reads upwards."""
    halo: bool = False
    """Whether it has a border of paper, where it may stand on lines."""


@dataclass(frozen=True)
class Sheet:
    """A drawing of a size in pixels."""

    width: float
    height: float
    shapes: Sequence[Shape]


@cache
def palette(theme: str = "light") -> dict[str, Any]:
    """The colours of a theme."""
    file = resources.files("parley").joinpath("web", "palette.json")
    found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))[theme]
    return found


@cache
def named_colours(theme: str = "light") -> dict[str, str]:
    """Every colour that has a name, as ``#rrggbb``."""
    theme_ = palette(theme)
    found = {name: colour for name, colour in theme_.items() if isinstance(colour, str)}
    found |= {f"line{k}": colour for k, colour in enumerate(theme_["lines"])}
    found |= {f"class{k}": colour for k, colour in enumerate(theme_["classes"])}
    stops = theme_["heat"]
    for step in range(HEATS + 1):
        at = step / HEATS * (len(stops) - 1)
        below = min(int(at), len(stops) - 2)
        found[f"heat{step}"] = _between(stops[below], stops[below + 1], at - below)
    return found


def _between(one: str, other: str, share: float) -> str:
    pairs = [(int(one[i : i + 2], 16), int(other[i : i + 2], 16)) for i in (1, 3, 5)]
    return "#" + "".join(f"{round(a + (b - a) * share):02X}" for a, b in pairs)


def colour_name(colour: Colour) -> str:
    """The name of a method's colour, and any other name as it is."""
    return f"line{colour % len(palette()['lines'])}" if isinstance(colour, int) else colour


def hexadecimal(colour: Colour) -> str:
    """The colour on white paper.

    >>> hexadecimal("#123456"), hexadecimal("paper")
    ('#123456', '#FFFFFF')
    """
    name = colour_name(colour)
    return name if name.startswith("#") else named_colours()[name]


def class_colours(classes: int) -> list[str]:
    """One colour per class: up to ten that all readers can tell apart, or else a graded scale.

    >>> class_colours(2), len(set(class_colours(100)))
    (['class0', 'class1'], 100)
    """
    if classes <= len(palette()["classes"]):
        return [f"class{k}" for k in range(classes)]
    graded = []
    for k in range(classes):
        at = k / (classes - 1)
        red, green, blue = colorsys.hls_to_rgb((260 - 220 * at) / 360, 0.3 + 0.35 * at, 0.55)
        graded.append("#" + "".join(f"{round(255 * part):02X}" for part in (red, green, blue)))
    return graded


NARROW, WIDE = frozenset("fijlrtI.,:;'|!()[] ·"), frozenset("mwMW@%—…")


def text_width(text: str, size: float, bold: bool = False) -> float:
    """About how wide text is; fonts differ."""
    ems = sum(0.34 if c in NARROW else 0.95 if c in WIDE else 0.74 if c.isupper() else 0.61
              for c in text)  # fmt: skip
    return ems * size * (1.08 if bold else 1.0)


def shortened(name: str, length: int = 24) -> str:
    """A name of at most `length` characters."""
    return name if len(name) <= length else name[: length - 1] + "…"


def rectangle(box: Box) -> tuple[Place, ...]:
    """Its corners, closed."""
    corners = ((box.left, box.top), (box.right, box.top), (box.right, box.bottom))
    return (*corners, (box.left, box.bottom), (box.left, box.top))


def boxes_of(words: Iterable[Words]) -> list[Box]:
    """The room that level lines of text take."""
    found = []
    for one in words:
        width = text_width(one.text, one.size, one.bold)
        shift = {"start": 0.0, "middle": 0.5, "end": 1.0}[one.anchor] * width
        found.append(Box(one.x - shift, one.y - 0.75 * one.size, width, one.size))
    return found
