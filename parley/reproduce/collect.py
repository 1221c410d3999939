"""The runs of a study below a folder, as results to show and to compare with published ones."""

import logging
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from pathlib import Path
from typing import Any, NamedTuple

from parley.errors import BadValue, ParleyError
from parley.experiment import Experiment
from parley.measures import KNOWN
from parley.reproduce.campaign import folder_of, read_experiment, version_of
from parley.reproduce.cells import Cell, Form, cells, key_of, parse_form, parsed
from parley.reproduce.study import Study
from parley.reproduce.tuned import ABOUT, read_lines
from parley.results.read import walk
from parley.store.folder import EXPERIMENT, RECORDS, UNVERIFIED, RunFolder
from parley.sweep import jobs
from parley.training.record import Record, sent_megabytes, value
from parley.version import __version__

log = logging.getLogger(__name__)

SMALLER = 0.95
"""Steps per epoch, relative to the published run's, below which a run counts as using less data."""


class Figure(NamedTuple):
    """Something that a record says, as it is shown."""

    take: Callable[[Record], float | None]
    higher: bool = True
    """Whether more is better."""
    cost: bool = False
    """Shown as a whole number without a spread."""
    average: Callable[[Iterable[float]], float] = statistics.fmean


def _kilobytes(record: Record) -> float | None:
    """Sent by an agent in a step: with Dirichlet partitions, seeds differ in their steps."""
    sent = sent_megabytes(record)
    return None if sent is None else 1000 * sent / float(record["step"])


def _milliseconds(record: Record) -> float | None:
    """Of a step on the simulated network."""
    seconds = value(record, "seconds_network")
    return None if seconds is None else 1000 * seconds / float(record["step"])


FIGURES = {
    "kilobytes": Figure(_kilobytes, higher=False, cost=True),
    "megabytes": Figure(sent_megabytes, higher=False, cost=True),
    # A median: other work on the machine can make one seed much longer.
    "milliseconds": Figure(_milliseconds, higher=False, cost=True, average=statistics.median),
}
"""Figures besides the fields of a record."""


def figure(name: str) -> Figure:
    """A figure by its name: one of `FIGURES`, or a field of a record.

    >>> figure("accuracy_own").take({"epoch": 1, "accuracy_own": 0.5})
    50.0
    """
    measure = next((m for m in KNOWN.values() if name.startswith(f"{m.name}_")), None)
    factor = measure.factor if measure else 1.0

    def take(record: Record) -> float | None:
        found = value(record, name)
        return None if found is None else factor * found

    return FIGURES.get(name) or Figure(take, measure.higher if measure else "loss" not in name)


@dataclass(frozen=True)
class Result:
    """The results of one cell in one form."""

    cell: Cell
    form: Form
    runs: Mapping[int, Sequence[Record]]
    """All records of every finished run, by seed."""
    unfinished: Sequence[str] = ()
    """For example ``seed 2 at epoch 40``, or why a run failed."""
    about: Mapping[str, Any] = field(default_factory=dict)
    """Of studies that tune: what was found, and what the runs were like."""
    lost: int = 0
    """Of studies that tune: how many seeds have diverged."""

    @property
    def label(self) -> str:
        """The method, with what is varied and the form unless that is the usual one."""
        usual = self.form.variant in ("", self.cell.study.forms[0])
        words = [self.cell.label, *self.cell.values, "" if usual else self.form.words]
        return ", ".join(filter(None, words))

    @property
    def title(self) -> str:
        """Variant and reduction, to append to the name of a setting."""
        usual = self.form.variant in ("", self.cell.study.forms[0])
        mark = f"reduced: {self.mark}" if self.mark else ""
        return "".join(f", {part}" for part in ("" if usual else self.form.words, mark) if part)

    @property
    def is_reference(self) -> bool:
        """Whether it is shown without being compared."""
        return self.cell.method.partition(":")[0] in self.cell.study.reference

    @property
    def mark(self) -> str:
        """How it differs from the published run; empty if it does not."""
        if self.about:
            return ""
        parts = [self.form.reduction(self.cell.usual.epochs)] if any(self.form[1:]) else []
        if self.runs and self.form.fraction is None and self.cell.facts:
            last = next(iter(self.runs.values()))[-1]
            share = last["step"] / last["epoch"] / self.cell.steps_per_epoch
            if share < SMALLER:
                parts.append(f"{share:.0%} of the paper's steps per epoch")
        return ", ".join(parts)

    @property
    def at_chance(self) -> Sequence[int]:
        """The seeds that ended no better than guessing, by the first figure."""
        first = next(iter(self.cell.study.table.columns))
        if self.about or not first.startswith("accuracy_"):
            return []
        ends = self.by_seed(first)
        return [seed for seed, ended in ends.items() if ended <= 100 * self.cell.chance]

    @property
    def remarks(self) -> list[str]:
        """What to know beside the figures."""
        made = [f"reduced: {self.mark}"] if self.mark else []
        if (seeds := self.at_chance) and self.cell.facts:
            some = f"seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))} "
            guessed = f"at chance level ({100 / self.cell.facts.classes:g} %)"
            made.append(guessed if len(seeds) == len(self.runs) else some + guessed)
        return [*made, *self.unfinished]

    @property
    def share(self) -> float:
        """The share of the published training that it covers."""
        whole = self.cell.usual.epochs
        return (self.form.epochs or whole) / whole * (self.form.fraction or 1.0)

    def by_seed(self, name: str) -> dict[int, float]:
        """A figure of the last record of every finished run."""
        take = figure(name).take
        ends = {seed: take(records[-1]) for seed, records in self.runs.items()}
        return {seed: end for seed, end in ends.items() if end is not None}

    def mean(self, name: str) -> float | None:
        """Over seeds; None if no run has the figure."""
        values = self.by_seed(name).values()
        return figure(name).average(values) if values else None

    def std(self, name: str) -> float | None:
        """Over seeds (n - 1); None with one seed."""
        values = self.by_seed(name).values()
        return statistics.stdev(values) if len(values) > 1 else None

    def deviation(self, name: str) -> float | None:
        """How far ours is above the published mean, in units of the published deviation."""
        mean, published = self.mean(name), self.cell.published
        if mean is None or published is None or len(published) < 2:
            return None
        return (mean - published[0]) / published[1]


