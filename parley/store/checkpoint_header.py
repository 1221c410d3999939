"""The header of a checkpoint, which accompanies its tensors, and its validation.

A checksum tells whether a file is as it was written, not whether it was written by Parley.
"""

import math
from typing import Any

AXES = {"A": 1, "I": 2, "O": 2}
"""How many numbers identify a row of each axis: an agent, or an edge's sender and receiver."""


def checked(header: Any) -> dict[str, Any]:
    """The header if it has all that it needs, of the right types; else a `ValueError`."""
    tables = _table(header, "its header", "about", "axes", "checks")
    about = _table(tables["about"], "about", "seconds", "samples")
    for name in ("seconds", "samples"):
        _number(about[name], f"about.{name}")
    if "clock" in about:
        _clock(about["clock"])
    axes = _table(tables["axes"], "axes", *AXES)
    for axis, width in AXES.items():
        rows = _list(axes[axis], f"axes.{axis}")
        if not all(isinstance(r, list) and len(r) == width and all(map(_index, r)) for r in rows):
            raise ValueError(f"axes.{axis} has something other than rows of {width}")
        if axis == "A" and not rows:
            raise ValueError("axes.A is empty")
        if len({tuple(row) for row in rows}) < len(rows):
            raise ValueError(f"axes.{axis} has a row twice")
    for name, check in _table(tables["checks"], "checks").items():
        if axis_of(name) not in AXES or not _index(check):
            raise ValueError("checks has something other than fields and their checksums")
    return {**tables, "axes": {axis: axes[axis] for axis in AXES}}


def axis_of(field: str) -> str:
    """The first axis of a field, which identifies its rows: A of ``x_AD``.

    >>> axis_of("gradient.e_ID"), axis_of("nothing")
    ('I', '')
    """
    return field.rpartition("_")[2][:1] if "_" in field else ""


def _clock(clock: Any) -> None:
    state = _table(clock, "about.clock", "time", "free", "messages")
    for name in ("time", "free"):
        for seconds in _list(state[name], f"about.clock.{name}"):
            _number(seconds, f"about.clock.{name}")
    if len(state["time"]) != len(state["free"]) or not _index(state["messages"]):
        raise ValueError("about.clock does not belong to one network")


def _table(value: Any, name: str, *needed: str) -> dict[str, Any]:
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        raise ValueError(f"{name} is not a table")
    if missing := [key for key in needed if key not in value]:
        raise ValueError(f"{name} lacks {missing[0]}")
    return value


def _list(value: Any, name: str) -> list[Any]:
    if not isinstance(value, list):
        raise ValueError(f"{name} is not a list")
    return value


def _number(value: Any, name: str) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{name} is not a number")
    if not (isinstance(value, int) or math.isfinite(value)) or not 0 <= value <= 1e18:
        raise ValueError(f"{name} is not a number from 0 on")


def _index(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**53
