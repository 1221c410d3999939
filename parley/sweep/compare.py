"""Many runs side by side: algorithms times seeds, in parallel, as one table and one picture."""

import logging
import re
import signal
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
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

from parley import algorithms
from parley.cluster import launch
from parley.cluster.worker import Watcher
from parley.compute.threads import usable_cores
from parley.errors import BadValue, Diverged, ParleyError
from parley.experiment import Experiment, on_top
from parley.files import write_atomically
from parley.results.curves import curves_picture
from parley.results.table import Table, mean_and_spread
from parley.store.enclosed import enclosed
from parley.store.folder import EXPERIMENT, RunFolder
from parley.store.status import mark_stopped
from parley.training import run
from parley.training.events import EpochDone, Event, StepDone
from parley.training.record import Record, value
from parley.training.run import Run
from parley.watch import trackers
from parley.watch.log import console
from parley.watch.progress import bars, brief, megabytes, status
from parley.wire.local import Local
from parley.wire.placement import spread

logger = logging.getLogger(__name__)

PAPER = "dpsgd,ngc:alpha=0,cga,ngc,compcga,compngc"
"""The six methods of the NGC paper's tables."""


@dataclass(frozen=True)
class Method:
    """An algorithm to compare, with the settings written after its name."""

    name: str
    settings: dict[str, str]
    """Hyper-parameters and any other fields of an experiment; they override the common ones."""

    @property
    def key(self) -> str:
        """The key for its tuned settings: its spec without the values that tuning may set."""
        kept = sorted((k, v) for k, v in self.settings.items() if k not in TUNABLE)
        return ":".join([self.name, *(f"{k}={v}" for k, v in kept)])

    def experiment(self, common: Mapping[str, Any]) -> Experiment:
        """With these options, leaving out those that the algorithm does not have.

        >>> [ngc] = parse_algorithms("ngc:lr=0.01:alpha=0")
        >>> made = ngc.experiment({"lr": 0.2, "batch": 16, "alpha": 0.5, "codec": "sign"})
        >>> made.lr, made.batch, made.algorithm.alpha
        (0.01, 16, 0.0)
        """
        return Experiment.of(**on_top(common, {"algorithm": {"name": self.name, **self.settings}}))


TUNABLE = ("lr", "gamma")
"""What tuning may set."""


def parse_algorithms(specs: str) -> list[Method]:
    """What to compare, from ``dpsgd,ngc:alpha=0:lr=0.01,ngc``; ``all`` stands for every algorithm.

    >>> parse_algorithms("choco:codec=topk:0.01,dpsgd:topology=circulant:1,5")[1]
    Method(name='dpsgd', settings={'topology': 'circulant:1,5'})
    """
    chosen = []
    names = ",".join(algorithms.ALGORITHMS) if specs == "all" else specs
    # A comma may be part of a value, as in circulant:1,5: then no algorithm's name follows it.
    for spec in (s.strip() for s in re.split(r",(?!\s*[\d.]|[^:,]*=)", names) if s.strip()):
        # A value, or the codec at the end of a name, may itself contain a colon: codec=topk:0.01.
        name, *settings = re.split(r":(?=[^:=]*=)", spec)
        pairs = [setting.partition("=")[::2] for setting in settings]
        if not all(key and value for key, value in pairs) or ":" in name.partition("+")[0]:
            raise BadValue("algorithms", spec, "name or name:option=value:option=value")
        written = [key.strip().replace("-", "_") for key, _ in pairs]
        for key in written:
            if written.count(key) > 1:
                raise BadValue("algorithms", spec, "each option once", f"{key} is given twice")
            if key in ("name", "algorithm"):
                raise BadValue("algorithms", spec, "the algorithm's name first, without a key")
        values = [value.strip() for _, value in pairs]
        chosen.append(Method(name, dict(zip(written, values, strict=True))))
    if not chosen:
        raise BadValue("algorithms", specs, "at least one of " + ", ".join(algorithms.ALGORITHMS))
    return chosen


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
        path = self.out / DIVERGED_FILE
        return path.read_text(encoding="utf-8") if path.exists() else None

    @property
    def is_done(self) -> bool:
        """Whether there is nothing left to do."""
        folder = RunFolder(self.out)
        complete = folder.summary() is not None and not folder.goes_on_for(self.experiment)
        return self.failure is not None or complete


