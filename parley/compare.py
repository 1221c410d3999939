"""Many runs side by side: algorithms times seeds, several at once, as one table and one picture."""

import multiprocessing
import os
import statistics
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from queue import Empty
from typing import Any

from rich.progress import TaskID
from rich.table import Table

from parley import algorithms, launch, run
from parley.draw import curves_picture
from parley.errors import BadValue, ParleyError
from parley.experiment import Experiment
from parley.folder import RunFolder, write_atomically
from parley.progress import bars, console, megabytes, status
from parley.run import EpochDone, Event, Record


def parse_algorithms(specs: str, options: dict[str, Any]) -> list[dict[str, Any]]:
    """Algorithms as `Experiment.of` takes them, from ``dpsgd,ngc:alpha=0:momentum=0.9,ngc``.

    `options` go to every algorithm that has them; those written behind a name win.

    >>> parse_algorithms("dpsgd,ngc:alpha=0", {"momentum": 0.9, "alpha": 0.5})
    [{'name': 'dpsgd', 'momentum': 0.9}, {'name': 'ngc', 'momentum': 0.9, 'alpha': '0'}]
    """
    chosen = []
    names = ",".join(algorithms.ALGORITHMS) if specs == "all" else specs
    for spec in (s.strip() for s in names.split(",") if s.strip()):
        name, *settings = spec.split(":")
        pairs = [setting.partition("=")[::2] for setting in settings]
        if not all(key and value for key, value in pairs):
            raise BadValue("algorithms", spec, "name or name:option=value:option=value")
        known = algorithms.ALGORITHMS.get(name)
        fitting = {k: v for k, v in options.items() if known and k in known.model_fields}
        chosen.append({"name": name, **fitting, **dict(pairs)})
    for option in options:
        if not any(option in choice for choice in chosen):
            raise BadValue(option, options[option], "an option of one of the algorithms compared")
    if not chosen:
        raise BadValue("algorithms", specs, "at least one of " + ", ".join(algorithms.ALGORITHMS))
    return chosen


@dataclass(frozen=True)
class Job:
    """One run of a comparison."""

    label: str
    experiment: Experiment
    out: Path


def jobs(experiments: Sequence[Experiment], seeds: int, out: Path) -> list[Job]:
    """Every experiment with so many seeds, each with a folder of its own."""
    made, labels = [], set()
    for experiment in experiments:
        label = experiment.algorithm.label
        while label in labels:
            label += "'"
        labels.add(label)
        for seed in range(experiment.seed, experiment.seed + seeds):
            name = label.lower().replace(" ", "-").replace("α=", "alpha").replace("'", "-again")
            made.append(Job(label, experiment.replace(seed=seed), out / name / f"seed-{seed}"))
    return made


def compare(todo: Sequence[Job], parallel: int, resume: bool) -> dict[str, list[list[Record]]]:
    """Runs all jobs, `parallel` at a time; returns every label's records, seed by seed."""
    # Bad input is found here, before anything is written or started.
    for job in todo:
        if not resume and job.out.exists():
            raise ParleyError(
                f"out: {str(job.out)!r} exists; add --resume to go on, or choose another folder"
            )
    problem = run.problem(todo[0].experiment)
    for job in todo:
        job.experiment.algorithm.check(problem.topology)
    if problem.note:
        console.print(f"note: {problem.note}", highlight=False)
    pending = [job for job in todo if RunFolder(job.out).summary() is None]
    if parallel == 1 or len(pending) <= 1:
        _one_by_one(pending, resume)
    elif pending:
        _side_by_side(pending, min(parallel, len(pending)), resume)
    results: dict[str, list[list[Record]]] = {}
    for job in todo:
        results.setdefault(job.label, []).append(RunFolder(job.out).records())
    return results


def _execute(job: Job, resume: bool, watch: launch.Watcher) -> None:
    launch.execute(job.experiment, run.problem, job.out, resume and job.out.exists(), watch)


class _Board:
    """A bar for each algorithm, all its seeds together; plain lines where there is no terminal."""

    def __init__(self, pending: Sequence[Job]) -> None:
        self._bars = bars() if console.is_terminal else None
        self._tasks: dict[str, TaskID] = {}
        if self._bars:
            for job in pending:
                if job.label not in self._tasks:
                    self._tasks[job.label] = self._bars.add_task(job.label, total=0, status="")
                task = self._bars.tasks[self._tasks[job.label]]
                total = (task.total or 0) + job.experiment.epochs
                self._bars.update(self._tasks[job.label], total=total)

    @contextmanager
    def live(self) -> Iterator[None]:
        if self._bars:
            with self._bars:
                yield
        else:
            yield

    def epoch(self, job: Job, event: EpochDone) -> None:
        """A run has made an epoch."""
        if self._bars:
            self._bars.update(self._tasks[job.label], advance=1)
            if event.record:
                self._bars.update(self._tasks[job.label], status=status(event.record))
        elif event.record and event.epoch == job.experiment.epochs:
            seed = job.experiment.seed
            console.print(f"{job.label}, seed {seed}: {status(event.record)}", highlight=False)