@dataclass(frozen=True)
class Found:
    """Everything below a results folder."""

    study: Study
    results: Sequence[Result]
    refused: Sequence[str] = ()
    """Folders that were left out, each with the reason. One damaged seed leaves the others in."""
    remarks: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Of studies that tune: what to know about each setting."""

    def divided(self) -> tuple["Found", "Found"]:
        """What was run as published, and the rest: reduced runs and single choices."""
        whole = [r for r in self.results if not r.mark and not r.form.choices]
        others = [r for r in self.results if r.mark or r.form.choices]
        return replace(self, results=whole), Found(self.study, others)

    def sections(self) -> Iterator[tuple[str, str, list[tuple[str, list[Result]]]]]:
        """Name and title of each section, with its settings and their results. Runs in which some
        choice differs are compared separately."""
        made: dict[tuple[str, str], dict[str, list[Result]]] = {}
        for result in (r for r in self.results if not r.form.choices):
            setting = result.cell.setting
            settings = made.setdefault(self.study.section_of(setting), {})
            settings.setdefault(setting, []).append(result)
        for (section, title), settings in made.items():
            yield section, title, [(name, self._ordered(of)) for name, of in settings.items()]

    def _ordered(self, results: list[Result]) -> list[Result]:
        """Full runs before reduced ones, or the best first."""
        if not self.study.table.best_first:
            return sorted(
                results,
                key=lambda r: (r.form.variant != self.study.forms[0], r.form[1:] != (None, None),
                               r.form.folder, r.mark),
            )  # fmt: skip
        first = next(iter(self.study.table.columns))
        sign = -1 if figure(first).higher else 1
        return sorted(results, key=lambda r: sign * (r.mean(first) or 0.0))


def collect(study: Study, out: Path) -> Found:
    """Reads all runs of a study below `out`."""
    folder_of("out", out, "a folder with results")
    found = _from_lines(study, out) if study.tune else _from_folders(study, out)
    if not found.results and not found.refused:
        raise BadValue("out", str(out), f"a folder with results of parley reproduce {study.name}")
    return found


def _from_folders(study: Study, out: Path) -> Found:
    forms: dict[Path, list[Path]] = {}
    for run in walk(out):
        if run is not None and run.name.startswith("seed-") and (run / EXPERIMENT).is_file():
            forms.setdefault(run.parent, []).append(run)
    results, refused = [], []
    unverified: list[Path] = []
    for cell in cells(study).values():
        for folder in sorted(form for form in forms if form.parent == out / cell.folder):
            try:
                form = parse_form(study, folder.name)
            except ParleyError as error:
                refused.append(f"{folder}: {error}")
                continue
            result, damaged = _result(cell, form, forms[folder], unverified)
            results.append(result)
            refused += damaged
    if unverified:
        log.info("%s", UNVERIFIED % f"the records of {len(unverified)} runs in {out}")
    return Found(study, [r for r in results if r.runs or r.unfinished], refused)


def _result(
    cell: Cell, form: Form, seeds: Sequence[Path], unverified: list[Path]
) -> tuple[Result, list[str]]:
    """The result of a form's seeds, and why some of them were left out."""
    runs, unfinished, refused = {}, [], []
    for path in sorted(seeds, key=_seed):
        try:
            expected = cell.experiment(form, seed=_seed(path))
            records = _records(path, expected, cell.study, unverified)
        except ParleyError as error:
            refused.append(f"{path}: {error}")
            continue
        if RunFolder(path).summary() is not None and records:
            runs[_seed(path)] = records
        elif (reason := jobs.reason(path)) is not None:
            unfinished.append(f"seed {_seed(path)}: {reason.strip()}")
        else:
            epoch = records[-1]["epoch"] if records else 0
            unfinished.append(f"seed {_seed(path)} at epoch {epoch}")
    return Result(cell, form, runs, unfinished), refused


