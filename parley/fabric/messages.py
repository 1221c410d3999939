"""Reads messages from other processes: of bounded size and depth, of the expected form, printable.

Whatever a process sends, reading it raises nothing but a `ParleyError` with its number.
"""

import json
from typing import Annotated, Any, Required

from pydantic import Field, TypeAdapter, ValidationError
from typing_extensions import TypedDict

from parley.errors import ParleyError

DEPTH = 16
"""The deepest nesting of lists and tables."""
LINE = 4000
"""Characters of one text."""

Count = Annotated[int, Field(ge=0, le=1 << 48)]
"""Of epochs, samples and the like, as another worker may say it."""
Agent = Annotated[int, Field(ge=0, le=1 << 31)]


class Failure(TypedDict, total=False):
    """Why a process has ended."""

    words: Required[str]
    step: Count
    epoch: Count
    lost: list[Agent]


def understood(text: str, kind: Any, who: str, what: str) -> Any:
    """A message from a process, validated as the type `kind`.

    >>> understood('{"host": "a\\\\u001b[2J"}', dict[str, str], "worker 1", "hosts")
    {'host': 'a[2J'}
    >>> understood("[" * 100, list[int], "worker 1", "sizes")
    Traceback (most recent call last):
    ...
    parley.errors.ParleyError: workers: the sizes that worker 1 sent cannot be read
    """
    try:
        found = _clean(json.loads(text, parse_constant=_no_number), DEPTH)
        return TypeAdapter(kind).validate_python(found)
    except (ValueError, ValidationError, RecursionError, OverflowError, MemoryError):
        raise ParleyError(f"workers: the {what} that {who} sent cannot be read") from None


def printable(text: str) -> str:
    """One line without what would move a terminal's cursor or change its colours.

    >>> printable("loss:\\x1b[31m nan")
    'loss:[31m nan'
    """
    return "".join(character for character in text[:LINE] if character.isprintable())


def check_depth(found: Any, depth: int = DEPTH) -> None:
    """Refuses lists and tables that are nested too deeply, by a ValueError.

    >>> check_depth([[[]]], depth=2)
    Traceback (most recent call last):
    ValueError: too deep
    """
    if isinstance(found, list | dict):
        if not depth:
            raise ValueError("too deep")
        for item in found.values() if isinstance(found, dict) else found:
            check_depth(item, depth - 1)


def _clean(found: Any, depth: int) -> Any:
    if depth < 0:
        raise ValueError("too deep")
    if isinstance(found, str):
        return printable(found)
    if isinstance(found, list):
        return [_clean(item, depth - 1) for item in found]
    if isinstance(found, dict):
        return {printable(key): _clean(item, depth - 1) for key, item in found.items()}
    return found


def _no_number(text: str) -> None:
    raise ValueError(f"{text} is not a number")
