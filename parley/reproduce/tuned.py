"""Studies that tune: every method gets the same trials, then runs at the settings that won.

OUT/<setting>/<method>/ holds a method's trials and runs, OUT/<setting>.jsonl the records of all
finished runs of a setting, and OUT/<setting>-trials.jsonl what the trials found. Both files keep
the methods that a command does not name. Runs that are recorded are not made again, even if their
folders are gone: with more seeds, only the new ones run.
"""

import json
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from parley.errors import BadValue
from parley.experiment import Experiment
from parley.files import write_atomically
from parley.reproduce.campaign import Order, version_of
from parley.reproduce.cells import Cell, Form, key_of, parsed
from parley.reproduce.study import Tuning
from parley.store.folder import RunFolder
from parley.sweep import compare, field, tune
from parley.sweep.compare import slug
from parley.sweep.jobs import Job
from parley.training.record import value

TRIAL_EPOCHS_BEFORE = 5
"""In records that do not say how long their trials were."""
KEPT = (
    "epoch", "step", "accuracy_mean_model", "accuracy_own", "consensus_distance", "bytes_models",
    "bytes_cross_gradients", "seconds", "seconds_network",
)  # fmt: skip
"""The fields of a record that tables and pictures need."""
TUNED = ("lr", "gamma")
"""What the trials find."""
ABOUT = (*TUNED, "momentum", "epochs", "fraction")
"""What a record says about its run for them."""


@dataclass(frozen=True)
class Task:
    """A method in a setting, tuned and run as an order says."""

    cell: Cell
    order: Order
    out: Path

    @property
    def tuning(self) -> Tuning:
        """The study's, as far as the order leaves it."""
        asked = {"trials": self.order.trials, "epochs": self.order.trial_epochs}
        given = {name: number for name, number in asked.items() if number is not None}
        assert self.cell.study.tune
        return self.cell.study.tune.model_copy(update=given)

    @property
    def asked(self) -> Experiment:
        """The experiment, whether or not the graph suits it."""
        o, more = self.order, {}
        if o.test_fraction is not None:
            more = {"test_fraction": o.test_fraction}
        form = Form("", o.epochs, o.fraction)
        return self.cell.experiment(form, data_root=o.data_root, **more)

    @property
    def key(self) -> str:
        """The method's name with all of its settings: a γ that is given is not tuned."""
        return key_of(parsed(self.cell.study.methods[self.cell.method].algorithm))

    @property
    def figures(self) -> list[str]:
        """What tables and pictures show."""
        study = self.cell.study
        return [*study.table.columns, *(picture.field for picture in study.pictures.values())]

    @property
    def place(self) -> Path:
        """The folder of its trials and runs."""
        return self.out / self.cell.setting / slug(self.key)

    @property
    def budget(self) -> dict[str, Any]:
        """What all records of a file have in common."""
        e = self.asked
        same = {"epochs": e.epochs, "fraction": e.fraction, "test_fraction": e.test_fraction}
        return same | {"trials": self.tuning.trials, "trial_epochs": self.tuning.epochs}

    def file(self, of: str = "") -> Path:
        """The records of its setting, or what the trials there found."""
        return self.out / f"{self.cell.setting}{of}.jsonl"


def progress(task: Task) -> tuple[int, float]:
    """How many seeds are recorded, and how much is left, in runs."""
    lines = [line for line in _lines_if_any(task.file()) if line["method"] == task.key]
    done = len({line["seed"] for line in lines})
    trials = 0.0 if lines else task.tuning.trials * task.tuning.epochs / task.asked.epochs
    return done, max(0, task.order.seeds - done) + trials


class Outcome(NamedTuple):
    """What became of a method in a setting."""

    label: str
    refusal: str = ""
    """Why it was not run there."""
    diverged: bool = False
    """Whether every trial, or a run at the winning settings, diverged."""


def run(chosen: Sequence[Cell], order: Order, parallel: int, out: Path) -> Iterator[
    tuple[Cell, Outcome]
]:  # fmt: skip
    """Runs what is not there yet, method by method; the records are up to date after each. A shard
    leaves only folders, from which the command without it makes the records."""
    tasks = [Task(cell, order, out) for cell in chosen]
    _check_methods(tasks)  # nothing begins before everything is known to be valid
    for task in tasks:
        _check_records(task)
    for task in order.shard.share(tasks):
        yield task.cell, run_method(task, parallel)


def _check_methods(tasks: Sequence[Task]) -> None:
    """Refuses settings that are not the methods' own, and methods that cannot be told apart."""
    seen: set[tuple[str, str]] = set()
    common = Experiment.model_fields.keys() - {"variant"}
    for task in tasks:
        given = parsed(task.cell.study.methods[task.cell.method].algorithm)
        if others := sorted(common & given.settings.keys()):
            why = f"{given.name} has {', '.join(others)}, which is tuned or the same for all"
            raise BadValue("methods", task.key, "settings of the algorithm itself", why)
        same = (task.cell.setting, task.cell.label)
        if same in seen:
            why = f"{task.cell.label} is given twice"
            raise BadValue("methods", task.key, "each method once", why)
        seen.add(same)


def _check_records(task: Task) -> None:
    """Refuses to add to records of other experiments, and to replace more seeds by fewer."""
    _lines_if_any(task.file("-trials"))  # damaged ones are refused
    budget = task.budget
    for line in _lines_if_any(task.file()):
        known = {"trial_epochs": TRIAL_EPOCHS_BEFORE} | line
        differing = [f"{k} {known[k]}" for k in budget if k in known and known[k] != budget[k]]
        if line["method"] == task.key and (line["seed"] or 0) >= task.order.seeds:
            differing.append(f"seed {line['seed']} of {line['label']}")
        if differing:
            why = f"{task.file().name} has runs with {', '.join(differing)}"
            raise BadValue("out", str(task.out), "a folder for this budget alone", why)


