"""The status of a run: how far it is while it is active, and why it stopped.

``status.json`` is in a run's folder from the first step until the run is complete, when
``summary.json`` replaces it. Meanwhile the run holds a lock on its folder, the file ``.lock``. The
kernel releases it however the process ends, so an observer can tell an active run from a dead one.
"""

import contextlib
import json
import os
import socket
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from parley.files import Unreadable, parse_json, read_text, write_atomically
from parley.training.events import Event, StepDone

STATUS = "status.json"
LOCK = ".lock"
EVERY = 1.0
"""Seconds between writes."""


@contextmanager
def reported(folder: Path | None, locked: bool) -> Iterator[Callable[[Event], None]]:
    """Reports in the folder how a run progresses, given its events, and how it ended.

    `locked`: whether this process holds the folder's lock.
    """
    if folder is None:
        yield lambda event: None
        return
    status = _Status(folder, locked)
    try:
        yield status
    except BaseException as error:
        stopped = isinstance(error, KeyboardInterrupt)
        status.ended("stopped" if stopped else "failed", "" if stopped else str(error))
        raise
    (folder / STATUS).unlink(missing_ok=True)


def mark_stopped(folder: Path, states: Collection[str] = ("running",)) -> None:
    """Marks a run that was stopped on purpose from outside, so that it does not count as died, nor
    as failed because another was stopped with it."""
    with contextlib.suppress(OSError, Unreadable):
        status = parse_json(read_text(folder / STATUS))
        if isinstance(status, dict) and status.get("state") in states:
            stopped = status | {"state": "stopped", "why": ""}
            write_atomically(folder / STATUS, json.dumps(stopped) + "\n")


def is_held(folder: Path) -> bool:
    """Whether some process on this machine is at work on the folder's run; changes nothing."""
    return any(is_locked(path) for path in (folder / LOCK, *folder.glob(f"{LOCK}-*")))


def is_locked(path: Path) -> bool:
    """Whether some process on this machine holds this lock; changes nothing."""
    if not path.is_file():
        return False
    try:
        import fcntl
    except ImportError:  # Windows, where a look is a short hold
        with locking(path, patience=0) as free:
            return not free
    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False  # a file system without locks
    return False


def held(folder: Path) -> AbstractContextManager[bool]:
    """Holds the folder's lock; whether it could be had."""
    return locking(folder / LOCK)


@contextmanager
def locking(path: Path, patience: float = 0.2) -> Iterator[bool]:
    """Holds a lock; whether it could be had. Somebody may just be looking, so it is waited for a
    moment."""
    from filelock import FileLock, Timeout  # which reading a folder does without

    lock = FileLock(path, thread_local=False)
    try:
        lock.acquire(timeout=patience, poll_interval=0.02)
    except (Timeout, OSError, NotImplementedError):
        yield False  # taken, or a file system without locks
        return
    try:
        yield True
    finally:
        lock.release()


class _Status:
    """The file, rewritten now and then."""

    def __init__(self, folder: Path, locked: bool) -> None:
        self._path = folder / STATUS
        self._written = -float("inf")
        self._now = {"state": "running", "pid": os.getpid(), "host": socket.gethostname()}
        self._now |= {"locked": locked}
        self._begun = False

    def __call__(self, event: Event) -> None:
        """Handles an event of the run."""
        if not isinstance(event, StepDone):
            return
        now = time.time()
        if not self._begun:
            # Steps from before a run was resumed say nothing about its current speed.
            self._now |= {"began": now, "began_step": event.step}
            self._begun = True
        self._now |= {"at": now, "step": event.step, "steps": event.steps, "loss": event.loss}
        if time.monotonic() - self._written >= EVERY:
            self._write()

    def ended(self, state: str, why: str) -> None:
        """The run has ended, at least in this process."""
        self._now |= {"state": state, "why": " ".join(why.split())}
        if self._begun:
            self._write()

    def _write(self) -> None:
        # Writing the records will report a full disk, or a folder that was removed.
        if self._path.parent.is_dir():
            with contextlib.suppress(OSError):
                write_atomically(self._path, json.dumps(self._now) + "\n")
        self._written = time.monotonic()