def jobs(
    experiments: Sequence[Experiment],
    seeds: int,
    out: Path,
    log: tuple[str, ...] = (),
    names: Sequence[str] | None = None,
) -> list[Job]:
    """Every experiment with each of the seeds, each in its own folder.

    `names` are their labels, if those are not to be derived from the experiments.
    """
    made = []
    for label, experiment in zip(names or labels(experiments), experiments, strict=True):
        name = slug(label)
        for seed in range(experiment.seed, experiment.seed + seeds):
            where = out / name / f"seed-{seed}"
            made.append(Job(label, experiment.replace(seed=seed), where, log))
    return made


def slug(label: str) -> str:
    """A label as the name of a folder.

    >>> slug("NGC α=0.5"), slug("dirichlet:0.1")
    ('ngc-alpha-0.5', 'dirichlet-0.1')
    """
    return re.sub(r"[^a-z0-9.]+", "-", label.lower().replace("α=", "alpha=")).strip("-")


def labels(experiments: Sequence[Experiment]) -> list[str]:
    """A name for each: its algorithm, and how it differs from the table's title, from others with
    the same algorithm, or from its algorithm's defaults where not all of them do.

    >>> labels([Experiment.of(algorithm="ngc"), Experiment.of(algorithm="ngc", momentum=0.9)])
    ['NGC', 'NGC momentum=0.9']
    >>> labels([Experiment.of(algorithm=a, lr=lr) for a, lr in [("ngc", 0.1), ("dpsgd", 0.01)]])
    ['NGC', 'D-PSGD lr=0.01']
    >>> labels([Experiment.of(algorithm="ngc", lr=lr) for lr in (0.1, 0.01)])
    ['NGC lr=0.1', 'NGC lr=0.01']
    """
    alike: dict[str, list[Experiment]] = {}
    for experiment in experiments:
        alike.setdefault(experiment.algorithm.label, []).append(experiment)
    made: list[str] = []
    for experiment in experiments:
        label = experiment.algorithm.label
        same = alike[label]
        for name in differing(experiments):
            mine, others = getattr(experiment, name), [getattr(o, name) for o in same]
            if mine != usual([getattr(e, name) for e in experiments]) or _undecided(others):
                label += f" {name}={mine}"
        for name, mine in _peculiar(experiment, experiments).items():
            label += f" {name}={mine}"
        if label in made:
            raise BadValue("algorithms", label, "each algorithm once", "it is given twice")
        made.append(label)
    return made


def differing(experiments: Sequence[Experiment]) -> list[str]:
    """The fields, apart from the algorithm's, in which these differ."""
    fields = [name for name in Experiment.model_fields if name != "algorithm"]
    first = experiments[0]
    return [f for f in fields if any(getattr(e, f) != getattr(first, f) for e in experiments)]


def usual(values: Sequence[Any]) -> Any:
    """The most frequent value; the first one if there is a tie.

    >>> usual([2, 1, 1]), usual([2, 1])
    (1, 2)
    """
    return max(values, key=values.count)


def _undecided(values: Sequence[Any]) -> bool:
    """Whether no single value is the most frequent."""
    most = usual(values)
    return any(value != most and values.count(value) == values.count(most) for value in values)


def _peculiar(experiment: Experiment, experiments: Sequence[Experiment]) -> dict[str, Any]:
    """The hyper-parameters that are not the algorithm's defaults, unless all experiments that have
    them share them or the label already shows them."""
    algorithm = experiment.algorithm
    defaults = getattr(algorithm, "kind", type(algorithm)).options()
    found = {}
    for name, mine in algorithm.settings().items():
        shared = all(e.algorithm.settings().get(name, mine) == mine for e in experiments)
        said = name == "alpha" and "α=" in algorithm.label
        if mine != defaults[name].default and not shared and not said:
            found[name] = mine
    return found


def title(experiments: Sequence[Experiment], seeds: int, *more: str) -> str:
    """The settings that most of them share; rows name what differs."""
    most = {f: usual([getattr(e, f) for e in experiments]) for f in Experiment.model_fields}
    shown = {"data", "agents", "topology", "epochs"}
    said = [most["data"], f"{most['agents']} agents", most["topology"], *more]
    said.append(f"{most['epochs']} epoch{'s' * (most['epochs'] > 1)}")
    said += [
        f"{name} {most[name]}"
        for name in differing(experiments)
        if name not in shown and most[name] not in more
    ]
    return ", ".join([*said, f"{seeds} seed{'s' * (seeds > 1)}"])


