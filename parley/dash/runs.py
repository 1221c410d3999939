"""Which runs there are below a folder, and the state of each, from their files alone.

| state    | how it is recognised |
|----------|----------------|
| finished | summary.json is there |
| running  | a process holds the folder's lock; where locks cannot be seen, its files are recent |
| stopped  | status.json says that it was stopped (Ctrl-C) |
| failed   | status.json says that it failed, and why |
| died     | status.json says "running", but no process holds the lock |

Unfinished runs from versions without status.json count as running while their files are recent, and
as stopped afterwards.
"""

import logging
import os
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Any

from parley.dash.graph import graph
from parley.dash.series import Series
from parley.dash.shown import records_of
from parley.errors import ParleyError
from parley.files import Unreadable, parse_json, parse_toml, regular
from parley.measures import of_options
from parley.results.read import RecordedRun, is_run, label, walk
from parley.store.folder import AGENTS, CONFUSION, ENVIRONMENT, EXPERIMENT, RECORDS, SUMMARY
from parley.store.status import STATUS, is_held
from parley.training.record import number, parse_record

log = logging.getLogger(__name__)

SILENCE = 120.0
"""Seconds without activity after which a run whose lock cannot be seen counts as over."""
SCAN_EVERY = 1.0
"""Seconds between scans of the folder, however many pages are watching."""
REST = 4.0
"""After a slow scan, the disk is left alone for this many times as long."""
MOST_FOLDERS = 20_000
"""The most folders to look into, in case someone passes the root of a disk."""
LARGEST = 4 << 20
"""The largest file to read, in bytes, other than the records."""
END = 64 << 10
"""Bytes at the end of the records to search first for the last one."""
DEEPEST = 32
"""Levels of tables within tables that are shown."""
LONGEST_TEXT = 10_000
"""Characters of a text that are shown."""
SHOWN = ("data", "model", "agents", "topology", "partition", "seed", "epochs")
"""Options of an experiment that are in the list of runs."""
KEPT = 64
"""Runs whose records are kept in memory."""

Row = dict[str, Any]


class Refused(ParleyError):
    """A request for something that is not inside the runs folder."""


class NotThere(ParleyError):
    """A request for a run that does not exist, or no longer does."""


