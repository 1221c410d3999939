"""The runs of presets below a results folder, as results to compare with the paper's."""

import re
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from parley.errors import BadValue, ParleyError
from parley.experiment import Experiment
from parley.reproduce.campaign import read_experiment, version_of
from parley.reproduce.preset import (
    Preset,
    Reduction,
    chance_level,
    classes,
    variant_name,
    variant_words,
    variants,
)
from parley.reproduce.presets import presets
from parley.results.read import walk
from parley.store.folder import EXPERIMENT, RECORDS, RunFolder
from parley.sweep import jobs
from parley.training.record import Record, value
from parley.version import __version__

GOSSIPED = "accuracy_after_gossip"
ACCURACIES = {
    GOSSIPED: "after gossip",
    "accuracy_mean_model": "averaged model",
    "accuracy_own": "own models",
}
"""The compared metrics. The first is the protocol of the paper's tables (authors' older code)."""
SMALLER = 0.95
"""Steps per epoch, relative to the paper's, below which a run counts as using less data."""


@dataclass(frozen=True)
class PresetResult:
    """The results of one preset in one form: a variant, in full or reduced."""

    preset: Preset
    variant: str
    reduction: Reduction
    runs: Mapping[int, Sequence[Record]]
    """All records of every finished run, by seed."""
    unfinished: Sequence[str] = ()
    """For example ``seed 2 at epoch 40``, or why a run failed."""

    @property
    def ends(self) -> Sequence[Record]:
        """The last record of every finished run."""
        return [records[-1] for records in self.runs.values()]

    @property
    def is_ablation(self) -> bool:
        """Whether it is as run except for some choices."""
        return "-but-" in self.variant

    @property
    def mark(self) -> str:
        """How it differs from the paper's run; empty if it does not."""
        parts = [self.reduction.words(self.preset.epochs)] if self.reduction else []
        if self.ends and self.reduction.fraction is None:
            steps = self.ends[0]["step"] / self.ends[0]["epoch"]
            share = steps / self.preset.steps_per_epoch
            if share < SMALLER:
                parts.append(f"{share:.0%} of the paper's steps per epoch")
        return ", ".join(parts)

    @property
    def at_chance(self) -> Sequence[int]:
        """The seeds that ended no better than guessing, after gossip."""
        limit = chance_level(self.preset.data)
        return [
            seed
            for seed, records in self.runs.items()
            if (value(records[-1], GOSSIPED) or 0.0) <= limit
        ]

    @property
    def chance_note(self) -> str:
        """Says so; empty if there are none."""
        if not self.at_chance:
            return ""
        guessed = f"at chance level ({100 / classes(self.preset.data):g} %)"
        some = f"seed{'s' * (len(self.at_chance) > 1)} {', '.join(map(str, self.at_chance))} "
        return guessed if len(self.at_chance) == len(self.runs) else some + guessed

    @property
    def share(self) -> float:
        """The share of the paper's training that it covers."""
        epochs = self.reduction.epochs or self.preset.epochs
        return epochs / self.preset.epochs * (self.reduction.fraction or 1.0)

    def mean(self, name: str) -> float:
        """Over seeds, in percent."""
        return 100 * statistics.fmean(self._shares(name))

    def std(self, name: str) -> float | None:
        """Over seeds (n - 1), in percent; None with one seed."""
        values = [100 * share for share in self._shares(name)]
        return statistics.stdev(values) if len(values) > 1 else None

    def _shares(self, name: str) -> list[float]:
        return [found for end in self.ends if (found := value(end, name)) is not None]

    def deviation(self, name: str) -> float | None:
        """How far ours is above the paper's mean, in units of the paper's std."""
        if not self.ends or self.preset.paper is None:
            return None
        return (self.mean(name) - self.preset.paper.accuracy) / self.preset.paper.std


@dataclass(frozen=True)
class Found:
    """Everything below a results folder."""

    results: Sequence[PresetResult]
    refused: Sequence[str] = field(default=())
    """Folders that were left out, each with the reason. One damaged seed leaves the others in."""

    def divided(self) -> tuple["Found", "Found"]:
        """What was run as the paper did, and the rest: reduced runs and ablations."""
        whole = [r for r in self.results if not r.mark and not r.is_ablation]
        others = [r for r in self.results if r.mark or r.is_ablation]
        return Found(whole, self.refused), Found(others)