def run_method(task: Task, parallel: int) -> Outcome:
    """Tunes a method and runs it with every seed; nothing that is recorded is run again."""
    try:
        asked = field.fitting(task.asked)
    except BadValue as error:
        return Outcome(task.key, refusal=str(error))
    about: dict[str, Any] = {"method": task.key, "label": task.cell.label}
    lines = [line for line in _lines_if_any(task.file()) if line["method"] == task.key]
    if lines:
        best = {name: lines[0][name] for name in TUNED if lines[0].get(name) is not None}
    else:
        best = _search(task, asked, about, parallel)
    budget = task.budget
    about |= {name: budget[name] for name in ("trials", "trial_epochs", "test_fraction")}
    if not best:  # every trial has diverged
        about |= {"epochs": asked.epochs, "fraction": asked.fraction}
        lines = [about | {"seed": None, "diverged": True}]
        _replace_lines(task, "", lines)
    elif runs := _runs(asked.replace(**best), task, {line["seed"] for line in lines}):
        compare.compare(runs, parallel, task.place / "runs", resume=True)
        lines += [line for job in runs for line in run_lines(about, job, task.figures)]
        _replace_lines(task, "", lines)
    return Outcome(task.key, diverged=any(line["diverged"] for line in lines))


def _search(
    task: Task, asked: Experiment, about: Mapping[str, Any], parallel: int
) -> dict[str, float]:
    """The settings that won; none if every trial has diverged."""
    short, where = asked.replace(epochs=task.tuning.epochs), task.place / "trials"
    trials = tune.plan([short], task.tuning.trials, where, rates(task.tuning, asked), [task.key])
    tune.tune(trials, parallel, where, resume=True)
    _replace_lines(task, "-trials", [_tried(about, trial) for trial in trials])
    [won] = tune.winners(trials).values() or [{}]
    return won[task.key].settings if won else {}


def rates(tuning: Tuning, made: Experiment) -> tuple[float, float]:
    """The range of learning rates for a method."""
    options = made.algorithm.settings()
    if "beta1" in options:
        return tuning.rates["adaptive"]
    return tuning.rates["momentum" if options.get("momentum") else "sgd"]


def _tried(of_method: Mapping[str, Any], trial: tune.Trial) -> dict[str, Any]:
    tried, lost = trial.job.experiment, trial.job.failure is not None
    about = {**of_method, "trial": trial.number, "seed": tried.seed, **trial.settings}
    about |= {"epochs": tried.epochs, "diverged": lost}
    return about if lost else about | {"accuracy_held_out": round(trial.score[0], 5)}


def _runs(tuned: Experiment, task: Task, recorded: Container[int]) -> list[Job]:
    """One for each seed that is not recorded."""
    named = [tuned.algorithm.label]
    made = compare.jobs([tuned], task.order.seeds, task.place / "runs", names=named)
    return [replace(job, may_diverge=True) for job in made if job.experiment.seed not in recorded]


def _lines_if_any(path: Path) -> list[dict[str, Any]]:
    return read_lines(path) if path.exists() else []


def _replace_lines(task: Task, of: str, lines: Sequence[Mapping[str, Any]]) -> None:
    if task.order.shard.of > 1:
        return
    path = task.file(of)
    kept = [line for line in _lines_if_any(path) if line["method"] != task.key]
    write_atomically(path, "".join(json.dumps(line) + "\n" for line in [*kept, *lines]))


def run_lines(
    of_method: Mapping[str, Any], job: Job, figures: Sequence[str] = ()
) -> Iterator[dict[str, Any]]:
    """The records of a run, each with what a reader needs to know about it, and these figures."""
    made: Experiment = job.experiment
    about = {**of_method, "seed": made.seed, "lr": made.lr}
    about |= {"gamma": made.algorithm.settings().get("gamma"), "topology": made.topology}
    about |= {"momentum": made.algorithm.momentum_label, "diverged": job.failure is not None}
    about |= {"epochs": made.epochs, "fraction": made.fraction}
    about |= {"commit": version_of(job.out, "commit")}
    records = RunFolder(job.out).records()
    for record in records:
        yield about | {
            key: round(found, 5)
            for key in dict.fromkeys((*KEPT, *figures))
            if (found := value(record, key)) is not None
        }
    if not records:  # it diverged before the first
        yield about


def read_lines(path: Path, figures: Sequence[str] = ()) -> list[dict[str, Any]]:
    """The records of a file, with these figures if they have not diverged."""
    found = []
    for number, line in enumerate(path.read_bytes().splitlines(), 1):
        try:
            record = json.loads(line)
        except ValueError:  # UnicodeDecodeError is one, too
            record = None
        if not isinstance(record, dict):
            raise _damaged(path, number, "")
        needed = ["method", "label", "seed", "diverged"]
        if record.get("seed") is not None:
            needed.append("lr")
        if not record.get("diverged"):
            needed += figures
        if lacking := [name for name in dict.fromkeys(needed) if name not in record]:
            raise _damaged(path, number, f": it lacks {', '.join(lacking)}")
        if not isinstance(record["seed"], int | None):
            raise _damaged(path, number, ": its seed is not a number")
        found.append(record)
    return found


def _damaged(path: Path, number: int, how: str) -> BadValue:
    why = f"{path.name} is damaged in line {number}{how}"
    return BadValue("out", str(path.parent), "a folder with whole records", why)
