"""A picture of how the classes are distributed over agents."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from parley.charts.chart import Axis, Bubbles, Chart, Spans
from parley.charts.draw import sheet
from parley.charts.picture import save
from parley.errors import BadValue

Counts = npt.NDArray[np.float64]  # [N, classes]


def partition_picture(
    holdings: npt.ArrayLike, path: str | Path, class_names: Sequence[str] | None = None
) -> Path:
    """Draw the class distribution: one bubble per agent and class, its area the number of examples.

    Bars on the right show how many examples each agent holds in total.
    """
    counts = checked_counts(holdings)
    n, classes = counts.shape
    agent, label = np.nonzero(counts)
    held = counts[agent, label]
    rows = Axis("agent", names=[str(k) for k in range(n)], down=True)
    columns = Axis("class", names=names_of(class_names, classes))
    bubbles = Bubbles(label.tolist(), agent.tolist(), held.tolist())
    totals = counts.sum(axis=1).tolist()
    bars = Spans("", list(range(n)), [0.0] * n, totals)
    title = f"Class distribution; the largest bubble is {held.max(initial=0):g} examples"
    # Cells shrink as their number grows, down to a limit; then the page grows.
    across, down = (float(np.clip(1000.0 / k, 11, 38)) for k in (classes, n))
    longest = max(map(len, columns.names)) if class_names is not None else 0
    size = (max(classes * across + 80, 300), n * down + 90 + 5.5 * min(longest, 14))
    charts = [Chart("", [bubbles], columns, rows), Chart("", [bars], Axis("examples"), rows)]
    return save(sheet([charts], size, below=title), path)


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
