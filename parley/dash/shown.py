"""What the live page shows of some runs: the report's sections, with one line per run."""

from collections.abc import Sequence
from typing import Any

from parley.charts.chart import Axis
from parley.results.curves import EPOCHS, SENT, Against
from parley.results.read import RecordedRun
from parley.results.sections import sections
from parley.results.seeds import Group, field_of
from parley.training.record import Record

AGAINST = {
    "epoch": EPOCHS,
    "megabytes": SENT,
    "seconds": Against(Axis("seconds of training", "s"), field_of("seconds")),
}
"""What curves can be drawn against, by the name in the page's choice."""
RECORDS = 500
"""The most records of a run that are drawn, so that twelve runs can be drawn every second."""


def records_of(told: dict[str, Any]) -> list[Record]:
    """Records as `Series` tells them, thinned evenly; the last is always one of them."""
    count = len(told["x"])
    step = -(-count // RECORDS) or 1
    frames = {frame["epoch"]: frame for frame in told["frames"]}
    fields = told["fields"].items()
    made: list[Any] = []
    for row in sorted(range(count - 1, -1, -step)):
        numbers = {name: found[row] for name, found in fields if found[row] is not None}
        made.append({**numbers, **frames.get(told["x"][row], {})})
    return made


def names(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Short names that tell runs apart.

    >>> row = {"id": "a", "label": "NGC", "seed": 0}
    >>> names([row, row | {"seed": 1}]), names([row, row | {"id": "b"}])
    (['NGC seed 0', 'NGC seed 1'], ['NGC (a)', 'NGC (b)'])
    """
    several = len({row["seed"] for row in rows}) > 1
    made = [f"{row['label']} seed {row['seed']}" if several else row["label"] for row in rows]
    return [
        f"{name} ({row['id']})" if made.count(name) > 1 else name
        for name, row in zip(made, rows, strict=True)
    ]


def drawn(named: dict[str, RecordedRun], against: str) -> dict[str, str]:
    """The sections that have something to show, as HTML by their names, in their order."""
    groups = [Group(name, [run]) for name, run in named.items()]
    made = sections(groups, AGAINST.get(against, EPOCHS))
    return {one.name: one.html() for one in made if one.charts and one.name != "graph"}
