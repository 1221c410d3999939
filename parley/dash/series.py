"""The records of a run as they arrive: only new bytes are read, and a bounded number is kept.

A page gets whole series. Runs usually have at most a few thousand records; for longer ones every
second, fourth, ... record is kept, and always the last.
"""

import os
import threading
from pathlib import Path
from typing import Any, BinaryIO, Generic, TypeVar

from parley.files import Unreadable, regular
from parley.training.record import EACH_AGENT, Record, number, parse_record

MOST = 4000
"""The most records to keep."""
FIELDS = 48
"""The most numbers to keep from a record."""
FRAMES = 240
"""The most records to keep per-agent numbers of; the page plays them one after another."""
NUMBERS = 40_000
"""Roughly the most per-agent numbers to keep in total."""
LONGEST = 8 << 20
"""In bytes; a longer line is not a record."""
AT_ONCE = 64 << 20
"""The most bytes to read at a time; the next read continues from there."""
SEEN = 64
"""Bytes before the new ones to read again, to check that it is still the same file."""

T = TypeVar("T")


class Strided(Generic[T]):
    """Every `stride`-th item, and the last; the stride doubles when there are too many.

    >>> few = Strided[int](most=4)
    >>> for k in range(10):
    ...     few.add(k)
    >>> few.all(), few.stride
    ([0, 4, 8, 9], 4)
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.count = 0
        self.stride = 1
        self._kept: list[T] = []
        self._last: T | None = None

    def add(self, thing: T) -> None:
        """Adds an item."""
        if self.count % self.stride == 0:
            self._kept.append(thing)
        self.count += 1
        self._last = thing
        while len(self._kept) > self.most:
            self._kept = self._kept[::2]
            self.stride *= 2

    def all(self) -> list[T]:
        """What is kept, in order."""
        whole = self._last is None or (self.count - 1) % self.stride == 0
        return self._kept if whole or self._last is None else [*self._kept, self._last]


class Series:
    """The records of one run, as far as they have been read."""

    def __init__(self, run: str, path: Path) -> None:
        self.run = run
        self.path = path
        self.bytes_read = 0
        """Total bytes read so far: what following this run costs."""
        self._lock = threading.Lock()
        self._start_over()

    def _start_over(self) -> None:
        self._told: dict[str, Any] | None = None
        self._offset = self._lines = 0
        self._rows: Strided[dict[str, float]] = Strided(MOST)
        self._frames: Strided[dict[str, Any]] = Strided(FRAMES)
        self._damaged = 0
        self._damaged_lines: list[int] = []
        self._seen = b""
        self._inode = -1
        self._skipping = False  # the rest of a line that is too long
        self._looked_at: tuple[int, int] | None = None  # a file read to its end, by size and time

    def told(self) -> dict[str, Any]:
        """Everything a page draws; the same object as before if nothing is new."""
        with self._lock:
            self._read()
            if self._told is None:
                rows = self._rows.all()
                names = list(dict.fromkeys(name for row in rows for name in row))[:FIELDS]
                self._told = {
                    "id": self.run,
                    "records": self._rows.count,
                    "stride": self._rows.stride,
                    "x": [row["epoch"] for row in rows],
                    "fields": {name: [row.get(name) for row in rows] for name in names},
                    "frames": self._frames.all(),
                    "damaged": self._damaged,
                    "damaged_lines": self._damaged_lines,
                }
            return self._told

    def _read(self) -> None:
        """Reads what was added since the last call."""
        try:
            # Never through a link: it could lead outside the folder.
            with regular(self.path, follow=False) as file:
                self._read_new(file)
        except Unreadable:
            if self._offset:
                self._start_over()

    def _read_new(self, file: BinaryIO) -> None:
        about = os.fstat(file.fileno())
        if self._inode not in (-1, about.st_ino) or about.st_size < self._offset:
            self._start_over()
        self._inode = about.st_ino
        now = about.st_size, about.st_mtime_ns
        if now == self._looked_at:
            return  # what is left at its end has been seen to be no whole line
        self._looked_at = None
        file.seek(self._offset - len(self._seen))
        before = file.read(len(self._seen))
        self.bytes_read += len(before)
        if before != self._seen:
            self._start_over()
            self._inode = about.st_ino
            file.seek(0)
        end = self._offset + AT_ONCE
        while self._offset < end:
            line = file.readline(LONGEST)
            self.bytes_read += len(line)
            whole = line.endswith(b"\n")
            if not whole and len(line) < LONGEST and not (line and self._skipping):
                self._looked_at = now  # nothing more, or a line that is still being written
                break
            self._offset += len(line)
            self._seen = (self._seen + line)[-SEEN:]
            if not self._skipping:
                self._take(line)
            self._skipping = not whole

    def _take(self, line: bytes) -> None:
        self._told = None
        self._lines += 1
        record = parse_record(line)
        if record is None:
            self._damaged += 1
            if len(self._damaged_lines) < 5:
                self._damaged_lines.append(self._lines)
            return
        row = {name: found for name, v in record.items() if (found := number(v)) is not None}
        self._rows.add({name: float(f"{found:.6g}") for name, found in row.items()})
        if frame := _frame(record):
            size = sum(len(values) for values in frame.values() if isinstance(values, list))
            self._frames.most = min(FRAMES, max(16, NUMBERS // size))
            self._frames.add(frame)


def _frame(record: Record) -> dict[str, Any] | None:
    """The numbers of each agent; None for an absent one."""
    named = [(name, values) for name, values in record.items() if name.endswith(EACH_AGENT)]
    found = {name: values for name, values in named if _is_row(values)}
    return {"epoch": record["epoch"], **found} if found else None


def _is_row(values: object) -> bool:
    if not isinstance(values, list) or all(v is None for v in values):
        return False
    return all(v is None or number(v) is not None for v in values)