def compare(todo: Sequence[Job], parallel: int, out: Path, resume: bool) -> None:
    """Runs all jobs, `parallel` at a time; finished ones are left as they are."""
    # Invalid input is found here, before anything is written or started.
    if out.exists() and not out.is_dir():
        raise BadValue("out", str(out), "a folder", "it is a file")
    if not resume and out.exists() and any(out.iterdir()):
        because = "it is not empty; use --resume to continue a comparison"
        raise BadValue("out", str(out), "a new or empty folder", because)
    for job in todo:
        if (job.out / EXPERIMENT).exists():
            kept = enclosed(job.experiment, run.topology_of(job.experiment))
            RunFolder(job.out).check(kept.experiment, resume, kept.files)
    settings = {(job.label, job.experiment.partition): job.experiment for job in todo}
    for experiment in settings.values():
        check_graph(experiment)
    notes: dict[str, None] = {}
    for experiment in {_problem_of(job.experiment): job.experiment for job in todo}.values():
        problem = run.problem(experiment)
        Run(experiment, problem, Local(spread(problem.topology, 1)))
        notes[problem.note] = None
    for note in filter(None, notes):
        logger.info("%s", note)

    pending = [job for job in todo if not job.is_done]
    if parallel == 1 or len(pending) <= 1:
        _one_by_one(pending, resume)
    else:
        parallel = min(parallel, len(pending))
        _side_by_side([job.on_a_share(parallel) for job in pending], parallel, resume)


def _problem_of(experiment: Experiment) -> str:
    """The part of an experiment that determines its data, network and graph."""
    apart = {"algorithm", "lr", "lr_decay", "epochs", "seed", "evaluate_every", "gossip_rounds"}
    apart |= {"gamma_decay", "stop_when", "checkpoint_every", "keep"}
    return experiment.model_dump_json(exclude=apart)


REMEDIES = {
    "topology": ["topology=chain", "topology=ring", "topology=full"],
    "weights": ["weights=metropolis", "weights=sinkhorn", "weights=push", "topology=ring"],
}
"""For a field that an algorithm refuses, what can be written after its name instead."""


def check_graph(experiment: Experiment) -> None:
    """Refuses a graph that the algorithm cannot use, and says how to give it a different one."""
    try:
        experiment.algorithm.check(run.topology_of(experiment))
    except BadValue as error:
        for remedy in REMEDIES.get(error.field, []):
            name, _, value = remedy.partition("=")
            with suppress(BadValue):
                other = experiment.replace(**{name: value})
                other.algorithm.check(run.topology_of(other))
                raise ParleyError(
                    f"{error}; for it alone: {other.algorithm.name}:{remedy}"
                ) from None
        raise


def _execute(job: Job, resume: bool, watch: Watcher) -> None:
    try:
        with trackers.logging(job.log, job.experiment, job.out, watch) as watch:
            resume = resume and job.out.exists()
            launch.execute(job.experiment, run.problem, job.out, resume, watch)
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
        match event:
            case StepDone():
                done, record = event.step / event.steps * job.experiment.epochs, None
            case EpochDone():
                done, record = event.epoch, event.record
            case _:
                return
        self._epochs[job.out] = done
        if self._bars:
            task = self._tasks[job.label]
            alike = (other for other in self._pending if other.label == job.label)
            self._bars.update(task, completed=sum(self._epochs[other.out] for other in alike))
            if record:
                self._bars.update(task, status=brief(record))
        else:
            self._line(job, done, record)

    def _line(self, job: Job, done: float, record: Record | None) -> None:
        """Prints the end of a run, and before it now and then a line for the log of a long one."""
        now = time.monotonic()
        began, before = self._first.setdefault(job.out, (now, done))
        last = self._said.setdefault(job.out, now)
        ended = record is not None and done == job.experiment.epochs
        if not ended and now - last < LOGGED:
            return
        self._said[job.out] = now
        words = [] if ended else [f"epoch {done:.4g} of {job.experiment.epochs}"]
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