class Runs:
    """The runs below a folder, which need not exist yet."""

    def __init__(self, root: Path, clock: Callable[[], float] = time.time) -> None:
        self.root = root
        self._clock = clock
        self._lock = threading.Lock()
        self._series: dict[str, Series] = {}
        self._rows: dict[str, tuple[object, Row]] = {}
        self._abouts: dict[str, tuple[object, dict[str, Any]]] = {}
        self._listed: dict[str, Any] = {}
        self._scanned = -float("inf")

    def listing(self) -> dict[str, Any]:
        """All runs, newest first; the folder is scanned at most once every `SCAN_EVERY` seconds."""
        with self._lock:
            started = time.monotonic()
            if started - self._scanned >= SCAN_EVERY:
                self._listed = self._scan()
                now = time.monotonic()
                self._scanned = now + REST * (now - started)
            return self._listed

    def _scan(self) -> dict[str, Any]:
        found, whole = [], True
        for place, path in enumerate(walk(self.root)):
            if place >= MOST_FOLDERS:
                whole = False
                break
            if path is not None:
                found.append(path)
        rows = [_in_unicode(self._row_or_note(path)) for path in found]
        known = {row["id"] for row in rows}
        self._rows = {key: value for key, value in self._rows.items() if key in known}
        self._abouts = {key: value for key, value in self._abouts.items() if key in known}
        rows.sort(key=lambda row: (-row["began"], row["id"]))
        note = "" if whole else f"only the first {MOST_FOLDERS:,} folders are searched"
        return {
            "root": plain(str(self.root)),
            "there": self.root.is_dir(),
            "note": note,
            "runs": rows,
        }

    def _row_or_note(self, path: Path) -> Row:
        """One folder that cannot be shown must not hide the others."""
        try:
            return self._row(path)
        except Exception as error:  # anything may be in that file
            log.warning("%s cannot be shown: %s", path, type(error).__name__)
            name = path.resolve().name
            row = dict.fromkeys(SHOWN) | {"id": _id(self.root, path), "name": name, "group": ""}
            row |= {"measures": measured({})}
            row |= {"label": name, "began": 0.0, "complete": False, "status": None, "last": {}}
            row |= {"state": "stopped", "done": 0.0, "left": None, "why": "", "at": 0.0}
            return row | {"note": "its files are damaged"}

    def _row(self, path: Path) -> Row:
        run = _id(self.root, path)
        names = (EXPERIMENT, RECORDS, SUMMARY, STATUS)
        signs = tuple(_sign(path / name) for name in names)
        known = self._rows.get(run)
        if known is None or known[0] != signs:
            row = _about(path, run) | {"last": _last(path / RECORDS)}
            self._rows[run] = (signs, row)
        else:
            row = known[1]
        newest = max((sign[1] for sign in signs if sign), default=0.0)
        return row | _state(path, row, newest, self._clock())

    def folder(self, run: str) -> Path:
        """The folder of the run with that name; never outside the root, not even through a link."""
        parts = PurePosixPath(run).parts
        if not run or "\0" in run or run.startswith("/") or ".." in parts or "\\" in run:
            raise Refused(f"run: {run!r} is not inside the runs folder")
        root = self.root.resolve()
        path = root.joinpath(*parts)
        if path.resolve() != path:
            raise Refused(f"run: {run!r} is not inside the runs folder")
        if not is_run(path):
            raise NotThere(f"run: {run!r} does not exist")
        return path

    def about(self, run: str) -> dict[str, Any]:
        """Everything about one run that does not change with every record."""

        path = self.folder(run)
        signs = tuple(_sign(path / name) for name in (EXPERIMENT, ENVIRONMENT, AGENTS))
        with self._lock:
            known = self._abouts.get(run)
            if known is None or known[0] != signs:
                options = _options(path) or {}
                found = {
                    "id": run,
                    "options": options,
                    "environment": _json(path / ENVIRONMENT) or {},
                    "graph": graph(options, _json(path / AGENTS)),
                }
                known = self._abouts[run] = (signs, found)
            return known[1]

    def series(self, run: str) -> dict[str, Any]:
        """The records of a run; the same object as before if nothing is new."""
        path = self.folder(run)
        with self._lock:
            series = self._series.pop(run, None) or Series(run, path / RECORDS)
            self._series[run] = series  # most recently used last
            while len(self._series) > KEPT:
                del self._series[next(iter(self._series))]
        return series.told()

    def recorded(self, run: str) -> RecordedRun:
        """The run as a report sees it, with the records that are kept."""
        path = self.folder(run)
        return RecordedRun(
            path,
            self.about(run)["options"],
            records=records_of(self.series(run)),
            summary=_json(path / SUMMARY),
            confusion=_json(path / CONFUSION),
        )


def _in_unicode(row: Row) -> Row:
    """The names of folders need not be text, which everything that is sent must be."""
    shown = row | {key: plain(row[key]) for key in ("id", "name", "group", "label")}
    return shown if shown == row else shown | {"note": "the name of its folder is not in UTF-8"}


def _id(root: Path, path: Path) -> str:
    return path.relative_to(root).as_posix()


def _sign(path: Path) -> tuple[int, float, int] | None:
    """A signature that changes when the file does."""
    try:
        about = path.stat()
    except OSError:
        return None
    return about.st_ino, about.st_mtime, about.st_size


def _read(path: Path) -> bytes | None:
    try:
        with regular(path, follow=False) as file:
            return file.read(LARGEST)
    except Unreadable:
        return None


