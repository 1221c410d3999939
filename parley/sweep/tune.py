"""Choosing learning rates: a small seeded search, with the same budget for every method.

Every method gets the same number of trials and epochs, and the same learning rates are tried for
each. For a method whose averaging rate γ is below 1 by default, γ is drawn as well. Trials are
compared by the averaged model's first metric (accuracy, unless the experiment names others) on a
held-out share of the training samples; the test set
is not used.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w

from parley.algorithms import Algorithm
from parley.errors import BadValue
from parley.experiment import Experiment
from parley.files import SMALL, Unreadable, anchored, parse_toml, read_text, write_atomically
from parley.measures import KNOWN
from parley.results.table import Table
from parley.store.folder import RunFolder
from parley.sweep import compare as comparison
from parley.sweep.compare import slug
from parley.sweep.jobs import Job
from parley.training.problem import topology_of
from parley.training.record import value

RATES = (0.01, 1.0)
"""The smallest and the largest learning rate."""
SPAN = 5.0
"""γ is drawn between its default divided by this and its default times this."""
VALIDATION = 0.2
TUNED = "tuned.toml"


@dataclass(frozen=True)
class Trial:
    """One point of a method's search."""

    label: str
    key: str
    """The key for the method's settings, as in `compare.Method.key`."""
    number: int
    settings: dict[str, float]
    """What is tried."""
    experiment: Experiment
    """With these settings, and all samples."""
    job: Job

    @property
    def score(self) -> tuple[float, float]:
        """The first metric, negated if less is better, then the negated loss: larger is better."""
        if self.job.failure is not None:
            return -math.inf, 0.0
        last = RunFolder(self.job.out).records()[-1]
        measure = self.experiment.measures[0]
        found = value(last, measure.field("mean_model"))
        if found is None:  # not defined, for example AUROC of one class
            return -math.inf, -float(last["loss"])
        return found if measure.higher else -found, -float(last["loss"])


def points(trials: int, seed: int) -> list[tuple[float, float]]:
    """Points of the unit square, one in each row and column of a `trials` x `trials` grid.

    >>> [len({int(4 * p[axis]) for p in points(4, seed=0)}) for axis in (0, 1)]
    [4, 4]
    """
    rng = np.random.default_rng([seed, trials])
    columns = [(rng.permutation(trials) + rng.random(trials)) / trials for _ in range(2)]
    return list(zip(*(column.tolist() for column in columns), strict=True))


def settings_of(
    algorithm: Algorithm,
    at: tuple[float, float],
    rates: tuple[float, float] = RATES,
    most: float = 1.0,
) -> dict[str, float]:
    """What a method tries at a point: a learning rate, and γ, of `most` at most, if its default is
    below 1 and none was given.

    >>> from parley.algorithms import DPSGD
    >>> settings_of(DPSGD(), (0.5, 0.5))
    {'lr': 0.1}
    """
    chosen = {"lr": _between(*rates, at[0])}
    gamma = algorithm.settings().get("gamma", 1.0)
    if gamma < 1 and "gamma" not in algorithm.settings(given=True):
        field = algorithm.kind.options()["gamma"]
        limits = [limit for m in field.metadata if (limit := getattr(m, "le", None)) is not None]
        drawn = _between(gamma / SPAN, min([gamma * SPAN, *limits]), at[1])
        chosen["gamma"] = min(drawn, most)
    return chosen


def _between(low: float, high: float, share: float) -> float:
    """On a logarithmic scale, rounded to three digits because people read it."""
    return float(f"{low * (high / low) ** share:.3g}")


def plan(
    experiments: Sequence[Experiment],
    trials: int,
    out: Path,
    rates: tuple[float, float] = RATES,
    keys: Sequence[str] | None = None,
) -> list[Trial]:
    """All trials of all methods, each in its own folder.

    `keys` are the keys of their settings (default: the algorithms' names).
    """
    keys = keys or [experiment.algorithm.name for experiment in experiments]
    if not 0 < rates[0] < rates[1]:
        raise BadValue("rates", rates, "two numbers above 0, the smaller first")
    made = []
    named = zip(comparison.labels(experiments), keys, experiments, strict=True)
    for label, key, experiment in named:
        share = experiment.validation or VALIDATION
        most = experiment.algorithm.highest_rate(topology_of(experiment))
        for number, at in enumerate(points(trials, experiment.seed)):
            chosen = settings_of(experiment.algorithm, at, rates, most)
            # Only the final result counts, and accuracy after gossip is not needed.
            every = experiment.evaluate_every if experiment.stop_when else experiment.epochs
            measured = {"validation": share, "gossip_rounds": 0, "evaluate_every": every}
            tried = experiment.replace(**chosen, **measured)
            place = out / slug(experiment.partition) / slug(label) / f"trial-{number}"
            job = Job(label, tried, place, may_diverge=True)
            made.append(Trial(label, key, number, chosen, experiment.replace(**chosen), job))
    return made


