"""Records as they come: only new bytes are read, and only so much is kept as a screen can show.

Axes: F fields, B buckets, R records that came together.

A bucket stands for `stride` consecutive records and keeps the lowest and the highest value of each
field, so that no spike is lost however many records there are. When there are too many buckets,
neighbours are joined and the stride doubles: memory and answers are bounded, and a record costs the
same whether it is the first or the millionth.
"""

import math
import os
import stat
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from pydantic_core import from_json

from parley.training.events import EACH_AGENT, Record

READ_ONLY = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
"""No link is followed, and no pipe waited for, where the system can tell them."""

BUCKETS = 1000
"""At most so many for a run; half as many just after joining."""
FIELDS = 48
"""At most so many; further ones are passed over."""
NUMBERS = 40_000
"""At most about so many numbers of single agents are kept for a run."""
FRAMES = 240
"""Records of which single agents' numbers are kept, at most; they are played one after another."""
CHUNK = 4 << 20
"""Bytes that are read at once."""
LONGEST = 64 << 20
"""A line that is longer is no record."""
SEEN = 64
"""Bytes before the new ones that are read again, to see whether the file is still the same."""

Values = npt.NDArray[np.float64]


class Cursor(NamedTuple):
    """How much of a run somebody has been told."""

    generation: int = -1
    stride: int = 0
    buckets: int = 0
    fields: int = 0
    frame_stride: int = 0
    frames: int = 0

    def __str__(self) -> str:
        return ".".join(map(str, self))

    @classmethod
    def parse(cls, text: str) -> "Cursor":
        """As a page sends it back; what is not understood means nothing was told.

        >>> Cursor.parse("1.2.30.4.5.6").buckets, Cursor.parse("nonsense").buckets
        (30, 0)
        """
        parts = text.split(".")
        if len(parts) != len(cls._fields) or not all(p.isdecimal() and len(p) < 16 for p in parts):
            return cls()
        return cls(*map(int, parts))


class Thinned:
    """The numbers of all records, lowest and highest for each bucket."""

    def __init__(self, buckets: int = BUCKETS) -> None:
        self._most = max(4, buckets - buckets % 2)
        self.names: list[str] = []
        self.stride = 1
        self.records = 0
        self._x_2B = np.empty((2, 0))
        """The first and the last epoch of each bucket."""
        self._low_FB = self._high_FB = np.empty((0, 0))
        self._low_first_FB: npt.NDArray[np.bool_] = np.empty((0, 0), dtype=bool)

    @property
    def buckets(self) -> int:
        """How many there are."""
        return self._x_2B.shape[1]

    def add(self, records: Sequence[Record]) -> None:
        """Further records, each with a number as its epoch."""
        for part in range(0, len(records), self._most):
            self._add(records[part : part + self._most])

    def _add(self, records: Sequence[Record]) -> None:
        self._know(records)
        x_R = np.array([record["epoch"] for record in records], dtype=np.float64)
        value_FR = np.array([_numbers([r.get(n) for r in records]) for n in self.names])
        value_FR = value_FR.reshape(len(self.names), len(records))
        # A record is a bucket of its own until it is joined with others.
        open_ = self.records % self.stride
        bucket_R = (open_ + np.arange(len(records))) // self.stride
        if open_ == 0:
            bucket_R = bucket_R + 1
        # The last bucket may not be full: it takes part as bucket 0.
        last = slice(self.buckets - 1, None) if self.buckets else slice(0, 0)
        if not self.buckets:
            bucket_R = bucket_R - 1
        x_2B = np.concatenate([self._x_2B[:, last], np.stack([x_R, x_R])], axis=1)
        low = np.concatenate([self._low_FB[:, last], value_FR], axis=1)
        high = np.concatenate([self._high_FB[:, last], value_FR], axis=1)
        first = np.concatenate(
            [self._low_first_FB[:, last], np.ones(value_FR.shape, dtype=bool)], axis=1
        )
        bucket = np.concatenate([[0] if self.buckets else [], bucket_R]).astype(np.int64)
        joined = _join(x_2B, low, high, first, bucket)
        kept = slice(0, max(self.buckets - 1, 0))
        self._set(
            *(
                np.concatenate([old[:, kept], new], axis=1)
                for old, new in zip(
                    (self._x_2B, self._low_FB, self._high_FB, self._low_first_FB),
                    joined,
                    strict=True,
                )
            )
        )
        self.records += len(records)
        while self.buckets > self._most:
            self._set(
                *_join(
                    self._x_2B,
                    self._low_FB,
                    self._high_FB,
                    self._low_first_FB,
                    np.arange(self.buckets) // 2,
                )
            )
            self.stride *= 2

    def _set(self, x_2B: Any, low_FB: Any, high_FB: Any, low_first_FB: Any) -> None:
        self._x_2B, self._low_FB, self._high_FB = x_2B, low_FB, high_FB
        self._low_first_FB = low_first_FB

    def _know(self, records: Sequence[Record]) -> None:
        """Fields that were not there before have been missing until now."""
        unknown = set().union(*records).difference(self.names)
        for name in sorted(unknown):
            if len(self.names) == FIELDS:
                break
            found = (record.get(name) for record in records)
            if any(type(v) in (int, float) and math.isfinite(_number(v)) for v in found):
                self.names.append(name)
        new = len(self.names) - len(self._low_FB)
        if new:
            missing = np.full((new, self.buckets), np.nan)
            self._low_FB = np.concatenate([self._low_FB, missing])
            self._high_FB = np.concatenate([self._high_FB, missing])
            yes = np.ones(missing.shape, dtype=bool)
            self._low_first_FB = np.concatenate([self._low_first_FB, yes])

    def points(self, start: int = 0) -> dict[str, Any]:
        """What to draw from a bucket on: one point for each record, or two for each bucket."""
        low, high, x = self._low_FB[:, start:], self._high_FB[:, start:], self._x_2B[:, start:]
        if self.stride == 1:
            fields = zip(self.names, map(_plain, low), strict=True)
            return {"x": _plain(x[0]), "fields": dict(fields)}
        first = np.where(self._low_first_FB[:, start:], low, high)
        second = np.where(self._low_first_FB[:, start:], high, low)
        pairs = np.stack([first, second], axis=2).reshape(len(self.names), -1)
        return {
            "x": _plain(x.T.reshape(-1)),
            "fields": {name: _plain(row) for name, row in zip(self.names, pairs, strict=True)},
        }


