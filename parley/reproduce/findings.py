"""What the study of ``guide.py`` has found: its tables, its tests and its picture."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import nan
from pathlib import Path
from statistics import fmean, median, stdev
from typing import Any

from parley.errors import BadValue
from parley.reproduce.guide import ABOUT, KEPT, SETTINGS, TRIAL_EPOCHS_BEFORE, Setting, read_lines
from parley.results.paired import Better, half_width, significant
from parley.results.table import Table, mean_and_spread
from parley.results.tradeoff import Point, tradeoff_picture
from parley.training.record import Record, sent_megabytes

WITH_A_SERVER = ("fedavg", "central")
"""Shown for reference."""
SUBJECT = "NGC"
"""Named in every panel, so that a reader finds it also where others beat it."""
CHANCE = 11.0
"""Accuracy, in percent, up to which nothing has been learnt of ten classes."""


@dataclass(frozen=True)
class Found:
    """The records of a method in a setting, by seed."""

    about: Mapping[str, Any]
    by_seed: Mapping[int, Sequence[Record]]
    """Of those that have not diverged."""
    diverged: int
    """How many have."""

    @property
    def seeds(self) -> str:
        """How many there are to show, and of how many."""
        shown = len(self.by_seed)
        return f"{shown} of {shown + self.diverged}" if self.diverged else str(shown)

    def last(self, take: Any) -> list[float]:
        """A figure of the last record of every seed."""
        return [take(records[-1]) for records in self.by_seed.values()]


def read(path: Path) -> dict[str, Found]:
    """The methods of a setting that are finished with some seed, best first."""
    every: dict[str, dict[int, list[Any]]] = {}
    about: dict[str, Mapping[str, Any]] = {}
    lines = read_lines(path, (*ABOUT, *KEPT))
    lost = diverged_by_seed(lines)
    for record in lines:
        if not record["diverged"]:
            about[record["label"]] = record
            every.setdefault(record["label"], {}).setdefault(record["seed"], []).append(record)
    found = {
        label: Found(about[label], by_seed, sum(lost[label].values()))
        for label, by_seed in every.items()
    }
    ranked = sorted(found, key=lambda label: -fmean(found[label].last(_accuracy)))
    return {label: found[label] for label in ranked}


def diverged_by_seed(lines: Sequence[Mapping[str, Any]]) -> dict[str, dict[int | None, bool]]:
    """Whether each seed of each method has diverged. A method whose trials all diverged has no
    settings; its seed is None."""
    seeds: dict[str, dict[int | None, bool]] = {}
    for line in lines:
        seeds.setdefault(line["label"], {})[line["seed"]] = line["diverged"]
    return seeds


def _accuracy(record: Record) -> float:
    return 100 * float(record["accuracy_mean_model"])


def _kilobytes(record: Record) -> float:
    """Sent by an agent in a step: with Dirichlet partitions, seeds differ in their steps."""
    return 1000 * (sent_megabytes(record) or 0.0) / float(record["step"])


def _milliseconds(record: Record) -> float:
    """Of a step on the simulated network. Seeds have a median: other work on the machine can make
    one of them much longer."""
    return 1000 * float(record["seconds_network"]) / float(record["step"])


def has_server(of: Found) -> bool:
    """Whether a method is shown for reference; the simulated network does not include a server."""
    return of.about["method"].partition(":")[0] in WITH_A_SERVER


def table(found: Mapping[str, Found]) -> Table:
    """One line per method, best first, with 95 % intervals over the seeds."""
    worse: dict[str, int] = {}
    for pair in better(found):
        worse[pair.winner] = worse.get(pair.winner, 0) + 1
    rows = []
    for label, of in found.items():
        accuracy = of.last(_accuracy)
        own = of.last(lambda record: 100 * record["accuracy_own"])
        gamma = of.about["gamma"]
        rows.append(
            [
                label,
                _spread(accuracy),
                _spread(own),
                f"{fmean(of.last(_kilobytes)):,.0f}",
                "" if has_server(of) else f"{median(of.last(_milliseconds)):,.0f}",
                of.seeds,
                str(worse.get(label, 0)),
                f"{of.about['lr']:g}",
                "" if gamma in (None, 1) else f"{gamma:g}",
                of.about["momentum"],
            ]
        )
    headings = ["", "averaged\nmodel, %", "own\nmodels, %", "kB sent\nper step", "ms per\nstep"]
    headings += ["seeds", "better\nthan", "rate", "γ", "momentum"]
    return Table(headings, rows, extra=3)


def _spread(values: Sequence[float]) -> str:
    return mean_and_spread(fmean(values), half_width(values), ".1f")


def better(found: Mapping[str, Found]) -> list[Better]:
    """Which methods are significantly better than which."""
    return significant(
        {
            label: {seed: _accuracy(records[-1]) for seed, records in of.by_seed.items()}
            for label, of in found.items()
        }
    )


def markdown(out: Path) -> str:
    """A table and what may be claimed for each setting with finished runs."""
    sections = [
        "±: a 95 % interval over the seeds (Student's t). *Better than*: how many methods it is "
        "significantly better than. Costs are those of one agent.",
        "",
    ]
    for setting, found in _every(out):
        sections += [f"### {setting.title}", "", _about(setting, found), ""]
        sections += [table(found).markdown(), *_remarks(out, setting, found)]
    return "\n".join(sections)


def _remarks(out: Path, setting: Setting, found: Mapping[str, Found]) -> list[str]:
    """What to know beside the table, each followed by an empty line."""
    remarks = [*_lost(out / f"{setting.name}.jsonl"), *_at_the_edge(out, setting), _claims(found)]
    return [line for remark in remarks for line in (remark, "")]


def terminal(out: Path, setting: Setting, width: int) -> list[Any]:
    """The same for a terminal of this width; nothing if the setting has no finished runs."""
    path = out / f"{setting.name}.jsonl"
    if not path.exists():
        return []
    found = read(path)
    return [setting.title, table(found).terminal(width), *_remarks(out, setting, found)]


def picture(out: Path, path: Path) -> Path:
    """Accuracy against bytes, and against time on the simulated network."""
    points = {
        setting.title: [
            Point(
                label,
                (
                    fmean(of.last(_kilobytes)),
                    nan if has_server(of) else median(of.last(_milliseconds)),
                ),
                fmean(of.last(_accuracy)),
                stdev(of.last(_accuracy)) if len(of.by_seed) > 1 else None,
                compared=not has_server(of),
                diverged=of.diverged > 0,
                named=label == SUBJECT,
            )
            for label, of in found.items()
        ]
        for setting, found in _every(out)
    }
    costs = ("kB sent by an agent in a step", "milliseconds of a step on the simulated network")
    gain = "test accuracy of the averaged model, %"
    return tradeoff_picture(points, costs, gain, path, floor=CHANCE)


def _every(out: Path) -> list[tuple[Setting, dict[str, Found]]]:
    """The settings with finished runs."""
    paths = {setting.name: out / f"{setting.name}.jsonl" for setting in SETTINGS.values()}
    every = [(SETTINGS[name], read(path)) for name, path in paths.items() if path.exists()]
    if not any(found for _, found in every):
        raise BadValue("out", str(out), "a folder with results of parley reproduce guide")
    return [(setting, found) for setting, found in every if found]


def _about(setting: Setting, found: Mapping[str, Found]) -> str:
    """What was run, in a sentence."""
    one = next(iter(found.values()))
    seeds = max(len(of.by_seed) + of.diverged for of in found.values())
    share = one.about["fraction"]
    data = "Fashion-MNIST" if share == 1 else f"{100 * share:g} % of Fashion-MNIST"
    return (
        f"{data}, LeNet-5, {setting.agents} agents, `{setting.topology}`, `{setting.partition}`: "
        f"{_count(one.about['epochs'], 'epoch')}, {_count(seeds, 'seed')}; trials of "
        f"{_count(one.about.get('trial_epochs', TRIAL_EPOCHS_BEFORE), 'epoch')}."
    )


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'s' * (number != 1)}"


def _lost(path: Path) -> list[str]:
    """Which methods diverged, and with how many of their seeds."""
    never, some = [], []
    for label, by_seed in diverged_by_seed(read_lines(path)).items():
        if None in by_seed:
            never.append(label)
        elif lost := sum(by_seed.values()):
            some.append(f"{label} ({lost} of {len(by_seed)} seeds)")
    return [
        f"{what}: {', '.join(of)}."
        for what, of in (
            ("Diverged at the settings that won", some),
            ("Diverged in every trial", never),
        )
        if of
    ]


def _at_the_edge(out: Path, setting: Setting) -> list[str]:
    """Methods for which a rate beyond those that were tried may be better still."""
    path = out / f"{setting.name}-trials.jsonl"
    tried: dict[str, list[Mapping[str, Any]]] = {}
    for trial in read_lines(path) if path.exists() else ():
        tried.setdefault(trial["label"], []).append(trial)
    lowest, highest = [], []
    for label, trials in tried.items():
        rates = [trial["lr"] for trial in trials]
        won = max(trials, key=lambda trial: trial.get("accuracy_held_out", -1.0))
        if "accuracy_held_out" in won and len(rates) > 1:
            lowest += [label] * (won["lr"] == min(rates))
            highest += [label] * (won["lr"] == max(rates))
    return [
        f"The {which} rate that was tried won for {', '.join(labels)}: a {beyond} one may be "
        "better still."
        for which, beyond, labels in (
            ("lowest", "lower", lowest),
            ("highest", "higher", highest),
        )
        if labels
    ]


def _claims(found: Mapping[str, Found]) -> str:
    """What may be said about the differences."""
    pairs = better(found)
    if not pairs:
        return (
            "No difference between two methods is significant (paired t-tests over at least three "
            "common seeds, Holm's correction)."
        )
    losers: dict[str, list[str]] = {}
    for pair in pairs:
        losers.setdefault(pair.winner, []).append(pair.loser)
    lines = [f"- {winner}: better than {', '.join(worse)}" for winner, worse in losers.items()]
    head = (
        "Significant differences (paired t-tests over at least three common seeds, p below 0.05 "
        "after Holm's correction):"
    )
    return "\n".join([head, "", *lines])
