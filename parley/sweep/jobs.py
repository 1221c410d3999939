"""Runs to be made, one by one or several at once, and the bars that show how far they are."""

import os
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from queue import Empty
from typing import Any

from rich.progress import TaskID

from parley.cluster import launch
from parley.cluster.run import Watcher
from parley.compute.threads import usable_cores
from parley.errors import BadValue, Diverged, ParleyError
from parley.experiment import Experiment
from parley.files import SMALL, Unreadable, read_text, write_atomically
from parley.process import follow_parent
from parley.store.folder import RunFolder
from parley.store.status import mark_stopped
from parley.training import problem as problems
from parley.training.events import EpochDone, Event, StepDone
from parley.training.record import Record
from parley.watch import trackers
from parley.watch.log import console
from parley.watch.progress import bars, brief, status

DIVERGED_FILE = "diverged.txt"


@dataclass(frozen=True)
class Job:
    """One run of a comparison."""

    label: str
    experiment: Experiment
    out: Path
    log: tuple[str, ...] = ()
    """Trackers that receive its metrics."""
    may_diverge: bool = False
    """Whether divergence counts as a result rather than a reason to stop the other runs."""

    def on_a_share(self, parallel: int) -> "Job":
        """The same job on its share of the cores when `parallel` jobs run at a time."""
        threads = self.experiment.threads or max(1, usable_cores() // parallel)
        return replace(self, experiment=self.experiment.replace(threads=threads))

    @property
    def failure(self) -> str | None:
        """Why it has no result, if it diverged."""
        return reason(self.out)

    @property
    def is_done(self) -> bool:
        """Whether there is nothing left to do."""
        folder = RunFolder(self.out)
        complete = folder.summary() is not None and not folder.goes_on_for(self.experiment)
        return self.failure is not None or complete


def reason(folder: Path) -> str | None:
    """Why the run in a folder has no result, if it diverged."""
    path = folder / DIVERGED_FILE
    if not os.path.lexists(path):
        return None
    try:
        return read_text(path, SMALL)
    except Unreadable as error:
        raise ParleyError(f"out: {path} is damaged ({error}); remove it to try again") from None


def _execute(job: Job, resume: bool, watch: Watcher) -> None:
    try:
        with trackers.logging(job.log, job.experiment, job.out, watch) as watch:
            resume = resume and job.out.exists()
            launch.execute(job.experiment, problems.problem, job.out, resume, watch)
    except BadValue:
        raise
    except ParleyError as error:
        if job.may_diverge and isinstance(error, Diverged):
            write_atomically(job.out / DIVERGED_FILE, str(error))
            return
        raise error.saying(f"{job.label}, seed {job.experiment.seed}: {error}") from None


LOGGED = 60.0
"""Seconds between lines about a run, where there is no terminal."""
NEWS = 0.5
"""Seconds between steps reported to a bar: runs may make hundreds per second."""


class _Board:
    """One bar per algorithm for all its seeds; plain lines where there is no terminal."""

    def __init__(self, pending: Sequence[Job]) -> None:
        self._bars = bars() if console.is_terminal else None
        self._epochs = {job.out: 0.0 for job in pending}
        self._tasks: dict[str, TaskID] = {}
        self._pending = pending
        self._first: dict[
            Path, tuple[float, float]
        ] = {}  # time of the first event, and epochs done by then
        self._said: dict[Path, float] = {}
        if self._bars:
            for label in dict.fromkeys(job.label for job in pending):
                total = sum(job.experiment.epochs for job in pending if job.label == label)
                self._tasks[label] = self._bars.add_task(label, total=total, status="")

    @contextmanager
    def live(self) -> Iterator[None]:
        if self._bars:
            with self._bars:
                yield
        else:
            yield

    def show(self, job: Job, event: Event) -> None:
        """Shows an event of a run."""
        ended = False
        match event:
            case StepDone():
                done, record = event.step / event.steps * job.experiment.epochs, None
            case EpochDone():
                done, record, ended = event.epoch, event.record, event.last
            case _:
                return
        self._epochs[job.out] = job.experiment.epochs if ended else done
        if self._bars:
            task = self._tasks[job.label]
            alike = (other for other in self._pending if other.label == job.label)
            self._bars.update(task, completed=sum(self._epochs[other.out] for other in alike))
            if record:
                self._bars.update(task, status=brief(record))
        else:
            self._line(job, done, record, ended)

    def _line(self, job: Job, done: float, record: Record | None, ended: bool) -> None:
        """Prints the end of a run, and before it now and then a line for the log of a long one."""
        now = time.monotonic()
        began, before = self._first.setdefault(job.out, (now, done))
        last = self._said.setdefault(job.out, now)
        if not ended and now - last < LOGGED:
            return
        self._said[job.out] = now
        whole = done == job.experiment.epochs
        words = [] if whole else [f"epoch {done:.4g} of {job.experiment.epochs}"]
        words += [status(record)] if record else []
        if not ended and done > before:
            left = (job.experiment.epochs - done) * (now - began) / (done - before)
            words.append(f"{timedelta(seconds=round(left))} left")
        line = f"{job.label}, seed {job.experiment.seed}: {', '.join(words)}"
        console.print(line, highlight=False, soft_wrap=True)


def _seldom(send: Watcher) -> Watcher:
    """Passes on every epoch, but only an occasional step."""
    last = time.monotonic()

    def watch(event: Event) -> None:
        nonlocal last
        if isinstance(event, StepDone):
            if time.monotonic() - last < NEWS:
                return
            last = time.monotonic()
        send(event)

    return watch


def one_by_one(pending: Sequence[Job], resume: bool) -> None:
    """Runs jobs in this process."""
    board = _Board(pending)
    with board.live():
        for job in pending:
            _execute(job, resume, _seldom(partial(board.show, job)))


_events: Any = None  # in a child: where to report what happens


def _start_child(environment: dict[str, str], events: Any) -> None:
    follow_parent(environment)
    global _events
    _events = events


def _run_in_child(number: int, job: Job, resume: bool) -> None:
    _execute(job, resume, _seldom(lambda event: _events.put((number, event))))


def side_by_side(pending: Sequence[Job], parallel: int, resume: bool) -> None:
    """Runs jobs in processes of their own, `parallel` at a time."""
    context = launch.context(__name__)
    events = context.Queue()
    board = _Board(pending)

    def show_news() -> None:
        with suppress(Empty):
            while True:
                number, event = events.get_nowait()
                board.show(pending[number], event)

    with (
        ProcessPoolExecutor(parallel, context, _start_child, (dict(os.environ), events)) as pool,
        board.live(),
    ):
        futures = [pool.submit(_run_in_child, n, job, resume) for n, job in enumerate(pending)]
        children = list(pool._processes.values())
        try:
            unfinished = set(futures)
            while unfinished:
                done, unfinished = wait(unfinished, timeout=0.1, return_when=FIRST_EXCEPTION)
                show_news()
                for future in done:
                    future.result()
        except BaseException as error:
            # The other runs stop where they are: their checkpoints can be resumed.
            pool.shutdown(wait=False, cancel_futures=True)
            for child in children:
                child.terminate()
            if isinstance(error, BrokenProcessPool):
                raise ParleyError(
                    "the process of a run was killed; continue with --resume"
                ) from None
            for child in children:
                child.join()
            for job in pending:
                mark_stopped(job.out)
            raise