def _join(
    x_2B: Values, low_FB: Values, high_FB: Values, first_FB: npt.NDArray[np.bool_], bucket_B: Any
) -> tuple[Values, Values, Values, npt.NDArray[np.bool_]]:
    """Neighbours with the same number become one."""
    starts = np.flatnonzero(np.diff(bucket_B, prepend=-1))
    ends = np.append(starts[1:], len(bucket_B)) - 1
    x = np.stack([x_2B[0, starts], x_2B[1, ends]])
    low = np.fmin.reduceat(low_FB, starts, axis=1) if low_FB.size else low_FB[:, starts]
    high = np.fmax.reduceat(high_FB, starts, axis=1) if high_FB.size else high_FB[:, starts]
    # Which of the two came first: where the part with the lowest value stands among the parts.
    first = first_FB[:, starts].copy()
    for k, (start, end) in enumerate(zip(starts, ends, strict=True)):
        if end > start and low_FB.size:
            part_low, part_high = low_FB[:, start : end + 1], high_FB[:, start : end + 1]
            at_low = np.argmax(part_low == low[:, k, None], axis=1)
            at_high = np.argmax(part_high == high[:, k, None], axis=1)
            same = first_FB[np.arange(len(first_FB)), start + at_low]
            first[:, k] = np.where(at_low == at_high, same, at_low < at_high)
    return x, low, high, first


def _number(value: Any) -> float:
    good = isinstance(value, (int, float)) and not isinstance(value, bool)
    try:
        return float(value) if good else math.nan
    except OverflowError:
        return math.nan


def _numbers(values: list[Any]) -> Values:
    if set(map(type, values)) == {float}:  # by far the most
        return np.array(values)
    return np.array([_number(value) for value in values])


def _plain(values: Values) -> list[float | None]:
    """For JSON: six digits, nothing for what is missing."""
    return [float(f"{v:.6g}") if math.isfinite(v) else None for v in values.tolist()]


