"""Running presets, resumably and skipping finished runs; and packing the results.

OUT/<table>/<cell>/<variant>/seed-<s>/ holds one run. A reduced run is a different experiment with
its own folder, for example ``as-run-20-epochs``.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from parley import data
from parley.errors import BadValue, ParleyError
from parley.experiment import HOW, Experiment
from parley.files import SMALL, Unreadable, parse_json, read_text, sealed, write_atomically
from parley.reproduce.preset import Preset, variant_name
from parley.results.read import walk
from parley.store.folder import ENVIRONMENT, EXPERIMENT, RECORDS, SUMMARY, RunFolder
from parley.sweep import compare
from parley.sweep.jobs import DIVERGED_FILE, Job
from parley.version import __version__

PACKED = (EXPERIMENT, ENVIRONMENT, RECORDS, SUMMARY, DIVERGED_FILE)
"""The files of a run worth keeping: all but the checkpoints."""


@dataclass(frozen=True)
class Order:
    """What to run for every preset."""

    variant: str = "as-run"
    epochs: int | None = None
    """Fewer than the paper's, for a reduced run."""
    fraction: float | None = None
    """Share of the training data, for a reduced run."""
    seeds: int = 1
    data_root: str | None = None


def jobs(chosen: Sequence[Preset], order: Order, out: Path) -> list[Job]:
    """All runs of these presets, seed by seed: the first seed of every preset comes first.

    >>> from parley.reproduce.presets import select
    >>> some = jobs(select("fashion_mnist", 10), Order(seeds=3, epochs=20), Path("results"))
    >>> len(some), some[0].label
    (18, 'fashion_mnist/lenet5/ring/10/dpsgd (20 of 100 epochs)')
    >>> some[0].out.as_posix()
    'results/datasets/fashion_mnist-lenet5-ring-10-dpsgd/as-run-20-epochs/seed-0'
    """
    made = []
    for seed in range(order.seeds):
        for preset in chosen:
            reduction = preset.reduced(order.epochs, order.fraction)
            experiment = preset.experiment(
                order.variant, reduction, seed=seed, data_root=order.data_root
            )
            variant = variant_name(order.variant)
            marks = [variant] if variant != "as-run" else []
            marks += [reduction.words(preset.epochs)] if reduction else []
            label = preset.name + (f" ({', '.join(marks)})" if marks else "")
            folder = out / preset.folder / f"{variant}{reduction.suffix}"
            made.append(Job(label, experiment, folder / f"seed-{seed}", may_diverge=True))
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


def run(todo: Sequence[Job], parallel: int, out: Path) -> dict[str, list[Job]]:
    """Runs what is not done yet; a run that diverges is recorded as such, and the others continue.

    Returns all jobs by outcome.
    """
    states = {job.out: state(job) for job in todo}
    left = [job for job in todo if states[job.out] in ("new", "begun")]
    _check(left)
    if left:
        compare.compare(left, parallel, out, resume=True)
    became: dict[str, list[Job]] = {"done": [], "failed": [], "begun": [], "new": []}
    for job in todo:
        became[state(job)].append(job)
    return became


def _check(left: Sequence[Job]) -> None:
    """Checks once that each dataset is available."""
    for name, root in {(j.experiment.data, j.experiment.data_root) for j in left}:
        data.load(name, root)


def pack(out: Path, to: Path) -> list[Path]:
    """Copies the files worth keeping of every finished run; returns the new folders.

    Where a run took place (paths, workers, device) is left out. Folders already in `to` stay: one
    that is the same is skipped; if one differs, nothing at all is copied.
    """
    if not out.is_dir():
        why = "it is a file" if out.exists() else "it does not exist"
        raise BadValue("out", str(out), "a folder with runs", why)
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
    files[EXPERIMENT] = _without_how(read_experiment(folder))
    if SUMMARY in files:
        summary: dict[str, Any] = parse_json(files[SUMMARY])
        summary["out"] = None
        files[SUMMARY] = sealed(summary, indent=2) + "\n"
    return files


def _without_how(experiment: Experiment) -> str:
    plain = {name: Experiment.model_fields[name].default for name in HOW}
    return experiment.model_copy(update=plain).to_toml()