def _json(path: Path) -> dict[str, Any] | None:
    try:
        found = plain(parse_json(_read(path) or b""))
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def _options(path: Path) -> dict[str, Any] | None:
    """The fields of the experiment, even of one that this version does not understand."""
    try:
        found = plain(parse_toml((_read(path / EXPERIMENT) or b"").decode()))
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def plain(value: object, depth: int = 0) -> Any:
    """What a browser's JSON can hold, and no more of it than a page can use.

    Numbers that are not finite or too large become None, as does what is nested too deeply.

    >>> plain({"a": float("nan"), "b": [10**400, 1], "c": "x\\ud800"})
    {'a': None, 'b': [None, 1], 'c': 'x?'}
    """
    if isinstance(value, bool):
        return value
    if isinstance(value, int | float):
        found = number(value)
        return None if found is None else value
    if isinstance(value, dict):
        inner = value.items() if depth < DEEPEST else ()
        return {plain(str(name)): plain(found, depth + 1) for name, found in inner}
    if isinstance(value, list):
        return [plain(found, depth + 1) for found in value] if depth < DEEPEST else None
    if value is None:
        return None
    return str(value)[:LONGEST_TEXT].encode(errors="replace").decode()


def _about(path: Path, run: str) -> Row:
    """A run's description, which changes only when its files do."""
    options, summary = _options(path), _json(path / SUMMARY)
    note = f"{EXPERIMENT} is damaged" if options is None else ""
    sign = _sign(path / EXPERIMENT)
    where = PurePosixPath(run)
    return {
        "id": run,
        "name": "/".join(where.parts[1:]) or where.name or path.resolve().name,
        "group": where.parts[0] if len(where.parts) > 1 else "",
        "label": label(options or {}, _json(path / ENVIRONMENT), summary) or path.name,
        **{name: (options or {}).get(name) for name in SHOWN},
        "measures": measured(options or {}),
        "began": sign[1] if sign else 0.0,
        "note": note,
        "complete": summary is not None,
        "status": _json(path / STATUS),
    }


def measured(options: dict[str, Any]) -> list[dict[str, Any]]:
    """The metrics of a run, the first of which decides, and how to show them.

    >>> measured({"task": "regression", "metrics": "rmse"})
    [{'name': 'rmse', 'title': 'RMSE', 'share': False, 'higher': False}]
    """
    names = ("name", "title", "share", "higher")
    return [{name: getattr(measure, name) for name in names} for measure in of_options(options)]


def _last(path: Path) -> dict[str, Any]:
    """The numbers of the newest complete record, read from the end of the file."""
    with suppress(Unreadable), regular(path, follow=False) as file:
        size, span = os.fstat(file.fileno()).st_size, END
        while size:
            file.seek(max(0, size - span))
            lines = file.read(span).split(b"\n")[:-1]
            for line in reversed(lines if span >= size else lines[1:]):
                if record := parse_record(line):
                    return {k: v for k, v in record.items() if number(v) is not None}
            if span >= min(size, LARGEST):
                break
            span *= 8
    return {}


def _state(path: Path, row: Row, newest: float, now: float) -> Row:
    """The current state of a run."""
    status, last = row["status"] or {}, row["last"]
    epochs = row["epochs"] if isinstance(row["epochs"], int) else 0
    epoch = last.get("epoch", 0)
    done = min(1.0, epoch / epochs) if epochs else 0.0
    step, steps, said = (status.get(name) for name in ("step", "steps", "state"))
    if isinstance(step, int) and isinstance(steps, int) and steps > 0:
        done = min(1.0, max(done, step / steps))
    if row["complete"]:
        return {"state": "finished", "done": 1.0, "left": 0.0, "why": "", "at": newest}
    if status.get("locked") and status.get("host") == socket.gethostname():
        alive = is_held(path)
    else:
        alive = is_held(path) or (said in (None, "running") and now - newest < SILENCE)
    state = "running" if alive else {"stopped": "stopped", "failed": "failed"}.get(str(said), "")
    why = "" if alive else str(status.get("why", ""))
    if not state and said == "running":
        state, why = "died", "its process ended without reporting why"
    left = _left(status, now) if alive else None
    return {"state": state or "stopped", "done": done, "left": left, "why": why, "at": newest}


def _left(status: dict[str, Any], now: float) -> float | None:
    """Seconds left at the mean rate of this process, evaluations included."""
    try:
        made = status["step"] - status["began_step"]
        rate = made / (status["at"] - status["began"])
        left = (status["steps"] - status["step"]) / rate - (now - status["at"])
        return max(0.0, round(float(left)))
    except (KeyError, TypeError, ValueError, ArithmeticError):
        return None
