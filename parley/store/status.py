"""What a run says of itself: where it is while it goes on, and why when it has stopped.

``status.json`` is in a run's folder from the first step until the run is complete, when
``summary.json`` takes its place. Meanwhile the run holds a lock on its folder. The kernel lets go
of it whatever becomes of the process, so whoever looks can tell a run that goes on from one that
died.
"""

import contextlib
import fcntl
import json
import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from parley.files import write_atomically
from parley.training.events import Event, StepDone

STATUS = "status.json"
EVERY = 1.0
"""Seconds from one writing to the next."""


@contextmanager
def reported(folder: Path | None) -> Iterator[Callable[[Event], None]]:
    """Says in the folder how a run goes on, given its events, and how it ended."""
    if folder is None:
        yield lambda event: None
        return
    with held(folder) as locked:
        status = _Status(folder, locked)
        try:
            yield status
        except BaseException as error:
            stopped = isinstance(error, KeyboardInterrupt)
            status.ended("stopped" if stopped else "failed", "" if stopped else str(error))
            raise
        (folder / STATUS).unlink(missing_ok=True)


def mark_stopped(folder: Path) -> None:
    """Says of a run that was ended from outside, on purpose, that it did not just die."""
    with contextlib.suppress(OSError, ValueError):
        status = json.loads((folder / STATUS).read_text(encoding="utf-8"))
        if status["state"] == "running":
            write_atomically(folder / STATUS, json.dumps(status | {"state": "stopped"}) + "\n")


def is_held(folder: Path) -> bool:
    """Whether some process on this machine is at work on the folder's run."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False  # a file system without locks
    finally:
        os.close(descriptor)
    return False


@contextmanager
def held(folder: Path) -> Iterator[bool]:
    """Holds a lock on the folder; whether it could be had."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        for _ in range(10):  # somebody may just be looking
            if locked := _locked(descriptor):
                break
            time.sleep(0.02)
        yield locked
    finally:
        os.close(descriptor)


def _locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False  # taken, or a file system without locks
    return True


class _Status:
    """The file, written anew now and then."""

    def __init__(self, folder: Path, locked: bool) -> None:
        self._path = folder / STATUS
        self._written = -float("inf")
        self._now = {"state": "running", "pid": os.getpid(), "host": socket.gethostname()}
        self._now |= {"locked": locked}
        self._begun = False

    def __call__(self, event: Event) -> None:
        """One more event of the run."""
        if not isinstance(event, StepDone):
            return
        now = time.time()
        if not self._begun:
            # What was made before a run was resumed tells nothing about how fast it is now.
            self._now |= {"began": now, "began_step": event.step}
            self._begun = True
        self._now |= {"at": now, "step": event.step, "steps": event.steps, "loss": event.loss}
        if time.monotonic() - self._written >= EVERY:
            self._write()

    def ended(self, state: str, why: str) -> None:
        """The run will not go on, at least not in this process."""
        self._now |= {"state": state, "why": " ".join(why.split())}
        if self._begun:
            self._write()

    def _write(self) -> None:
        with contextlib.suppress(OSError):  # a full disk is for the records to complain about
            write_atomically(self._path, json.dumps(self._now) + "\n")
        self._written = time.monotonic()
