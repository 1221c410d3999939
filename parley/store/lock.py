"""Locks the folder of a run in each of its processes, from before it is read to the end.

Each process of a run holds a lock of its own in the folder, ``.lock-RUN-RANK``. One of those that
see the same folder also holds ``.lock``, which only one run can have. So a second run is refused
while a single process of the first is alive, even if that is one that nobody waits for any more.
"""

import logging
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Self

from parley.errors import BadValue, ParleyError
from parley.files import make_folder
from parley.store.status import LOCK, held, is_locked, locking

log = logging.getLogger(__name__)


class Hold:
    """One process's hold on a folder. All processes of a run `take` it, then all `settle`."""

    def __init__(self, folder: Path, run: str, rank: int) -> None:
        """`run` is the same in all processes of a run and in no other."""
        self.folder = folder
        self.locked = False
        """Whether the folder is known to be held for this run."""
        self.first = False
        """Whether this process is the one that holds it for all."""
        self._run, self._rank = run, rank
        self._own = folder / f"{LOCK}-{run}-{rank}"
        self._holding = ExitStack()
        self._made: list[Path] = []
        """Folders that were not there before, innermost first."""
        self._new = False
        """Whether the lock was not there before."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        first = self.first
        self.locked = self.first = False
        self._holding.close()
        with suppress(OSError):
            self._own.unlink(missing_ok=True)
            if first and self._new and [p.name for p in self.folder.iterdir()] == [LOCK]:
                # The run failed before it wrote anything: nothing is left of it.
                (self.folder / LOCK).unlink()
                for made in self._made:
                    made.rmdir()

    def take(self) -> bool:
        """Takes the folder if no other process has it; whether that was so."""
        self._made = [p for p in (self.folder, *self.folder.parents) if not p.exists()]
        self._new = not (self.folder / LOCK).exists()
        try:
            make_folder(self.folder)
        except OSError as error:
            valid = "a folder that can be written"
            raise BadValue("out", str(self.folder), valid, str(error)) from None
        return self.retake()

    def retake(self) -> bool:
        """Tries again later, when the process that held it may have died."""
        if not self.first:
            self.first = self._holding.enter_context(held(self.folder))
            if self.first:
                self._refuse_others()
                self._mark()
        return self.first

    def settle(self, took: Sequence[bool]) -> None:
        """Given who of this run took its folder: refuses one that another run has."""
        if self.first:
            return
        here = self.folder.glob(f"{LOCK}-{self._run}-*")
        ranks = {int(path.name.rpartition("-")[2]) for path in here} - {self._rank}
        if any(took[rank] for rank in ranks if rank < len(took)):
            self._mark()
        elif is_locked(self.folder / LOCK):
            raise self._taken()
        else:
            log.warning(
                "%s cannot be locked: make sure that no other run writes there", self.folder
            )

    def _mark(self) -> None:
        """This process's own lock, which shows that the folder is this run's."""
        if not self.locked:
            self._holding.enter_context(locking(self._own))
            self.locked = True

    def _refuse_others(self) -> None:
        for path in self.folder.glob(f"{LOCK}-*"):
            if not path.name.startswith(f"{LOCK}-{self._run}-"):
                if is_locked(path):
                    raise self._taken()
                path.unlink(missing_ok=True)  # of a process that was killed

    def _taken(self) -> ParleyError:
        return ParleyError(
            f"out: another process is using {self.folder}; wait for it, stop it, "
            "or choose another folder"
        )
