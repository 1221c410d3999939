"""Finding run folders and reading them for display: damaged parts are skipped, with a note.

`RunFolder.records` refuses a damaged file, since resuming must not lose a record; here a page with
a gap and a note is better than none. Nothing here needs torch, since the dashboard uses it too.
"""

import logging
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from parley.errors import BadValue
from parley.files import Unreadable, is_sealed, lines_of, parse_json, parse_toml, read_text
from parley.store.folder import (
    AGENTS,
    CONFUSION,
    ENVIRONMENT,
    EXPERIMENT,
    RECORDS,
    SUMMARY,
    UNVERIFIED,
)
from parley.training.record import Record, latest_by_epoch, parse_lines

log = logging.getLogger(__name__)

DEPTH = 8
"""How many levels of folders below the given one are searched for runs."""
MOST_RECORDS = 256 << 20
"""Bytes of a run's records that are read."""


@dataclass(frozen=True)
class RecordedRun:
    """One run as read from its folder, finished or not."""

    path: Path
    options: dict[str, Any]
    """The fields of ``experiment.toml`` as written; empty if it cannot be read."""
    environment: dict[str, Any] = field(default_factory=dict)
    records: list[Record] = field(default_factory=list)
    summary: dict[str, Any] | None = None
    """Of a complete run."""
    agents: dict[str, Any] | None = None
    """Graph and holdings (``agents.json``); None for runs of older versions."""
    confusion: dict[str, Any] | None = None
    """Of the best and the worst agent (``confusion.json``), once the run is complete."""
    notes: list[str] = field(default_factory=list)
    """What was damaged or missing, to show on the page."""
    verified: bool = True
    """Whether the records have checksums."""

    @property
    def seed(self) -> int:
        """The seed; 0 if unknown."""
        seed = self.options.get("seed", 0)
        return seed if isinstance(seed, int) else 0

    @property
    def last(self) -> Record | dict[str, Any]:
        """The newest record; empty if there is none."""
        return self.records[-1] if self.records else {}


def label(options: dict[str, Any], *files: dict[str, Any] | None) -> str:
    """The algorithm's label from one of the run's files, or else the algorithm's name.

    >>> label({"algorithm": {"name": "ngc"}}, {}), label({}, None, {"label": "NGC"}), label({})
    ('ngc', 'NGC', '')
    """
    for file in files:
        if file and isinstance(written := file.get("label"), str):
            return written
    algorithm = options.get("algorithm", "")
    return str(algorithm.get("name", "") if isinstance(algorithm, dict) else algorithm)


def is_run(path: Path) -> bool:
    """Whether this is the folder of a run."""
    # Whatever else is there under these names: a damaged run is shown with a note.
    return os.path.lexists(path / EXPERIMENT) or os.path.lexists(path / RECORDS)


def walk(root: Path, depth: int = DEPTH) -> Iterator[Path | None]:
    """Every run at or below a folder, in order, and None for every other folder on the way.

    Hidden folders and symbolic links are skipped, and run folders are not searched for more runs.
    """
    below = [(root, 0)]
    while below:
        path, level = below.pop()
        if is_run(path):
            yield path
            continue
        yield None
        if level == depth:
            continue
        with suppress(OSError), os.scandir(path) as entries:
            inner = [
                entry.name
                for entry in entries
                if not entry.name.startswith((".", "__pycache__", "node_modules"))
                and entry.is_dir(follow_symlinks=False)
            ]
            below += [(path / name, level + 1) for name in sorted(inner, reverse=True)]


def find_runs(path: Path) -> list[Path]:
    """The folder itself if it is a run, or else all runs below it, as in a comparison."""
    if not path.exists():
        raise BadValue("run", str(path), "the folder of a run", "it does not exist")
    if not path.is_dir():
        raise BadValue("run", str(path), "the folder of a run", "it is a file")
    found = [run for run in walk(path) if run is not None]
    if not found:
        because = f"neither it nor any folder in it has {EXPERIMENT}"
        raise BadValue("run", str(path), "the folder of a run or of a comparison", because)
    return found


def read_all(paths: Iterable[Path]) -> list[RecordedRun]:
    """All runs in and below these folders, each once."""
    found = dict.fromkeys(p for path in paths for p in find_runs(path))
    runs = [read_run(path) for path in found]
    if older := sum(not run.verified for run in runs):
        log.info("%s", UNVERIFIED % f"the records of {older} of {len(runs)} runs")
    return runs


def read_run(path: Path) -> RecordedRun:
    """Everything in the folder of a run; raises only if it is not the folder of a run."""
    if not is_run(path):
        raise BadValue("run", str(path), "the folder of a run", f"it has no {EXPERIMENT}")
    notes: list[str] = []
    options = _read(path / EXPERIMENT, parse_toml, notes) or {}
    written = list(_record_lines(path / RECORDS, notes))
    records, damaged = parse_lines(written)
    if damaged:
        which = ", ".join(map(str, damaged[:5])) + (", …" if len(damaged) > 5 else "")
        lines = f"{len(damaged)} damaged line{'s' * (len(damaged) > 1)}"
        notes.append(f"{RECORDS}: {lines} skipped ({which})")
    summary = _read(path / SUMMARY, parse_json, notes)
    if summary and summary.get("epochs") not in (None, *(r["epoch"] for r in records)):
        notes.append(f"{RECORDS}: the last record is missing")
    return RecordedRun(
        path=path,
        options=options,
        environment=_read(path / ENVIRONMENT, parse_json, notes) or {},
        records=latest_by_epoch(records),
        summary=summary,
        agents=_read(path / AGENTS, parse_json, notes),
        confusion=_read(path / CONFUSION, parse_json, notes),
        notes=notes,
        verified=all(map(is_sealed, written)),
    )


def _record_lines(path: Path, notes: list[str]) -> Iterator[bytes]:
    """As many as can be read; a note says why there are no more."""
    if os.path.lexists(path):
        try:
            yield from lines_of(path, most=MOST_RECORDS)
        except Unreadable as error:
            notes.append(f"{path.name} cannot be read to its end: {error}")


def _read(
    path: Path, parse: Callable[[str], dict[str, Any]], notes: list[str]
) -> dict[str, Any] | None:
    if not os.path.lexists(path):
        return None
    try:
        found = parse(read_text(path))
    except Unreadable:
        notes.append(f"{path.name} is damaged")
        return None
    if not isinstance(found, dict) or not found:
        notes.append(f"{path.name} is damaged")
        return None
    return found
