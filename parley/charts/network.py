"""Graphs as shapes: edges as wide as their weights, agents as rings of the classes they hold."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from parley.charts.axes import every
from parley.charts.chart import Colour, Edge, Network, in_words
from parley.charts.shapes import (
    Box,
    Circle,
    Path,
    Place,
    Shape,
    Words,
    class_colours,
    rectangle,
    shortened,
    text_width,
)

LISTED = 20
"""With more classes, a colour scale replaces a list that would be longer than the drawing."""
LEGIBLE = 6.0
"""In circles whose numbers would be smaller than this, in pixels, there are none."""
POINTED = 600
"""Up to so many edges say their weight when they are pointed at."""
KEY = 10.0
"""Pixels of the letters in the key."""


def network_shapes(network: Network, box: Box) -> list[Shape]:
    """The graph within a box, with a key of the classes beside it."""
    key = _key(network.classes, box) if network.shares else []
    places, radius = fitted(network, network_box(network, box))
    shapes = _edges(network.edges, places, radius)
    colours = class_colours(len(network.classes))
    for agent, (x, y) in enumerate(places):
        text = network.texts[agent] if network.texts else ""
        tip, of = f"agent {agent}\n{text}".rstrip(), f"agent {agent}"
        if network.shares:
            shapes.append(Circle(x=x, y=y, radius=radius, fill="node", stroke="ink", width=1.2,
                                 tip=tip))  # fmt: skip
            shapes += _sectors((x, y), radius, network.shares[agent], colours, tip)
            shapes.append(Circle(x=x, y=y, radius=0.55 * radius, fill="paper", of=of, tip=tip))
        else:
            shapes.append(Circle(x=x, y=y, radius=radius, fill="node", stroke="ink", width=1,
                                 of=of, tip=tip))  # fmt: skip
        size = min(13.0, radius * (0.75 if network.shares else 0.95))
        if size >= LEGIBLE:
            shapes.append(Words(x=x, y=y + 0.35 * size, text=str(agent), size=size,
                                anchor="middle", of=of))  # fmt: skip
    return [*shapes, *key]


def network_box(network: Network, box: Box) -> Box:
    """What the key leaves of a box."""
    return box.inside(0, 0, key_width(network.classes) if network.shares else 0, 0)


def fitted(network: Network, box: Box) -> tuple[list[Place], float]:
    """Where agents are within a box, and how large."""
    places: Any = np.array(network.places, dtype=float).reshape(-1, 2)
    low, high = places.min(axis=0), places.max(axis=0)
    apart = nearest(places)
    room = 0.31 * apart
    margin = (1.9 if any(edge.around for edge in network.edges) else 1.25) * room
    span: Any = high - low + 2 * margin
    scale: float = min(box.width / span[0], box.height / span[1], 90.0 / apart)
    middle = (low + high) / 2
    centre = np.array([box.left + box.width / 2, box.top + box.height / 2])
    found = (places - middle) * (scale, -scale) + centre
    return [(float(x), float(y)) for x, y in found], min(room * scale, 26.0)


def nearest(places: Any) -> float:
    """The smallest distance between two agents."""
    from scipy.spatial import KDTree

    if len(places) < 2:
        return 1.0
    distances: Any = KDTree(places).query(places, k=2)[0]
    return float(distances[:, 1].min())


def _edges(edges: Sequence[Edge], places: Sequence[Place], radius: float) -> list[Shape]:
    top = max((abs(edge.weight) for edge in edges), default=1.0) or 1.0
    # At full width, many edges would merge into a blob.
    messages = sum(1 if edge.one_way else 2 for edge in edges)
    widest = 4.2 * min(1.0, max(0.15, 6 * len(places) / max(messages, 1)))
    plain: dict[float, list[Sequence[Place]]] = {}
    shapes: list[Shape] = []
    for edge in edges:
        width = round(widest * max(0.15, abs(edge.weight) / top), 2)
        start, end = places[edge.start], places[edge.end]
        tip = f"{edge.start} {'→' if edge.one_way else '–'} {edge.end}\n"
        tip += f"weight {in_words(edge.weight)}"
        if edge.one_way:
            shapes += _arrow(start, end, width, radius, 0.14 if edge.paired else 0.0, tip)
            continue
        lines: list[Sequence[Place]] = [(start, end)]
        if edge.around:
            # A stub at each end, since a full line would hide the agents in between.
            across, up = end[0] - start[0], end[1] - start[1]
            step = 2 * radius / max(abs(across), abs(up))
            across, up = step * across, step * up
            lines = [(start, (start[0] - across, start[1] - up)),
                     (end, (end[0] + across, end[1] + up))]  # fmt: skip
        if len(edges) > POINTED:
            plain.setdefault(width, []).extend(lines)
        else:
            shapes.append(Path(lines=lines, stroke="edge", width=width, tip=tip))
    return [*(Path(lines=lines, stroke="edge", width=w) for w, lines in plain.items()), *shapes]


def _arrow(
    start: Place, end: Place, width: float, radius: float, bend: float, tip: str
) -> list[Shape]:
    across, up = end[0] - start[0], end[1] - start[1]
    length = math.hypot(across, up) or 1.0
    middle = ((start[0] + end[0]) / 2 - bend * up, (start[1] + end[1]) / 2 + bend * across)
    head = 6 + 1.2 * width
    first, last = radius / length, 1 - (radius + head) / length
    curve = [_bent(start, middle, end, first + (last - first) * k / 12) for k in range(13)]
    tail, point = curve[-1], _bent(start, middle, end, 1 - radius / length)
    away = math.hypot(point[0] - tail[0], point[1] - tail[1]) or 1.0
    side = (0.5 * head * (tail[1] - point[1]) / away, 0.5 * head * (point[0] - tail[0]) / away)
    corners = [
        point,
        (tail[0] + side[0], tail[1] + side[1]),
        (tail[0] - side[0], tail[1] - side[1]),
    ]
    return [
        Path(lines=[curve], stroke="edge", width=width, tip=tip),
        Path(lines=[[*corners, corners[0]]], fill="edge", of="arrow", tip=tip),
    ]


def _bent(start: Place, middle: Place, end: Place, at: float) -> Place:
    one, two, three = (1 - at) ** 2, 2 * at * (1 - at), at**2
    return (
        one * start[0] + two * middle[0] + three * end[0],
        one * start[1] + two * middle[1] + three * end[1],
    )


def _sectors(
    centre: Place, radius: float, shares: Sequence[float], colours: Sequence[Colour], tip: str
) -> list[Shape]:
    """The classes that an agent holds, clockwise from the top."""
    total = sum(shares) or 1.0
    start = 0.0
    shapes: list[Shape] = []
    for share, colour in zip(shares, colours, strict=True):
        if share <= 0:
            continue
        end = start + share / total
        steps = max(2, math.ceil(48 * (end - start)))
        turns = [start + (end - start) * k / steps for k in range(steps + 1)]
        arc = [
            (centre[0] + radius * math.sin(2 * math.pi * t),
             centre[1] - radius * math.cos(2 * math.pi * t)) for t in turns
        ]  # fmt: skip
        outline = arc if end - start > 0.9999 else [centre, *arc, centre]
        shapes.append(Path(lines=[outline], fill=colour, of="share", tip=tip))
        start = end
    return shapes


def key_width(classes: Sequence[str]) -> float:
    """The room that the key takes."""
    if len(classes) > LISTED:
        return 60.0
    return 30 + max((text_width(shortened(name), KEY) for name in classes), default=0.0)


def _key(classes: Sequence[str], box: Box) -> list[Shape]:
    """What the colours mean: a list, or a scale if there are too many classes to list."""
    colours = class_colours(len(classes))
    left = box.right - key_width(classes) + 12
    middle = box.top + box.height / 2
    step = 15.0 if len(classes) <= LISTED else min(0.7 * box.height, 220.0) / len(classes)
    top = middle - step * len(classes) / 2
    shapes: list[Shape] = [
        Words(x=left, y=top - 8, text="class", size=KEY, colour="faint", bold=True)
    ]
    listed = len(classes) <= LISTED
    named = set(every(len(classes), LISTED if listed else 8))
    for number, (name, colour) in enumerate(zip(classes, colours, strict=True)):
        y = top + step * number
        high = 10.0 if listed else step + 0.5
        shapes.append(Path(lines=[rectangle(Box(left, y, 10, high))], fill=colour))
        if number in named:
            shapes.append(Words(x=left + 15, y=y + 0.9 * min(high, KEY), size=KEY,
                                text=shortened(name, 24 if listed else 8)))  # fmt: skip
    return shapes