def tune(todo: Sequence[Trial], parallel: int, out: Path, resume: bool) -> None:
    """Runs all trials; finished ones are left as they are."""
    comparison.compare([trial.job for trial in todo], parallel, out, resume)


def winners(done: Sequence[Trial]) -> dict[str, dict[str, Trial]]:
    """The best trial of each method for each partition; without methods that always diverged."""
    best: dict[str, dict[str, Trial]] = {}
    for trial in done:
        if trial.job.failure is None:
            of = best.setdefault(trial.job.experiment.partition, {})
            if trial.key not in of or trial.score > of[trial.key].score:
                of[trial.key] = trial
    return best


def write(done: Sequence[Trial], out: Path) -> Path:
    """``tuned.toml`` for a comparison, and a whole experiment for each method's training."""
    best = winners(done)
    chosen: dict[str, Any] = {}
    for partition, of in best.items():
        for key, trial in of.items():
            chosen.setdefault(partition, {})[key] = trial.settings
            path = out / slug(partition) / f"{slug(key)}.toml"
            # Its paths are relative to here; those in a TOML file are relative to that file.
            whole = anchored(trial.experiment.model_dump(), Path.cwd())
            write_atomically(path, trial.experiment.model_copy(update=whole).to_toml())
    write_atomically(out / TUNED, tomli_w.dumps(chosen))
    write_atomically(out / "table.md", table(done).markdown())
    return out / TUNED


def read(path: Path) -> dict[str, dict[str, dict[str, Any]]]:
    """Settings by partition and method, as `write` left them."""
    valid = "a tuned.toml written by parley tune"
    try:
        found = parse_toml(read_text(path, SMALL))
    except Unreadable as error:
        raise BadValue("tuned", str(path), valid, str(error)) from None
    if not all(
        isinstance(of, Mapping) and all(isinstance(s, Mapping) for s in of.values())
        for of in found.values()
    ):
        raise BadValue("tuned", str(path), valid, "it has no table for each partition and method")
    return found


def tuned(
    experiment: Experiment,
    found: Mapping[str, Mapping[str, Mapping[str, Any]]],
    key: str | None = None,
    fixed: Collection[str] = (),
) -> Experiment:
    """The experiment with the settings that were found for its method and partition.

    `key` is their key (default: its algorithm's name); `fixed` ones stay.
    """
    name = key or experiment.algorithm.name
    of = found.get(experiment.partition)
    if of is None:
        raise BadValue("partition", experiment.partition, ", ".join(found), "it was not tuned")
    if name not in of and "lr" not in fixed:
        because = f"it was not tuned for {experiment.partition}, or always diverged"
        raise BadValue("algorithms", name, ", ".join(of), because)
    return experiment.replace(**{k: v for k, v in of.get(name, {}).items() if k not in fixed})


def table(done: Sequence[Trial]) -> Table:
    """The winner of each method on each partition."""
    rows = []
    measure = done[0].experiment.measures[0] if done else KNOWN["accuracy"]
    groups = dict.fromkeys((t.job.experiment.partition, t.label) for t in done)
    for partition, label in groups:
        of = [t for t in done if (t.job.experiment.partition, t.label) == (partition, label)]
        best = max(of, key=lambda trial: trial.score)
        lost = sum(trial.job.failure is not None for trial in of)
        figures = ["–", "–", "–"]
        if lost < len(of):
            gamma = best.settings.get("gamma")
            sign = 1 if measure.higher else -1
            found = sign * best.score[0]
            shown = f"{100 * found:.1f}" if measure.share else f"{found:.4g}"
            figures = [f"{best.settings['lr']:g}", f"{gamma:g}" if gamma else "", shown]
        rows.append([label, partition, *figures, str(len(of)), str(lost)])
    what = "validation" if measure.name == "accuracy" else f"validation {measure.title}"
    unit = ", %" if measure.share else ""
    headings = ["", "partition", "lr", "γ", f"{what}{unit}", "trials", "diverged"]
    return Table(headings, rows, frozenset({0, 1}))