def collect(out: Path) -> Found:
    """Reads all runs of presets below `out`."""
    if not out.is_dir():
        why = "it is a file" if out.exists() else "it does not exist"
        raise BadValue("out", str(out), "a folder with results", why)
    forms: dict[Path, list[Path]] = {}
    for run in walk(out):
        if run is not None and run.name.startswith("seed-") and (run / EXPERIMENT).is_file():
            forms.setdefault(run.parent, []).append(run)
    results, refused = [], []
    for preset in presets().values():
        for form in sorted(form for form in forms if form.parent == out / preset.folder):
            try:
                variant, reduction = parse_form(form.name)
            except ParleyError as error:
                refused.append(f"{form}: {error}")
                continue
            result, damaged = _result(preset, variant, reduction, forms[form])
            results.append(result)
            refused += damaged
    return Found([r for r in results if r.ends or r.unfinished], refused)


def parse_form(name: str) -> tuple[str, Reduction]:
    """A variant and a reduction from a folder's name.

    >>> parse_form("as-run-20-epochs-0.1-data")
    ('as-run', Reduction(epochs=20, fraction=0.1))
    """
    match = re.fullmatch(r"(as-[a-z,-]+?)(?:-(\d+)-epochs)?(?:-([\d.e-]+)-data)?", name)
    if not match:
        raise BadValue("folder", name, ", ".join(variants()) + ", or a reduced form of one")
    variant, epochs, fraction = match.groups()
    return variant_name(variant), Reduction(
        int(epochs) if epochs else None, float(fraction) if fraction else None
    )


def _result(
    preset: Preset, variant: str, reduction: Reduction, seeds: Sequence[Path]
) -> tuple[PresetResult, list[str]]:
    """The result of a form's seeds, and why some of them were left out."""
    runs, unfinished, refused = {}, [], []
    for path in sorted(seeds, key=_seed):
        try:
            records = _records(path, preset.experiment(variant, reduction, seed=_seed(path)))
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
    return PresetResult(preset, variant, reduction, runs, unfinished), refused


def _records(path: Path, expected: Experiment) -> list[Record]:
    """The records of a run, which are whole if it is finished."""
    folder = RunFolder(path)
    differing = expected.same_as(read_experiment(path))
    if differing:
        version = version_of(path)
        by = f", made by parley {version}" if version not in (None, __version__) else ""
        raise ParleyError(
            f"{path.name} holds a different experiment from the preset's{by} "
            f"(they differ in {', '.join(differing)})"
        )
    records = folder.records()
    if folder.summary() is None or not records:
        return records
    last = records[-1]
    if last["epoch"] != expected.epochs:
        raise ParleyError(
            f"{RECORDS}: the run is finished, but its last record is of epoch {last['epoch']}, not "
            f"{expected.epochs}; restore the file"
        )
    for name in ACCURACIES:
        share = value(last, name)
        if share is None or not 0 <= share <= 1:
            raise ParleyError(
                f"{RECORDS}: {name} of the last record is {last.get(name)!r}, not a number from 0 "
                "to 1; restore the file"
            )
    return records


def _seed(path: Path) -> int:
    digits = path.name.removeprefix("seed-")
    return int(digits) if digits.isdecimal() else 0


def with_variant(label: str, result: PresetResult) -> str:
    """The label of a result, with its variant unless that is as run."""
    words = variant_words(result.variant)
    return f"{label}, {words}" if words else label


def title_of(result: PresetResult) -> str:
    """Variant and reduction, to append to the name of a group."""
    words = variant_words(result.variant)
    title = f", {words}" if words else ""
    return title + (f", reduced: {result.mark}" if result.mark else "")


def grouped(
    results: Sequence[PresetResult], table: str
) -> Iterator[tuple[str, list[PresetResult]]]:
    """The results of a table, by what is compared; full runs before reduced ones. Runs in which
    some choice differs are compared separately."""
    groups: dict[str, list[PresetResult]] = {}
    for result in results:
        if result.preset.table == table and not result.is_ablation:
            groups.setdefault(result.preset.group, []).append(result)
    for group, members in groups.items():
        yield (
            group,
            sorted(members, key=lambda r: (r.variant != "as-run", r.reduction.suffix, r.mark)),
        )