def _records(
    path: Path, expected: Experiment, study: Study, unverified: list[Path]
) -> list[Record]:
    """The records of a run, which are whole if it is finished."""
    folder = RunFolder(path)
    if differing := expected.same_as(read_experiment(path)):
        version = version_of(path)
        by = f", made by parley {version}" if version not in (None, __version__) else ""
        raise ParleyError(
            f"{path.name} holds a different experiment from the preset's{by} "
            f"(they differ in {', '.join(differing)})"
        )
    records = folder.records(unverified)
    if folder.summary() is None or not records:
        return records
    last, stops = records[-1], expected.stop_when or expected.max_steps
    if last["epoch"] != expected.epochs and not stops:
        raise ParleyError(
            f"{RECORDS}: the run is finished, but its last record is of epoch {last['epoch']}, not "
            f"{expected.epochs}; restore the file"
        )
    for name in study.table.columns:
        share = value(last, name)
        if name.startswith("accuracy_") and (share is None or not 0 <= share <= 1):
            raise ParleyError(
                f"{RECORDS}: {name} of the last record is {last.get(name)!r}, not a number from 0 "
                "to 1; restore the file"
            )
    return records


def _seed(path: Path) -> int:
    digits = path.name.removeprefix("seed-")
    return int(digits) if digits.isdecimal() else 0


def _from_lines(study: Study, out: Path) -> Found:
    results: list[Result] = []
    remarks = {}
    for setting in study.settings:
        path = out / f"{setting}.jsonl"
        if path.exists():
            results += read_results(study, setting, path)
            remarks[setting] = [*_diverged(path), *_at_the_edge(out / f"{setting}-trials.jsonl")]
    return Found(study, results, remarks=remarks)


def read_results(study: Study, setting: str, path: Path) -> list[Result]:
    """The methods of a setting that are finished with some seed."""
    needed = ("epoch", "step", *(name for name in study.table.columns if name not in FIGURES))
    runs: dict[str, dict[int, list[Any]]] = {}
    about: dict[str, Mapping[str, Any]] = {}
    lines = read_lines(path, (*ABOUT, *needed))
    for line in lines:
        if not line["diverged"]:
            about[line["label"]] = line
            runs.setdefault(line["label"], {}).setdefault(line["seed"], []).append(line)
    known = {key_of(parsed(entry.algorithm)): key for key, entry in study.methods.items()}
    lost = diverged_by_seed(lines)
    made = []
    for label, of in runs.items():
        key = about[label]["method"]
        name = f"{setting}/{known.get(key, key)}"
        cell = Cell(study, name, setting, key, (), label, {})
        made.append(Result(cell, Form(), of, (), about[label], sum(lost[label].values())))
    return made


def diverged_by_seed(lines: Sequence[Mapping[str, Any]]) -> dict[str, dict[int | None, bool]]:
    """Whether each seed of each method has diverged. A method whose trials all diverged has no
    settings; its seed is None."""
    seeds: dict[str, dict[int | None, bool]] = {}
    for line in lines:
        seeds.setdefault(line["label"], {})[line["seed"]] = line["diverged"]
    return seeds


def _diverged(path: Path) -> list[str]:
    """Which methods diverged, and with how many of their seeds."""
    never, some = [], []
    for label, by_seed in diverged_by_seed(read_lines(path)).items():
        if None in by_seed:
            never.append(label)
        elif lost := sum(by_seed.values()):
            some.append(f"{label} ({lost} of {len(by_seed)} seeds)")
    said = (("Diverged at the settings that won", some), ("Diverged in every trial", never))
    return [f"{what}: {', '.join(of)}." for what, of in said if of]


def _at_the_edge(path: Path) -> list[str]:
    """Methods for which a rate beyond those that were tried may be better still."""
    tried: dict[str, list[Mapping[str, Any]]] = {}
    for trial in read_lines(path) if path.exists() else ():
        tried.setdefault(trial["label"], []).append(trial)
    lowest, highest = [], []
    for label, trials in tried.items():
        rates = [trial["lr"] for trial in trials]
        won = max(trials, key=lambda trial: trial.get("accuracy_held_out", -inf))
        if "accuracy_held_out" in won and len(rates) > 1:
            lowest += [label] * (won["lr"] == min(rates))
            highest += [label] * (won["lr"] == max(rates))
    return [
        f"The {which} rate that was tried won for {', '.join(labels)}: a {beyond} one may be "
        "better still."
        for which, beyond, labels in (("lowest", "lower", lowest), ("highest", "higher", highest))
        if labels
    ]
