"""Seeds of one experiment as one group, and curves: means over seeds, with their spread.

Nothing here needs torch, since the live page uses it too.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING

from parley.results.read import RecordedRun
from parley.training.record import Record, value

if TYPE_CHECKING:
    from parley.experiment import Experiment

METHODS = ("D-PSGD", "NGC α=0", "CGA", "NGC", "CompCGA", "CompNGC")
"""The methods of the NGC paper, which have the same colours and order in every picture."""


def slots(names: Iterable[str]) -> dict[str, int]:
    """Places among the colours: the paper's methods have their own, others the next that are free.

    >>> slots(["NGC", "QGM", "D-PSGD", "BEER"])
    {'NGC': 3, 'QGM': 1, 'D-PSGD': 0, 'BEER': 2}
    """
    names = list(names)
    own = {name: METHODS.index(name) for name in names if name in METHODS}
    free = (slot for slot in count() if slot not in own.values())
    return {name: own[name] if name in own else next(free) for name in names}


Take = Callable[[Record], float | None]
"""Extracts a number from a record, if it is there."""


@dataclass(frozen=True)
class Group:
    """Runs of one experiment that differ only in their seed."""

    label: str
    runs: Sequence[RecordedRun]
    experiment: Experiment | None = None
    """Of the first run; None if this version does not understand it."""
    note: str = ""
    """The reason, if it does not."""

    @property
    def first(self) -> RecordedRun:
        """The one with the lowest seed."""
        return self.runs[0]

    @property
    def seeds(self) -> list[list[Record]]:
        """The records of each run."""
        return [run.records for run in self.runs]


@dataclass(frozen=True)
class Curve:
    """A field over time: the mean over seeds, and one standard deviation (n - 1) to either side."""

    x: list[float]
    mean: list[float]
    low: list[float] | None
    """None if there is only one seed."""
    high: list[float] | None
    seeds: list[int]
    """How many seeds reached each point."""


def curve(
    seeds: Iterable[Sequence[Record]], vertical: Take, horizontal: Take | None = None
) -> Curve | None:
    """The mean over several runs' records, or None if no record has the field.

    Each epoch is averaged over the seeds that reached it.
    """
    points: dict[float, list[tuple[float, float]]] = {}
    for records in seeds:
        for record in records:
            epoch = float(record["epoch"])
            x, y = epoch if horizontal is None else horizontal(record), vertical(record)
            if x is not None and y is not None:
                points.setdefault(epoch, []).append((x, y))
    if not points:
        return None
    at = [points[epoch] for epoch in sorted(points)]
    mean = [statistics.fmean(y for _, y in found) for found in at]
    spread = [statistics.stdev(y for _, y in found) if len(found) > 1 else 0.0 for found in at]
    several = any(len(found) > 1 for found in at)
    return Curve(
        x=[statistics.fmean(x for x, _ in found) for found in at],
        mean=mean,
        low=[m - s for m, s in zip(mean, spread, strict=True)] if several else None,
        high=[m + s for m, s in zip(mean, spread, strict=True)] if several else None,
        seeds=[len(found) for found in at],
    )


def field_of(name: str, factor: float = 1.0) -> Take:
    """Extracts a field from a record, for `curve`.

    >>> field_of("accuracy_own", 100)({"accuracy_own": 0.5})
    50.0
    """

    def take(record: Record) -> float | None:
        found = value(record, name)
        return None if found is None else factor * found

    return take
