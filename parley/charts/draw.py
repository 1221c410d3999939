"""Charts as shapes: frames, axes, legends and marks, each in its place."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain, groupby

from parley.charts.axes import Scale, runs, stairs
from parley.charts.chart import (
    MARKS,
    Axis,
    Bubbles,
    Chart,
    Colour,
    Heat,
    Line,
    Spans,
    in_words,
)
from parley.charts.labels import Label, placed
from parley.charts.network import network_shapes
from parley.charts.shapes import (
    FONT,
    HEATS,
    Box,
    Circle,
    Path,
    Place,
    Shape,
    Sheet,
    Words,
    rectangle,
    shortened,
    text_width,
)

DASHES: tuple[tuple[float, ...], ...] = ((), (7, 4), (2, 3), (9, 3, 2, 3))
SMALL = 10.0
"""Pixels of the letters at axes and in keys."""
WRITTEN = 150
"""Up to so many cells of a heat map have their number in them."""
POINTED = 1500
"""Up to so many say it when they are pointed at."""
LONGEST = {True: 14, False: 30}
"""Characters of a name at a horizontal axis, where it may be turned, and at a vertical one."""


@dataclass(frozen=True)
class Drawn:
    """A chart in its place."""

    shapes: list[Shape]
    frame: Box
    x: Scale
    y: Scale


def draw(chart: Chart, box: Box, small: bool = False) -> Drawn:
    """The chart within a box, without title and legend; a `small` one without names of axes."""
    network = chart.network
    if network:
        blank = Scale(Axis(), (), box.left, box.right)
        return Drawn(network_shapes(network, box), box, blank, blank)
    axes = [replace(a, name="") for a in (chart.x, chart.y)] if small else [chart.x, chart.y]
    across, up = _extents(chart)
    y = Scale(axes[1], up, box.bottom - 40, box.top)
    labels = [text_width(_name(y, mark), SMALL) for mark in y.marks]
    key = 46.0 if chart.heat and _cells(chart.heat) > WRITTEN else 0.0
    left = max(labels, default=0) + 7 + (SMALL * 1.7 if axes[1].name else 0)
    x = Scale(axes[0], across, box.left + left, box.right - 6 - key)
    width = (box.width - left - 6) / max(len(axes[0].names), 1)
    names = [_name(x, mark) for mark in x.marks]
    spaced = width * (x.marks[1] - x.marks[0] if len(x.marks) > 1 else 1)
    turned = bool(axes[0].names) and max(text_width(n, SMALL) for n in names) > 0.95 * spaced
    bottom = max(text_width(n, SMALL) for n in names) + 8 if turned else SMALL * 1.5 + 2
    bottom += SMALL * 1.6 if axes[0].name else 0
    last = text_width(names[-1], SMALL) / 2 if names and not axes[0].names else 0
    frame = box.inside(left, 5, max(6, last) + key, bottom)
    x, y = (Scale(axes[0], across, frame.left, frame.right),
            Scale(axes[1], up, frame.bottom, frame.top))  # fmt: skip
    shapes = _axes(frame, box, x, y, turned)
    drawn: list[Label] = []
    taken: list[Box] = []
    for mark in chart.marks:
        match mark:
            case Line():
                shapes += _line(mark, x, y, frame, drawn, taken)
            case Heat():
                shapes += _heat(mark, chart, x, y, frame)
            case Spans():
                shapes += _spans(mark, x, y, frame)
            case Bubbles():
                shapes += _bubbles(mark, x, y)
    shapes += placed(drawn, taken, frame, SMALL)
    if chart.note:
        lines = chart.note.split("\n")
        for number, text in enumerate(lines):
            foot = frame.bottom - 6 - 1.25 * SMALL * (len(lines) - 1 - number)
            shapes.append(Words(x=frame.left + 6, y=foot, text=text, size=SMALL, colour="edge"))
    return Drawn(shapes, frame, x, y)


def _cells(heat: Heat) -> int:
    return sum(map(len, heat.values))


def _name(scale: Scale, mark: float) -> str:
    return shortened(scale.text(mark), LONGEST[scale.horizontal])


def _extents(chart: Chart) -> tuple[list[float], list[float]]:
    """All numbers that the axes have to show."""
    across: list[float] = []
    up: list[float] = []
    for mark in chart.marks:
        match mark:
            case Line():
                across += mark.x
                up += mark.y
                ends = [*mark.low, *mark.high]
                (across if mark.bars == "x" else up).extend(ends)
            case Spans():
                across += [*mark.start, *mark.end]
                up += mark.rows
            case Bubbles():
                across += mark.x
                up += mark.y
    return across, up


def _axes(frame: Box, box: Box, x: Scale, y: Scale, turned: bool) -> list[Shape]:
    """The grid, numbers and names of both axes."""
    named = bool(x.axis.names) and bool(y.axis.names)
    grid = [((frame.left, at), (frame.right, at)) for at in map(y.at, y.marks)]
    if x.log or (not x.axis.names and not y.axis.names):
        grid += [((at, frame.top), (at, frame.bottom)) for at in map(x.at, x.marks)]
    shapes: list[Shape] = [] if named else [Path(lines=grid, stroke="line", width=0.8)]
    if not named:
        foot = ((frame.left, frame.bottom), (frame.right, frame.bottom))
        shapes.append(Path(lines=[foot], stroke="edge", width=1))
    for mark in y.marks:
        at = y.at(mark) + 0.35 * SMALL
        shapes.append(Words(x=frame.left - 6, y=at, text=_name(y, mark), size=SMALL,
                            anchor="end", colour="faint"))  # fmt: skip
    end = -math.inf
    for mark in x.marks:
        at, text = x.at(mark), _name(x, mark)
        half = text_width(text, SMALL) / 2
        if turned:
            shapes.append(Words(x=at + 0.35 * SMALL, y=frame.bottom + 6, text=text, size=SMALL,
                                anchor="end", colour="faint", upright=True))  # fmt: skip
        elif at - half > end:
            shapes.append(Words(x=at, y=frame.bottom + 1.4 * SMALL, text=text, size=SMALL,
                                anchor="middle", colour="faint"))  # fmt: skip
            end = at + half + 3
    if x.axis.name:
        middle = frame.left + frame.width / 2
        shapes.append(Words(x=middle, y=box.bottom - 3, text=x.axis.name, size=SMALL + 1,
                            anchor="middle", colour="faint"))  # fmt: skip
    if y.axis.name:
        middle = frame.top + frame.height / 2
        shapes.append(Words(x=box.left + SMALL, y=middle, text=y.axis.name, size=SMALL + 1,
                            anchor="middle", colour="faint", upright=True))  # fmt: skip
    return shapes


def _line(
    line: Line, x: Scale, y: Scale, frame: Box, labels: list[Label], taken: list[Box]
) -> list[Shape]:
    shapes: list[Shape] = []
    points = [(x.at(a), y.at(b)) for a, b in zip(line.x, line.y, strict=True)]
    whole = frame.inside(-1, -1, -1, -1)
    if line.bars:
        bars = _bars(line, x, y)
        shapes.append(Path(lines=bars, stroke=line.colour, width=1.2, of=line.name, clip=whole))
    elif line.low and len(points) > 1:
        low, high = (
            [(p[0], y.at(v)) for p, v in zip(points, ends, strict=True)]
            for ends in (line.low, line.high)
        )
        # On a logarithmic axis what is below its end goes down to there.
        low = [(a, b if math.isfinite(b) else y.start) for a, b in low]
        area = [p for p in (*low, *reversed(high)) if all(map(math.isfinite, p))]
        if len(area) > 2:
            shapes.append(Path(lines=[[*area, area[0]]], fill=line.colour, opacity=0.16,
                               of=line.name, clip=whole))  # fmt: skip
    if line.joined and len(points) > 1:
        pieces = [stairs(piece) if line.steps else piece for piece in runs(points)]
        pieces = [piece for piece in pieces if len(piece) > 1]
        shapes.append(Path(lines=pieces, stroke=line.colour, width=line.width, of=line.name,
                           dash=DASHES[line.dash % len(DASHES)], clip=whole))  # fmt: skip
    mark = line.mark or ("o" if len(points) == 1 else "")
    for number, place in enumerate(points):
        if not mark or not all(map(math.isfinite, place)):
            continue
        if line.ends and number + 1 < len(points):
            continue
        taken.append(Box(place[0] - 4, place[1] - 4, 8, 8))
        text = line.labels[number] if line.labels else ""
        tip = f"{text or line.name}\n{x.axis.name}: {in_words(line.x[number], x.axis.unit)}\n"
        tip += f"{y.axis.name}: {in_words(line.y[number], y.axis.unit)}"
        shapes.append(marker(mark, place, line.colour, line.hollow, line.name, tip))
        if text:
            labels.append(Label(text, place, line.colour))
    return shapes


def _bars(line: Line, x: Scale, y: Scale) -> list[list[Place]]:
    if line.bars == "x":
        return [[(x.at(low), y.at(b)), (x.at(high), y.at(b))]
                for b, low, high in zip(line.y, line.low, line.high, strict=True)]  # fmt: skip
    return [[(x.at(a), y.at(low)), (x.at(a), y.at(high))]
            for a, low, high in zip(line.x, line.low, line.high, strict=True)]  # fmt: skip


OUTLINES: dict[str, tuple[Place, ...]] = {
    "s": ((-3, -3), (3, -3), (3, 3), (-3, 3)),
    "D": ((-4, 0), (0, -4), (4, 0), (0, 4)),
    "^": ((-4, 3), (0, -4), (4, 3)),
    "v": ((-4, -3), (0, 4), (4, -3)),
    "<": ((3, -4), (-4, 0), (3, 4)),
    ">": ((-3, -4), (4, 0), (-3, 4)),
    "*": tuple((5 * (1, 0.45)[k % 2] * math.sin(math.pi * k / 5),
                -5 * (1, 0.45)[k % 2] * math.cos(math.pi * k / 5)) for k in range(10)),
    "P": ((-1.5, -4), (1.5, -4), (1.5, -1.5), (4, -1.5), (4, 1.5), (1.5, 1.5),
          (1.5, 4), (-1.5, 4), (-1.5, 1.5), (-4, 1.5), (-4, -1.5), (-1.5, -1.5)),
}  # fmt: skip
OUTLINES["X"] = tuple(((a - b) * 0.7, (a + b) * 0.7) for a, b in OUTLINES["P"])


def marker(
    mark: str, place: Place, colour: Colour, hollow: bool = False, of: str = "", tip: str = ""
) -> Shape:
    """One of `MARKS` at a place."""
    assert mark in MARKS, mark
    x, y = place
    fill, stroke = ("paper", colour) if hollow else (colour, None)
    if mark == "o":
        return Circle(x=x, y=y, radius=3.5, fill=fill, stroke=stroke, width=1.4, of=of, tip=tip)
    if mark == "x":
        cross = [[(x - 3, y - 3), (x + 3, y + 3)], [(x - 3, y + 3), (x + 3, y - 3)]]
        return Path(lines=cross, stroke=colour, width=1.4, of=of, tip=tip)
    corners = [(x + a, y + b) for a, b in OUTLINES[mark]]
    return Path(lines=[[*corners, corners[0]]], fill=fill, stroke=stroke, width=1.4, of=of, tip=tip)


def _heat(heat: Heat, chart: Chart, x: Scale, y: Scale, frame: Box) -> list[Shape]:
    shapes: list[Shape] = []
    wide, high = (frame.width / len(x.axis.names), frame.height / len(y.axis.names))
    cells = _cells(heat)
    gap = 0.6 if cells <= WRITTEN else -0.2  # else lines of paper would shine through
    span = (heat.high - heat.low) or 1.0
    for row, values in enumerate(heat.values):
        top, column = y.at(row) - high / 2, 0
        steps = [
            None if v is None else round(HEATS * min(max((v - heat.low) / span, 0), 1))
            for v in values
        ]
        # Where nothing points at single cells, neighbours of one colour are one rectangle.
        for (_, step), members in groupby(
            enumerate(steps), lambda at: (at[0] if cells <= POINTED else -1, at[1])
        ):
            count = len(list(members))
            left, value = x.at(column) - wide / 2, values[column]
            column += count
            if step is None:
                continue
            box = Box(left, top, wide * count, high).inside(gap, gap, gap, gap)
            names = str(y.axis.names[row]), str(x.axis.names[column - 1])
            tip = f"{y.axis.name} {names[0]}, {x.axis.name} {names[1]}: "
            tip += in_words(value, heat.unit)
            shapes.append(
                Path(lines=[rectangle(box)], fill=f"heat{step}", tip=tip * (cells <= POINTED))
            )
            if cells <= WRITTEN and (value or heat.zeros):
                shapes.append(
                    Words(x=left + wide / 2, y=top + high / 2 + 3, text=in_words(value), size=9,
                          anchor="middle", colour="paper" if step > 0.45 * HEATS else "ink")
                )  # fmt: skip
    return shapes if cells <= WRITTEN else [*shapes, *_ramp(heat, frame)]


def _ramp(heat: Heat, frame: Box) -> list[Shape]:
    """What the colours mean."""
    tall = min(frame.height, 160.0) / (HEATS + 1)
    left = frame.right + 10
    shapes: list[Shape] = [
        Path(lines=[rectangle(Box(left, frame.top + tall * k, 9, tall + 0.5))],
             fill=f"heat{HEATS - k}")
        for k in range(HEATS + 1)
    ]  # fmt: skip
    for value, down in ((heat.high, 0.8 * SMALL), (heat.low, tall * (HEATS + 1))):
        shapes.append(Words(x=left + 12, y=frame.top + down, text=in_words(value), size=SMALL - 1,
                            colour="faint"))  # fmt: skip
    return shapes


def _spans(spans: Spans, x: Scale, y: Scale, frame: Box) -> list[Shape]:
    high = spans.height * abs(y.at(1) - y.at(0))
    shapes: list[Shape] = []
    for row, start, end in zip(spans.rows, spans.start, spans.end, strict=True):
        left, right = sorted((x.at(start), x.at(end)))
        box = Box(left, y.at(row) - high / 2, max(right - left, 0.5), high)
        tip = f"{spans.name}\n{y.text(row)}: " if spans.name else f"{y.text(row)}: "
        tip += in_words(end - start, x.axis.unit)
        shapes.append(Path(lines=[rectangle(box)], fill=spans.colour, of=spans.name, tip=tip,
                           clip=frame))  # fmt: skip
    return shapes


def _bubbles(bubbles: Bubbles, x: Scale, y: Scale) -> list[Shape]:
    cell = min(abs(x.at(1) - x.at(0)), abs(y.at(1) - y.at(0)))
    most = max(bubbles.sizes, default=1.0)
    return [
        Circle(x=x.at(a), y=y.at(b), radius=max(0.46 * cell * math.sqrt(size / most), 0.5),
               fill=bubbles.colour, tip=in_words(size))
        for a, b, size in zip(bubbles.x, bubbles.y, bubbles.sizes, strict=True)
    ]  # fmt: skip


def legend(
    named: Sequence[Line | Spans], left: float, top: float, width: float
) -> tuple[list[Shape], float]:
    """Names beside their colours, in rows, and how high they are together."""
    shapes: list[Shape] = []
    across, down = 0.0, 0.0
    for one in named:
        need = 26 + text_width(one.name, SMALL + 1) + 12
        if across and across + need > width:
            across, down = 0.0, down + 16
        x, y = left + across, top + down + 8
        if isinstance(one, Spans) or (not one.joined and not one.mark):
            shapes.append(Path(lines=[rectangle(Box(x + 4, y - 5, 12, 10))], fill=one.colour))
        else:
            if one.joined:
                shapes.append(Path(lines=[[(x, y), (x + 20, y)]], stroke=one.colour, width=2,
                                   dash=DASHES[one.dash % len(DASHES)]))  # fmt: skip
            if one.mark:
                shapes.append(marker(one.mark, (x + 10, y), one.colour, one.hollow))
        shapes.append(Words(x=x + 25, y=y + 4, text=one.name, size=SMALL + 1))
        across += need
    return shapes, (down + 20 if named else 0.0)


def single(chart: Chart, width: float, height: float, small: bool = False) -> Sheet:
    """One chart alone, without title and legend: a page has them beside it."""
    return Sheet(width, height, draw(chart, Box(0, 0, width, height), small).shapes)


def sheet(
    rows: Sequence[Sequence[Chart | None]],
    size: tuple[float, float],
    heading: str = "",
    below: str = "",
    small: bool = False,
) -> Sheet:
    """Charts in a grid, each of this size, with one legend for those that share a `link`."""
    width = size[0] * max(map(len, rows)) + 16
    charts = [chart for chart in chain(*rows) if chart]
    shapes: list[Shape] = []
    top = 10.0
    for text, font, colour in ((heading, FONT + 4, "ink"), (below, SMALL + 1, "faint")):
        for line in text.split("\n") if text else ():
            shapes.append(Words(x=10, y=top + font, text=line, size=font, colour=colour,
                                bold=colour == "ink"))  # fmt: skip
            top += 1.6 * font
    shared: dict[str, Line | Spans] = {}
    for one in charts:
        for mark in one.named if one.link and one.legend else ():
            shared.setdefault(mark.name, mark)
    if len(shared) > 1:
        drawn, high = legend(list(shared.values()), 10, top, width - 20)
        shapes += drawn
        top += high
    for number, row in enumerate(rows):
        for place, chart in enumerate(row):
            if chart:
                box = Box(8 + size[0] * place, top + size[1] * number, *size)
                shapes += _panel(chart, box.inside(4, 4, 8, 8), small)
    return Sheet(width, top + size[1] * len(rows) + 4, shapes)


def _panel(chart: Chart, box: Box, small: bool) -> list[Shape]:
    """A chart with its title, and its legend unless charts share one."""
    shapes: list[Shape] = []
    if chart.title:
        font = SMALL if small else FONT + 1
        shapes.append(Words(x=box.left, y=box.top + font, text=chart.title, size=font))
        box = box.inside(0, 1.55 * font, 0, 0)
    if len(chart.named) > 1 and chart.legend and not chart.link:
        drawn, high = legend(chart.named, box.left, box.top, box.width)
        shapes += drawn
        box = box.inside(0, high, 0, 0)
    return [*shapes, *draw(chart, box, small).shapes]
