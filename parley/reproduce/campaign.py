"""Running the cells of a study, resumably and skipping finished runs; and packing the results.

OUT/<section>/<cell>/<form>/seed-<s>/ holds one run. A reduced run is a different experiment with
its own folder, for example ``as-run-20-epochs``.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from parley import data
from parley.errors import BadValue, ParleyError
from parley.experiment import HOW, Experiment
from parley.files import SMALL, Unreadable, parse_json, read_text, sealed, write_atomically
from parley.reproduce.cells import Cell
from parley.reproduce.study import Study
from parley.results.read import walk
from parley.store.folder import ENVIRONMENT, EXPERIMENT, RECORDS, SUMMARY, RunFolder
from parley.sweep import compare
from parley.sweep.jobs import DIVERGED_FILE, Job
from parley.version import __version__

PACKED = (EXPERIMENT, ENVIRONMENT, RECORDS, SUMMARY, DIVERGED_FILE)
"""The files of a run worth keeping: all but the checkpoints."""
T = TypeVar("T")


@dataclass(frozen=True)
class Shard:
    """One of several equal shares of a study, for machines that work side by side."""

    number: int = 1
    of: int = 1

    @staticmethod
    def parse(text: str) -> "Shard":
        """From, for example, ``3/8``.

        >>> Shard.parse("3/8").share(range(20))
        [2, 10, 18]
        """
        number, slash, of = text.partition("/")
        if slash and number.isdecimal() and of.isdecimal() and 1 <= int(number) <= int(of):
            return Shard(int(number), int(of))
        raise BadValue("shard", text, "K/N with K from 1 to N, for example 3/8")

    def share(self, of: Sequence[T]) -> list[T]:
        """Every N-th, so that shares are alike and depend on nothing but the plan."""
        return list(of[self.number - 1 :: self.of])

    def lock(self, out: Path) -> Path:
        """The folder that this share alone works in, or rather locks."""
        return out if self.of == 1 else out / ".shards" / f"{self.number}-of-{self.of}"


@dataclass(frozen=True)
class Order:
    """What to run of every cell."""

    variant: str = ""
    """By default the study's usual one."""
    epochs: int | None = None
    """Fewer than the study's, for a reduced run."""
    fraction: float | None = None
    """Share of the training data, for a reduced run."""
    seeds: int = 1
    data_root: str | None = None
    shard: Shard = Shard()
    # Of studies that tune:
    test_fraction: float | None = None
    trials: int | None = None
    trial_epochs: int | None = None

    def check(self, study: Study) -> None:
        """Refuses what a study would not heed."""
        only = ("variant",) if study.tune else ("test_fraction", "trials", "trial_epochs")
        which = "studies with variants" if study.tune else "studies that tune"
        for name in only:
            if given := getattr(self, name):
                because = f"only {which} have it, and {study.name} is none of them"
                raise BadValue(name, given, "nothing", because)


def jobs(chosen: Sequence[Cell], order: Order, out: Path) -> list[Job]:
    """All runs of these cells, seed by seed: the first seed of every cell comes first.

    >>> from parley.reproduce.cells import named, select
    >>> some = jobs(select(named("paper"), "fashion_mnist", 10), Order(seeds=3, epochs=20), Path())
    >>> len(some), some[0].label
    (18, 'fashion_mnist/lenet5/ring/10/dpsgd (20 of 100 epochs)')
    >>> some[0].out.as_posix()
    'datasets/fashion_mnist-lenet5-ring-10-dpsgd/as-run-20-epochs/seed-0'
    """
    made = []
    for seed in range(order.seeds):
        for cell in chosen:
            form = cell.form(order.variant, order.epochs, order.fraction)
            experiment = cell.experiment(form, seed=seed, data_root=order.data_root)
            marks = [form.variant if form.variant != cell.study.forms[0] else ""]
            said = ", ".join(filter(None, [*marks, form.reduction(cell.usual.epochs)]))
            label = cell.name + (f" ({said})" if said else "")
            folder = out / cell.folder / form.folder / f"seed-{seed}"
            made.append(Job(label, experiment, folder, may_diverge=True))
    return made


