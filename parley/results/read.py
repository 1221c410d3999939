"""Reading run folders for people: what is damaged is passed over with a note, seeds are grouped.

`RunFolder.records` refuses a damaged file, since resuming must not lose a record; here a page with
a gap and a note is better than none.
"""

import json
import math
import statistics
import tomllib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from parley.algorithms import ALGORITHMS
from parley.errors import BadValue, ParleyError
from parley.experiment import HOW, Experiment
from parley.store.folder import AGENTS, CONFUSION, ENVIRONMENT, EXPERIMENT, RECORDS, SUMMARY
from parley.training.events import Record

NOT_COMPARED = {*HOW, "seed"}
"""Fields in which runs of one group may differ."""


@dataclass(frozen=True)
class RecordedRun:
    """One run as its folder tells it, finished or not."""

    path: Path
    options: dict[str, Any]
    """The fields of ``experiment.toml`` as they stand there; empty if it cannot be read."""
    experiment: Experiment | None
    """The same, checked; None where this version does not understand it."""
    environment: dict[str, Any]
    records: list[Record]
    summary: dict[str, Any] | None
    """Of a complete run."""
    agents: dict[str, Any] | None
    """Graph and holdings (``agents.json``); None for runs of older versions."""
    confusion: dict[str, Any] | None
    """Of the best and the worst agent (``confusion.json``), once the run is complete."""
    notes: list[str] = field(default_factory=list)
    """What was damaged or missing, for the page to say."""

    @property
    def seed(self) -> int:
        """0 where it is not known."""
        seed = self.options.get("seed", 0)
        return seed if isinstance(seed, int) else 0

    @property
    def name(self) -> str:
        """The algorithm's name as people write it, else the folder's."""
        return self.experiment.algorithm.label if self.experiment else self.path.name

    @property
    def last(self) -> Record:
        """The newest record; empty if there is none."""
        return self.records[-1] if self.records else {}


def is_run(path: Path) -> bool:
    """Whether the folder is that of one run."""
    return (path / EXPERIMENT).is_file() or (path / RECORDS).is_file()


def find_runs(path: Path) -> list[Path]:
    """The folder itself if it is a run, else all runs below it: of a comparison, of ``runs/``."""
    if not path.exists():
        raise BadValue("run", str(path), "the folder of a run", "there is none")
    if not path.is_dir():
        raise BadValue("run", str(path), "the folder of a run", "it is a file")
    if is_run(path):
        return [path]
    below = {p.parent for name in (EXPERIMENT, RECORDS) for p in path.rglob(name)}
    if not below:
        because = f"neither it nor a folder in it has {EXPERIMENT}"
        raise BadValue("run", str(path), "the folder of a run or of a comparison", because)
    return sorted(below)


def read_run(path: Path) -> RecordedRun:
    """Everything that the folder of a run tells; raises only if it is no such folder."""
    if not is_run(path):
        raise BadValue("run", str(path), "the folder of a run", f"it has no {EXPERIMENT}")
    notes: list[str] = []
    options = _read(path / EXPERIMENT, tomllib.loads, notes) or {}
    experiment = None
    if options:
        try:
            experiment = Experiment.of(**options)
        except ParleyError as error:
            notes.append(f"{EXPERIMENT} is not understood by this version: {error}")
    try:
        text = (path / RECORDS).read_bytes() if (path / RECORDS).exists() else b""
    except OSError as error:
        text = b""
        notes.append(f"{RECORDS} cannot be read: {error.strerror}")
    records, damaged = parse_records(text)
    if damaged:
        which = ", ".join(map(str, damaged[:5])) + (", …" if len(damaged) > 5 else "")
        lines = f"{len(damaged)} damaged line{'s' * (len(damaged) > 1)}"
        notes.append(f"{RECORDS}: {lines} passed over ({which})")
    return RecordedRun(
        path=path,
        options=options,
        experiment=experiment,
        environment=_read(path / ENVIRONMENT, json.loads, notes) or {},
        records=records,
        summary=_read(path / SUMMARY, json.loads, notes),
        agents=_read(path / AGENTS, json.loads, notes),
        confusion=_read(path / CONFUSION, json.loads, notes),
        notes=notes,
    )