def _one_by_one(pending: Sequence[Job], resume: bool) -> None:
    board = _Board(pending)
    with board.live():
        for job in pending:
            _execute(job, resume, _seldom(partial(board.show, job)))


_events: Any = None  # in a child: where to report what happens


def _start_child(events: Any) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C and stops this process
    launch.end_with_parent()
    global _events
    _events = events


def _run_in_child(number: int, job: Job, resume: bool) -> None:
    _execute(job, resume, _seldom(lambda event: _events.put((number, event))))


def _side_by_side(pending: Sequence[Job], parallel: int, resume: bool) -> None:
    context = launch.context(__name__)
    events = context.Queue()
    board = _Board(pending)

    def show_news() -> None:
        with suppress(Empty):
            while True:
                number, event = events.get_nowait()
                board.show(pending[number], event)

    with ProcessPoolExecutor(parallel, context, _start_child, (events,)) as pool, board.live():
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


FIGURES = (
    "loss", "accuracy_mean_model", "accuracy_own", "accuracy_own_min", "accuracy_own_max",
    "accuracy_after_gossip", "consensus_distance", "bytes_models", "bytes_cross_gradients",
    "seconds", "gradients_per_second", "peak_memory_mb",
)  # fmt: skip
"""What is averaged over seeds."""
NETWORK = "seconds_network"
"""The same, where a network was simulated (``--links``)."""


def rows(done: Sequence[Job]) -> list[dict[str, Any]]:
    """One row per method: means over seeds, each with its standard deviation (n - 1)."""
    made = []
    for label in dict.fromkeys(job.label for job in done):
        runs = [job for job in done if job.label == label]
        ends = [RunFolder(job.out).records()[-1] for job in runs]
        first = runs[0].experiment
        row: dict[str, Any] = {"algorithm": first.algorithm.name, "label": label}
        row |= {"agents": first.agents, "topology": first.topology, "lr": first.lr}
        row |= {"epochs": first.epochs, "seeds": len(runs)}
        row["momentum"] = first.algorithm.momentum_label
        network = (NETWORK,) if all(NETWORK in end for end in ends) else ()
        for key in FIGURES + network:
            values = [found for end in ends if (found := value(end, key)) is not None]
            row[key] = statistics.fmean(values)
            row[f"{key}_std"] = statistics.stdev(values) if len(values) > 1 else 0.0
        made.append(row)
    return made


COLUMNS = (
    ("averaged\nmodel, %", "accuracy_mean_model", 100, ".1f", ".1f"),
    ("own\nmodels, %", "accuracy_own", 100, ".1f", ".1f"),
    ("after\ngossip, %", "accuracy_after_gossip", 100, ".1f", ".1f"),
    ("consensus\ndistance", "consensus_distance", 1, ".3g", ".1g"),
)


def table(made: Sequence[dict[str, Any]]) -> Table:
    """One line per method; with the momentum of each where they are not all the same."""
    seconds = "network\nseconds" if any(NETWORK in row for row in made) else "seconds"
    headings = ["", *(heading for heading, *_ in COLUMNS), "MB sent\nper agent", seconds]
    cells = [_cells(row) for row in made]
    momenta = [row.get("momentum", "none") for row in made]
    if len(set(momenta)) > 1:
        headings.append("momentum")
        cells = [[*line, momentum] for line, momentum in zip(cells, momenta, strict=True)]
    return Table(headings, cells)


def _cells(row: dict[str, Any]) -> list[str]:
    cells = [row["label"]]
    for _, key, factor, form, form_of_std in COLUMNS:
        std = factor * row[f"{key}_std"] if row["seeds"] > 1 else None
        cells.append(mean_and_spread(factor * row[key], std, form, form_of_std))
    return [*cells, f"{megabytes(row):.2f}", f"{row.get(NETWORK, row['seconds']):.1f}"]


def write(out: Path, done: Sequence[Job], made: list[dict[str, Any]]) -> None:
    """Writes the table and the picture next to the runs."""
    write_atomically(out / "table.md", table(made).markdown())
    curves: dict[str, list[Any]] = {}
    for job in done:
        curves.setdefault(job.label, []).append(RunFolder(job.out).records())
    curves_picture(curves, out / "curves.png")
