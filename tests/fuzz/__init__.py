"""Damaged input of every kind, drawn from seeds: whatever is read is used, or refused in words.

    python -m tests.fuzz                          a short run of every target
    python -m tests.fuzz --minutes 10 records     a long run of one
    python -m tests.fuzz --seed 4711 records      one case again, with its traceback

A target draws one case from a seed and hands it to the package. It may end in a `ParleyError`,
which users see as one line; any other exception, a warning, or taking too long is a failure, and
the command that repeats it is printed. Long runs begin where the clock says, so that two of them do
not try the same cases.
"""

import random
import signal
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from parley.errors import ParleyError
from tests.fuzz import files, models, numbers, tensors

Target = Callable[[random.Random, Path], None]

TARGETS: dict[str, Target] = {
    **numbers.TARGETS,
    **files.TARGETS,
    **tensors.TARGETS,
    **models.TARGETS,
}
LIMIT = 60
"""Seconds that one case may take on a busy machine; most take milliseconds."""


class TooSlow(Exception):
    """A case that does not come to an end."""


def case(name: str, seed: int) -> str:
    """Tries one case: what it was refused with, or nothing if it was taken."""
    source = random.Random(f"{name} {seed}")
    with tempfile.TemporaryDirectory() as folder, _limited(), warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            TARGETS[name](source, Path(folder))
        except ParleyError as error:
            return checked(str(error))
    return ""


def checked(message: str) -> str:
    """A refusal that a person can read: one line, not too long, no control characters."""
    assert message.isprintable(), repr(message)
    assert len(message) < 2000, message
    return message


def command(name: str, seed: int) -> str:
    """How to try a case again."""
    return f"python -m tests.fuzz --seed {seed} {name}"


@contextmanager
def _limited() -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "SIGALRM"):
        yield
        return

    def stop(*_: object) -> None:
        raise TooSlow(f"no end after {LIMIT} seconds")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(LIMIT)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