def _one_by_one(pending: Sequence[Job], resume: bool) -> None:
    board = _Board(pending)
    with board.live():
        for job in pending:

            def watch(event: Event, job: Job = job) -> None:
                if isinstance(event, EpochDone):
                    board.epoch(job, event)

            _execute(job, resume, watch)


_events: Any = None  # in a child: where to report epochs


def _start_child(events: Any) -> None:
    import signal

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    global _events
    _events = events


def _run_in_child(number: int, job: Job, resume: bool) -> None:
    def watch(event: Event) -> None:
        if isinstance(event, EpochDone):
            _events.put((number, event))

    _execute(job, resume, watch)


def _side_by_side(pending: Sequence[Job], parallel: int, resume: bool) -> None:
    context = multiprocessing.get_context("spawn")
    events = context.Queue()
    board = _Board(pending)
    with (
        ProcessPoolExecutor(parallel, context, _start_child, (events,)) as pool,
        board.live(),
    ):
        futures = [pool.submit(_run_in_child, n, job, resume) for n, job in enumerate(pending)]
        try:
            while not all(future.done() for future in futures):
                _drain(events, pending, board)
                failed = next((f for f in futures if f.done() and f.exception()), None)
                if failed:
                    break
            for future in as_completed(futures) if not failed else [failed]:
                future.result()
            _drain(events, pending, board, wait=False)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for process in list(pool._processes.values()):
                process.terminate()
            raise


def _drain(events: Any, pending: Sequence[Job], board: _Board, wait: bool = True) -> None:
    deadline = time.monotonic() + (0.2 if wait else 0.05)
    while (left := deadline - time.monotonic()) > 0:
        try:
            number, event = events.get(timeout=left)
        except Empty:
            return
        board.epoch(pending[number], event)


def rows(results: dict[str, list[list[Record]]]) -> list[dict[str, Any]]:
    """One row a method: means over seeds, and the deviation where there are several."""
    made = []
    for label, runs in results.items():
        last = [records[-1] for records in runs]
        row: dict[str, Any] = {"label": label, "seeds": len(last)}
        for key in (
            "accuracy_mean_model", "accuracy_own", "accuracy_own_min", "accuracy_after_gossip",
            "consensus_distance", "bytes_models", "bytes_cross_gradients", "seconds",
        ):  # fmt: skip
            values = [record[key] for record in last]
            row[key] = statistics.fmean(values)
            row[f"{key}_std"] = statistics.stdev(values) if len(values) > 1 else 0.0
        row["megabytes_sent"] = statistics.fmean(megabytes(record) for record in last)
        made.append(row)
    return made


COLUMNS = (
    ("averaged model, %", "accuracy_mean_model", 100, ".1f"),
    ("own models, %", "accuracy_own", 100, ".1f"),
    ("after gossip, %", "accuracy_after_gossip", 100, ".1f"),
    ("distance", "consensus_distance", 1, ".3g"),
)


def _cells(row: dict[str, Any]) -> list[str]:
    cells = [row["label"]]
    for _, key, factor, form in COLUMNS:
        cell = f"{factor * row[key]:{form}}"
        if row["seeds"] > 1:
            cell += f" ± {factor * row[key + '_std']:{form}}"
        cells.append(cell)
    return [*cells, f"{row['megabytes_sent']:.2f}", f"{row['seconds']:.1f}"]


HEADINGS = ["", *(heading for heading, *_ in COLUMNS), "MB sent", "seconds"]


def table(made: Sequence[dict[str, Any]], title: str) -> Table:
    """The rows for a terminal."""
    shown = Table(title=title, title_justify="left")
    for number, heading in enumerate(HEADINGS):
        shown.add_column(heading, justify="left" if number == 0 else "right", no_wrap=number == 0)
    for row in made:
        shown.add_row(*_cells(row))
    return shown


def markdown(made: Sequence[dict[str, Any]]) -> str:
    """The rows for a document."""
    lines = [HEADINGS, ["---", *("---:" for _ in HEADINGS[1:])], *(_cells(row) for row in made)]
    return "".join("| " + " | ".join(cells) + " |\n" for cells in lines)


def write(out: Path, results: dict[str, list[list[Record]]], made: list[dict[str, Any]]) -> None:
    """The table and the picture, beside the runs."""
    write_atomically(out / "table.md", markdown(made))
    curves_picture(results, out / "curves.png")


def default_parallel() -> int:
    """As many runs at once as there are cores to use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
