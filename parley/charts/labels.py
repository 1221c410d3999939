"""Names beside points that cover neither points nor each other."""

from collections.abc import Sequence
from typing import NamedTuple

from parley.charts.chart import Colour
from parley.charts.shapes import Box, Path, Place, Shape, Words, boxes_of

NEAR = 8.0
"""Pixels from the middle of a point to where its name begins."""
RISES = sorted((step / 2 for step in range(-60, 60)), key=lambda rise: abs(rise - 0.75))
"""How far above its point a name may begin, in its own heights, the nearest first."""


class Label(NamedTuple):
    """A name and the point that it belongs to."""

    text: str
    place: Place
    colour: Colour


def placed(labels: Sequence[Label], points: Sequence[Box], frame: Box, size: float) -> list[Shape]:
    """The names, each as near to its point as it can be, and inside the frame if there is room; a
    line leads to those that are farther away."""
    taken = list(points)
    shapes: list[Shape] = []
    for label in sorted(labels, key=lambda label: -label.place[1]):
        x, y = label.place
        choices = [
            Words(x=x + side * NEAR, y=y - rise * size, text=label.text, size=size, halo=True,
                  anchor="start" if side > 0 else "end", colour=label.colour, of=label.text)
            for rise in RISES for side in (1, -1)
        ]  # fmt: skip
        boxes = boxes_of(choices)
        best = min(
            range(len(choices)),
            key=lambda k: (any(boxes[k].overlaps(b) for b in taken), not _holds(frame, boxes[k])),
        )
        words, box = choices[best], boxes[best]
        taken.append(box)
        if abs(words.y - y) > 1.5 * size:
            near = box.bottom if box.bottom < y else box.top
            line = ((words.x, near), (x, y + (-5 if near < y else 5)))
            shapes.append(Path(lines=[line], stroke=label.colour, width=0.8))
        shapes.append(words)
    return shapes


def _holds(frame: Box, box: Box) -> bool:
    across = frame.left <= box.left and box.right <= frame.right
    return across and frame.top <= box.top and box.bottom <= frame.bottom
