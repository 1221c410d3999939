"""Numbers to pixels, and where an axis is marked."""

import math
from collections.abc import Iterable, Sequence
from itertools import pairwise

from parley.charts.chart import Axis

SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
FLAT = 1e-9
"""A range this small, as a share of its values, is widened."""


class Scale:
    """One axis of a drawn chart: where each number is, in pixels from `start` to `end`."""

    def __init__(self, axis: Axis, values: Iterable[float], start: float, end: float) -> None:
        finite = [v for v in values if math.isfinite(v)]
        self.log = axis.log and any(v > 0 for v in finite)
        if self.log:
            finite = [v for v in finite if v > 0]
        self.axis = axis
        self.start, self.end = start, end
        room = abs(end - start)
        self.horizontal = end > start
        if axis.names:
            self.low, self.high = -0.5, len(axis.names) - 0.5
            if axis.down:
                self.start, self.end = end, start
            self.marks = every(len(axis.names), int(room / (30.0 if self.horizontal else 15.0)))
            return
        low, high = min(finite, default=0.0), max(finite, default=1.0)
        low = axis.low if axis.low is not None else low
        high = axis.high if axis.high is not None else high
        most = max(2, int(room / (62.0 if self.horizontal else 34.0)))
        if self.log:
            if high / low < 1 + FLAT:
                low, high = low / 2, high * 2
            margin = (high / low) ** 0.04
            self.low, self.high = low / margin, high * margin
            self.marks = log_marks(self.low, self.high, most)
            return
        if high - low <= FLAT * max(abs(low), abs(high)):
            low, high = (low, low + 1) if axis.whole else (low - 1, high + 1)
            low = max(low, 0.0) if min(finite, default=0.0) >= 0 else low
        if self.horizontal and not axis.whole and axis.low is None and 0 < low < 0.4 * high:
            low = 0.0  # costs begin at nothing
        step = nice_step((high - low) / most, axis.whole)
        fixed = axis.whole or (not self.horizontal and axis.low is not None)
        self.low = low if fixed else math.floor(low / step + 1e-9) * step
        self.high = high if fixed else math.ceil(high / step - 1e-9) * step
        if axis.unit == "%" and high <= 100:
            self.high = min(self.high, 100.0)
        first = math.ceil(self.low / step - 1e-9)
        last = math.floor(self.high / step + 1e-9)
        self.marks = [float(f"{k * step:.12g}") for k in range(first, last + 1)]

    def at(self, value: float) -> float:
        """The pixel of a number; NaN where it has none, as 0 on a logarithmic axis."""
        low, high = self.low, self.high
        if self.log:
            if not value > 0:
                return math.nan
            value, low, high = math.log(value), math.log(low), math.log(high)
        return self.start + (value - low) / (high - low) * (self.end - self.start)

    def text(self, mark: float) -> str:
        """What stands at a mark."""
        if self.axis.names:
            return str(self.axis.names[int(mark)])
        size = abs(mark)
        if size >= 1e6 or 0 < size < 1e-4:
            digits, power = f"{mark:.6e}".split("e")
            digits = digits.rstrip("0").rstrip(".")
            raised = "10" + str(int(power)).translate(SUPERSCRIPTS)
            return raised if digits == "1" else f"{digits}·{raised}"
        return f"{mark:,.10g}" if size >= 10_000 else f"{mark:g}"


def every(n: int, room: int) -> list[float]:
    """Round numbers below n, about as many as there is room for.

    >>> every(5, 9), every(100, 10)
    ([0, 1, 2, 3, 4], [0, 10, 20, 30, 40, 50, 60, 70, 80, 90])
    """
    step = next((s for s in (1, 2, 5, 10, 20, 50, 100) if n <= s * max(room, 1)), n)
    return list(range(0, n, step))


def nice_step(rough: float, whole: bool = False) -> float:
    """The next of 1, 2, 2.5, 5 and their tenfolds.

    >>> nice_step(0.7), nice_step(23), nice_step(0.3, whole=True)
    (1.0, 25.0, 1.0)
    """
    power = 10.0 ** math.floor(math.log10(rough))
    if whole:
        return max(next(m for m in (1, 2, 5, 10) if m * power >= rough * 0.999) * power, 1.0)
    return next(m for m in (1, 2, 2.5, 5, 10) if m * power >= rough * 0.999) * power


def log_marks(low: float, high: float, most: int) -> list[float]:
    """Powers of ten, thinned if they are many; with 2 and 5 in between if they are few.

    >>> log_marks(0.5, 300, 8), log_marks(1e-6, 1e6, 4)
    ([0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0], [1e-06, 0.001, 1.0, 1000.0, 1000000.0])
    """
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    for between in ((1, 2, 5), (1, 3), (1,)):
        marks = [m * 10.0**k for k in range(first, last + 1) for m in between]
        marks = [float(f"{m:.6g}") for m in marks if low * 0.999 <= m <= high * 1.001]
        if len(marks) <= most + 1:
            break
    if len(marks) < 2:  # less than from one such number to the next
        step = nice_step((high - low) / max(most - 1, 1))
        start = math.ceil(low / step)
        return [float(f"{k * step:.12g}") for k in range(start, int(high / step) + 1)]
    return marks[:: -(-len(marks) // (most + 1))]


def runs(points: Sequence[tuple[float, float]]) -> list[list[tuple[float, float]]]:
    """Points as pieces, cut where one is missing."""
    pieces: list[list[tuple[float, float]]] = [[]]
    for point in points:
        if all(map(math.isfinite, point)):
            pieces[-1].append(point)
        elif pieces[-1]:
            pieces.append([])
    return [piece for piece in pieces if piece]


def stairs(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Points, each at the height of the one before until its own place."""
    corners = [corner for (_, y), after in pairwise(points) for corner in ((after[0], y), after)]
    return [*points[:1], *corners]