def state(job: Job) -> str:
    """``done``, ``failed``, ``begun`` or ``new``; refuses a folder that holds something else."""
    folder = RunFolder(job.out)
    if not (job.out / EXPERIMENT).exists():
        return "new"
    found = read_experiment(job.out)
    differing = job.experiment.same_as(found)
    if differing:
        raise ParleyError(
            f"out: {str(job.out)!r} holds a different experiment from {job.label} "
            f"(they differ in {', '.join(differing)}); choose another --out"
        )
    if folder.summary() is not None:
        return "done"
    if job.failure is not None:
        return "failed"
    version = version_of(job.out)
    if version not in (None, __version__):
        raise ParleyError(
            f"out: {str(job.out)!r} was started by parley {version}, but this is {__version__}; "
            "finish it with that version, choose another --out, or remove it"
        )
    return "begun"


def read_experiment(folder: Path) -> Experiment:
    """The experiment of a run folder, or the error that says what is wrong with it."""
    path = folder / EXPERIMENT
    try:
        return Experiment.from_toml(read_text(path, SMALL), str(path))
    except (ParleyError, Unreadable) as error:
        version = version_of(folder)
        other = version not in (None, __version__)
        by = f" for this version (written by parley {version}; this is {__version__})"
        raise ParleyError(
            f"out: {str(path)!r} is not a valid experiment{by if other else ''}: {error}"
        ) from None


def version_of(folder: Path, what: str = "parley") -> str | None:
    """The version of Parley (or its commit) that started a run, if known."""
    try:
        return str(parse_json(read_text(folder / ENVIRONMENT))[what])
    except (Unreadable, KeyError, TypeError):
        return None


def run(todo: Sequence[Job], parallel: int, lock: Path) -> dict[str, list[Job]]:
    """Runs what is not done yet; a run that diverges is recorded as such, and the others continue.

    Returns all jobs by outcome.
    """
    states = {job.out: state(job) for job in todo}
    left = [job for job in todo if states[job.out] in ("new", "begun")]
    for name, root in {(job.experiment.data, job.experiment.data_root) for job in left}:
        data.load(name, root)  # an absent dataset is found before anything is written
    if left:
        compare.compare(left, parallel, lock, resume=True)
    became: dict[str, list[Job]] = {"done": [], "failed": [], "begun": [], "new": []}
    for job in todo:
        became[state(job)].append(job)
    return became


def folder_of(field: str, path: Path, what: str) -> Path:
    """The path, if it is a folder."""
    if not path.is_dir():
        why = "it is a file" if path.exists() else "it does not exist"
        raise BadValue(field, str(path), what, why)
    return path


def pack(out: Path, to: Path) -> list[Path]:
    """Copies the files worth keeping of every finished run; returns the new folders.

    Where a run took place (paths, workers, device) is left out. Folders already in `to` stay: one
    that is the same is skipped; if one differs, nothing at all is copied.
    """
    folder_of("out", out, "a folder with runs")
    if to.resolve().is_relative_to(out.resolve()):
        raise BadValue("to", str(to), "a folder outside --out")
    copies: dict[Path, dict[str, str]] = {}
    for folder in walk(out):
        if folder is None or not (folder / EXPERIMENT).is_file():
            continue
        if RunFolder(folder).summary() is None and not (folder / DIVERGED_FILE).exists():
            continue
        files = _packed(folder)
        target = to / folder.relative_to(out)
        if not (target / EXPERIMENT).exists():
            copies[target] = files
            continue
        # An experiment written by another version may look different but mean the same.
        same = not read_experiment(target).same_as(read_experiment(folder))
        for name in (RECORDS, SUMMARY):
            there = target / name
            same &= not there.exists() or there.read_text(encoding="utf-8") == files.get(name)
        if not same:
            raise ParleyError(
                f"to: {str(target)!r} holds a different run; move it away, or choose another --to"
            )
    for target, files in copies.items():
        target.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            write_atomically(target / name, text)
    return list(copies)


def _packed(folder: Path) -> dict[str, str]:
    files = {
        name: (folder / name).read_text(encoding="utf-8")
        for name in PACKED
        if (folder / name).exists()
    }
    plain = {name: Experiment.model_fields[name].default for name in HOW}
    files[EXPERIMENT] = read_experiment(folder).model_copy(update=plain).to_toml()
    if SUMMARY in files:
        summary: dict[str, Any] = parse_json(files[SUMMARY])
        summary["out"] = None
        files[SUMMARY] = sealed(summary, indent=2) + "\n"
    return files