def _read(
    path: Path, parse: Callable[[str], dict[str, Any]], notes: list[str]
) -> dict[str, Any] | None:
    if not path.is_file():
        return None
    try:
        found = parse(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        notes.append(f"{path.name} is damaged")
        return None
    if not isinstance(found, dict):
        notes.append(f"{path.name} is damaged")
        return None
    return found


def parse_records(text: bytes) -> tuple[list[Record], list[int]]:
    """The records of a file or of a part of it, and the numbers of the lines that are damaged.

    A last line without its newline is one that is being written: no record yet, nor damaged.
    Where an epoch is told twice, the later line counts.

    >>> parse_records(b'{"epoch": 1}\\nnonsense\\n{"epoch": 2}\\n{"epo')
    ([{'epoch': 1}, {'epoch': 2}], [2])
    """
    by_epoch: dict[float, Record] = {}
    damaged = []
    for number, line in enumerate(text.split(b"\n")[:-1], start=1):
        try:
            record = json.loads(line)
            by_epoch[float(record["epoch"])] = record
        except (ValueError, TypeError, KeyError):
            damaged.append(number)
    return [by_epoch[epoch] for epoch in sorted(by_epoch)], damaged


def value(record: Record, name: str) -> float | None:
    """A field of a record as a number, if it is one.

    >>> value({"loss": 0.5}, "loss"), value({"loss": None}, "loss"), value({}, "loss")
    (0.5, None, None)
    """
    found = record.get(name)
    good = isinstance(found, (int, float)) and not isinstance(found, bool) and math.isfinite(found)
    return float(found) if good and found is not None else None


def sent_megabytes(record: Record) -> float | None:
    """What an agent has sent so far, in MB, if the record tells."""
    models, gradients = value(record, "bytes_models"), value(record, "bytes_cross_gradients")
    return None if models is None or gradients is None else (models + gradients) / 1e6


@dataclass(frozen=True)
class Group:
    """Runs of one experiment that differ in their seed only."""

    label: str
    runs: list[RecordedRun]

    @property
    def first(self) -> RecordedRun:
        """The one with the lowest seed."""
        return self.runs[0]


def group_seeds(runs: Sequence[RecordedRun]) -> list[Group]:
    """Runs that differ in their seed only as one group, plain algorithms before involved ones.

    Groups are called by their algorithm, and where that is not enough also by the options in
    which they differ.
    """
    groups: dict[str, list[RecordedRun]] = {}
    for run in sorted(runs, key=_place):
        groups.setdefault(_key(run), []).append(run)
    members = [sorted(found, key=lambda run: run.seed) for found in groups.values()]
    names = _labels([found[0] for found in members])
    return [Group(name, found) for name, found in zip(names, members, strict=True)]


def _place(run: RecordedRun) -> int:
    names = list(ALGORITHMS)
    known = run.experiment is not None and run.experiment.algorithm.name in names
    return names.index(run.experiment.algorithm.name) if known and run.experiment else len(names)


def _key(run: RecordedRun) -> str:
    if run.experiment is None:
        return f"{run.path}"
    return run.experiment.model_dump_json(exclude=NOT_COMPARED)


def _labels(runs: Sequence[RecordedRun]) -> list[str]:
    labels = []
    flat = [_flat(run) for run in runs]
    for run, mine in zip(runs, flat, strict=True):
        others = [f for r, f in zip(runs, flat, strict=True) if r.name == run.name]
        differing = [k for k in mine if any(mine[k] != other.get(k) for other in others)]
        labels.append(" ".join([run.name, *(f"{k}={mine[k]}" for k in differing)]))
    # Experiments that are not understood may share a folder's name.
    return [
        f"{label} ({run.path})" if labels.count(label) > 1 else label
        for label, run in zip(labels, runs, strict=True)
    ]


def _flat(run: RecordedRun) -> dict[str, Any]:
    if run.experiment is None:
        return {}
    fields: dict[str, Any] = run.experiment.model_dump(exclude=NOT_COMPARED)
    inner = {name: value for name, value in fields.pop("algorithm").items() if name != "name"}
    return {**fields, **inner}


@dataclass(frozen=True)
class Curve:
    """A field over time: the mean over seeds, and one standard deviation (n - 1) to either side."""

    x: list[float]
    mean: list[float]
    low: list[float] | None
    """None where there is one seed only."""
    high: list[float] | None
    seeds: list[int]
    """How many seeds have come so far, at each point."""


def curve(
    group: Group,
    vertical: Callable[[Record], float | None],
    horizontal: Callable[[Record], float | None] | None = None,
) -> Curve | None:
    """The curve of a group, or None where no record has it.

    Seeds are averaged epoch by epoch over those that have come so far.
    """
    points: dict[float, list[tuple[float, float]]] = {}
    for run in group.runs:
        for record in run.records:
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


def field_of(name: str, factor: float = 1.0) -> Callable[[Record], float | None]:
    """Takes a field out of a record, for `curve`.

    >>> field_of("accuracy_own", 100)({"accuracy_own": 0.5})
    50.0
    """

    def take(record: Record) -> float | None:
        found = value(record, name)
        return None if found is None else factor * found

    return take


def read_all(paths: Iterable[Path]) -> list[RecordedRun]:
    """All runs at and below these folders, each once."""
    found = dict.fromkeys(p for path in paths for p in find_runs(path))
    return [read_run(path) for path in found]
