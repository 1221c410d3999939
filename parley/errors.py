"""Errors for users: what was wrong, in one line and without a traceback."""

import difflib
import importlib
from collections.abc import Iterable
from contextlib import suppress
from copy import copy
from types import ModuleType
from typing import Any, Self


class ParleyError(Exception):
    """A user's mistake, or a run that cannot continue; the message says everything in one line."""

    def saying(self, words: str) -> Self:
        """The same error in other words.

        >>> Diverged("loss: nan", step=3, epoch=1).saying("seed 0: loss: nan")
        Diverged('seed 0: loss: nan')
        """
        other = copy(self)
        other.args = (words,)
        return other


class Diverged(ParleyError):
    """The numbers of a run are no longer finite."""

    def __init__(self, message: str, step: int = 0, epoch: int = 0) -> None:
        super().__init__(message)
        self.step = step
        """The step in which it was noticed, counted from 1."""
        self.epoch = epoch
        """The epoch of that step, counted from 1."""


class NotWritten(ParleyError):
    """What has to be kept cannot be written on this host; others may be able to go on."""


class Stopped(KeyboardInterrupt):
    """The process was asked to end (SIGTERM); it stops as it would on Ctrl-C."""


class BadValue(ParleyError):
    """A value that is not valid: names the field, the value, and what would be valid.

    >>> str(BadValue("alpha", 1.5, "a number from 0 to 1"))
    'alpha: 1.5 is not valid; valid: a number from 0 to 1'
    >>> str(BadValue("topology", "chain", "a connected graph", because="agent 3 is cut off"))
    "topology: 'chain' is not valid (agent 3 is cut off); valid: a connected graph"
    >>> str(BadValue("out", None, "a folder", because="--resume needs it"))
    'out: missing (--resume needs it); valid: a folder'
    """

    def __init__(self, field: str, value: object, valid: str, because: str = "") -> None:
        found = "missing" if value is None else f"{_as_typed(value)} is not valid"
        reason = f" ({because})" if because else ""
        super().__init__(f"{field}: {found}{reason}; valid: {valid}")
        self.field = field

    def __reduce__(self) -> tuple[Any, ...]:
        # Exceptions are copied by calling their class with `args`; between processes, too.
        return _copy, (self.field, str(self))


def _copy(field: str, message: str) -> BadValue:
    error = BadValue.__new__(BadValue, message)
    error.field = field
    return error


def needed(library: str, extra: str, field: str, value: object, instead: str = "") -> ModuleType:
    """Imports a library that is in an extra; if it is missing, the error names the extra.

    `field: value` is what needs it, and `instead` what works without it.

    >>> needed("no_such_library", "hub", "data", "owner/name")
    Traceback (most recent call last):
    parley.errors.BadValue: data: 'owner/name' is not valid (it needs no_such_library, and
    no_such_library is not installed); valid: pip install 'parley-learning[hub]'
    """
    try:
        return importlib.import_module(library)
    except ImportError as error:
        # It may also be one of its dependencies that is missing, so name the module.
        because = f"it needs {library}, and {error.name or library} is not installed"
        valid = f"pip install 'parley-learning[{extra}]'"
        valid = f"{instead}, or {valid}" if instead else valid
        raise BadValue(field, value, valid, because) from error


def _as_typed(value: object) -> str:
    """A number from the command line looks like one from Python: 1.5, not '1.5'."""
    if isinstance(value, str) and len(value) <= 100:
        with suppress(ValueError):
            float(value)
            return value
    try:
        text = " ".join(repr(value).split())
    except (RecursionError, ValueError):  # nested too deeply, or a number of thousands of digits
        text = f"a value of type {type(value).__name__} that is too long to show"
    return text if len(text) <= 100 else f"{text[:97]}..."


def shown(name: object, most: int = 80) -> str:
    """A name from an untrusted file, as part of a line that a person reads.

    >>> shown("0.weight"), shown("\\x1b[31m"), shown("x" * 9, most=5)
    ('0.weight', '?[31m', 'xx...')
    """
    text = "".join(letter if letter.isprintable() else "?" for letter in str(name)[: most + 1])
    return text if len(text) <= most else f"{text[: most - 3]}..."


def nearest(name: str, names: Iterable[str], most: int = 1) -> list[str]:
    """The names that this one is probably a misspelling of; none if no name is close.

    >>> nearest("rng", ["ring", "star"]), nearest("mesh", ["ring", "star", "chain"])
    (['ring'], [])
    """
    return difflib.get_close_matches(name, list(names), most, cutoff=0.6)


def unknown_name(field: str, name: str, names: Iterable[str]) -> BadValue:
    """The error for a name that is not in a table, with the nearest one that is.

    >>> str(unknown_name("algorithm", "ncg", ["dpsgd", "ngc"]))
    "algorithm: 'ncg' is not valid (did you mean 'ngc'?); valid: dpsgd, ngc"
    """
    names = sorted(names)
    near = nearest(name, names)
    because = f"did you mean {near[0]!r}?" if near else ""
    return BadValue(field, name, ", ".join(names), because)