class Frames:
    """What single agents did, at evenly spread records and at the last one."""

    def __init__(self, numbers: int = NUMBERS) -> None:
        self._numbers = numbers
        self._records = 0
        self.stride = 1
        self.kept: list[dict[str, Any]] = []
        self.latest: dict[str, Any] | None = None

    def add(self, records: Sequence[Record]) -> None:
        """Further records."""
        for record in records:
            if self._records % self.stride == 0 and (frame := _frame(record)):
                self.kept.append(frame)
                size = sum(len(frame[n]) for n in EACH_AGENT if n in frame)
                most = min(FRAMES, max(16, self._numbers // size))
                if len(self.kept) > most:
                    self.kept = self.kept[::2]
                    self.stride *= 2
            self._records += 1
        self.latest = next(filter(None, map(_frame, reversed(records))), self.latest)


def _frame(record: Record) -> dict[str, Any] | None:
    found = {n: record[n] for n in EACH_AGENT if _is_row(record.get(n))}
    return {"epoch": record["epoch"], **found} if found else None


def _is_row(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(math.isfinite(_number(v)) for v in value)


class Tail:
    """The records of one run, as far as they have been read."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.generation = 0
        """Grows when the file is another one than before, as after resuming."""
        self.bytes_read = 0
        """All bytes that were ever read, for those who want to know what looking costs."""
        self.lock = threading.Lock()
        """Held by whoever reads on or tells."""
        self._start_over()

    def _start_over(self) -> None:
        self.generation += 1
        self.offset = 0
        """Whole lines up to here have been read."""
        self.size = 0
        self.behind = False
        """Whether there is more that could be read at once."""
        self.lines = 0
        self.damaged: list[int] = []
        """Numbers of the first damaged lines."""
        self.damaged_lines = 0
        self.thinned, self.frames = Thinned(), Frames()
        self._seen = b""
        self._inode = -1

    def read(self, budget: int = 2 * CHUNK) -> None:
        """What has come since the last time, though not more than `budget` bytes (or one line)."""
        try:
            # Not through a link: it could lead out of the folder.
            descriptor = os.open(self.path, READ_ONLY)
        except OSError:
            if self.offset:
                self._start_over()
            return
        with os.fdopen(descriptor, "rb") as file:
            about = os.fstat(descriptor)
            if not stat.S_ISREG(about.st_mode):
                return
            if self._inode not in (-1, about.st_ino) or about.st_size < self.offset:
                self._start_over()
            if self._seen:
                file.seek(self.offset - len(self._seen))
                if self._take(file, len(self._seen)) != self._seen:
                    self._start_over()
            self._inode, self.size = about.st_ino, about.st_size
            file.seek(self.offset)
            rest = b""
            while budget > 0 and (data := self._take(file, CHUNK)):
                budget -= len(data)
                rest = self._parse(rest + data)
                if len(rest) > LONGEST:
                    self._skip(rest)
                    rest = b""
            self.behind = budget <= 0 and self.offset + len(rest) < self.size

    def _take(self, file: Any, count: int) -> bytes:
        data: bytes = file.read(count)
        self.bytes_read += len(data)
        return data

    def _skip(self, data: bytes) -> None:
        self.offset += len(data)
        self._seen = data[-SEEN:]
        self._complain(self.lines + 1)

    def _complain(self, line: int) -> None:
        self.damaged_lines += 1
        if len(self.damaged) < 5:
            self.damaged.append(line)

    def _parse(self, data: bytes) -> bytes:
        """Takes the whole lines; a last one without its newline is still being written."""
        end = data.rfind(b"\n") + 1
        records = []
        for line in data[:end].split(b"\n")[:-1]:
            self.lines += 1
            try:
                record = from_json(line)
                if not math.isfinite(_number(record["epoch"])):
                    raise ValueError
                records.append(record)
            except (ValueError, TypeError, KeyError):
                self._complain(self.lines)
        self.thinned.add(records)
        self.frames.add(records)
        if end:
            self.offset += end
            self._seen = data[max(0, end - SEEN) : end]
        return data[end:]

    def news(self, told: Cursor) -> dict[str, Any]:
        """What somebody who was told so much does not know yet, and the cursor for the next time.

        A page cuts what it has at `from` buckets (and frames) and puts the new ones behind.
        """
        thinned, frames = self.thinned, self.frames
        now = Cursor(
            self.generation,
            thinned.stride,
            thinned.buckets,
            len(thinned.names),
            frames.stride,
            len(frames.kept),
        )
        same = told[:2] == now[:2] and told.fields == now.fields and told.buckets <= now.buckets
        # The last bucket may have changed.
        start = max(0, told.buckets - 1) if same else 0
        same_frames = told.generation == now.generation and told.frame_stride == now.frame_stride
        first = told.frames if same_frames and told.frames <= now.frames else 0
        return {
            "cursor": str(now),
            "stride": thinned.stride,
            "records": thinned.records,
            "from": start,
            **thinned.points(start),
            "frames": {"from": first, "new": frames.kept[first:], "latest": frames.latest},
            "damaged": self.damaged_lines,
            "damaged_lines": self.damaged,
            "read": self.offset,
            "size": self.size,
            "behind": self.behind,
        }
