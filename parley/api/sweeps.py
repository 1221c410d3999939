"""Many runs at once: `compare` and `tune`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from parley.algorithms import Algorithm, AlgorithmKind
from parley.api.runs import LoadedRun, Shown, load
from parley.compute.threads import usable_cores
from parley.experiment import ALGORITHM_OPTIONS, Experiment
from parley.store.folder import fresh_name
from parley.user_code import allow_named
from parley.watch.log import console

if TYPE_CHECKING:
    from parley.results.seeds import Group


@dataclass(frozen=True)
class Comparison(Shown):
    """The result of `compare`."""

    rows: list[dict[str, Any]]
    """One per method: means over seeds, and their standard deviations as ``…_std``."""
    runs: dict[str, list[LoadedRun]]
    """The runs of each method, by its label."""
    out: Path

    def markdown(self) -> str:
        """The rows as a table for a document."""
        from parley.sweep import compare as comparison

        return comparison.table(self.rows).markdown()

    def _groups(self) -> Sequence[Group]:
        from parley.results.seeds import Group

        return [
            Group(label, [run.recorded for run in of], of[0].experiment)
            for label, of in self.runs.items()
        ]


def compare(
    algorithms: str | Sequence[str | Algorithm] | None = None,
    *,
    seeds: int = 3,
    out: str | Path | None = None,
    resume: bool = False,
    parallel: int | None = None,
    progress: bool = True,
    **options: Any,
) -> Comparison:
    """Runs several algorithms with several seeds side by side, as ``parley compare`` does.

    `algorithms` are names with options after colons (``"dpsgd,ngc:alpha=0"``), or a list of such
    names and of algorithms; by default the six of the NGC paper. Options of an algorithm apply to
    every one given by name that has them. Everything is written to `out`, or to a new folder in
    ``runs/``; `parallel` is the number of runs at a time (default: the number of cores).

    >>> import tempfile
    >>> found = compare(
    ...     ["dpsgd", "ngc:alpha=0"], seeds=1, agents=3, epochs=1, gossip_rounds=1,
    ...     parallel=1, out=tempfile.mkdtemp(), progress=False,
    ... )
    >>> [row["label"] for row in found.rows], len(found.runs["D-PSGD"])
    (['D-PSGD', 'NGC α=0'], 1)
    """
    from parley.sweep import compare as comparison  # imports plotting, which is slow

    experiments = [made for _, made in _experiments(algorithms or comparison.PAPER, options)]
    where = _new_folder(out, f"compare-{Path(experiments[0].data).name}")
    todo = comparison.jobs(experiments, seeds, where)
    with _quiet_unless(progress):
        comparison.compare(todo, parallel or usable_cores(), where, resume)
    rows = comparison.rows(todo)
    comparison.write(where, todo, rows)
    runs: dict[str, list[LoadedRun]] = {}
    for job in todo:
        runs.setdefault(job.label, []).append(load(job.out, job.experiment.algorithm))
    return Comparison(rows, runs, where)


@dataclass(frozen=True)
class Tuning:
    """The result of `tune`, by method."""

    settings: dict[str, dict[str, float]]
    """The best learning rate, and γ if it was tuned; without methods that always diverged."""
    experiments: dict[str, Experiment]
    """The experiments with these settings, on all training samples."""
    out: Path


def tune(
    algorithms: str | Sequence[str | Algorithm] = "ngc",
    *,
    trials: int = 8,
    rates: tuple[float, float] = (0.01, 1.0),
    out: str | Path | None = None,
    resume: bool = False,
    parallel: int | None = None,
    progress: bool = True,
    **options: Any,
) -> Tuning:
    """Finds learning rates by a small seeded search, as ``parley tune`` does.

    Every method gets the same number of trials, measured on held-out training samples.

    >>> import tempfile
    >>> found = tune(
    ...     "dpsgd", trials=2, agents=3, epochs=1, parallel=1, out=tempfile.mkdtemp(),
    ...     progress=False,
    ... )
    >>> found.experiments["dpsgd"].lr == found.settings["dpsgd"]["lr"]
    True
    """
    from parley.sweep import tune as tuning

    keys, experiments = zip(*_experiments(algorithms, options), strict=True)
    where = _new_folder(out, f"tune-{Path(experiments[0].data).name}")
    todo = tuning.plan(experiments, trials, where, rates, keys)
    with _quiet_unless(progress):
        tuning.tune(todo, parallel or usable_cores(), where, resume)
    tuning.write(todo, where)
    [best] = tuning.winners(todo).values() or [{}]
    settings = {name: trial.settings for name, trial in best.items()}
    return Tuning(settings, {name: trial.experiment for name, trial in best.items()}, where)


def _experiments(
    algorithms: str | Sequence[str | Algorithm], options: dict[str, Any]
) -> list[tuple[str, Experiment]]:
    """The experiments to run, by method: its name with the options after it."""
    from parley.sweep.compare import check_used, experiments_of, parse_algorithms

    allow_named(options)  # the program itself has named them
    common = {name: value for name, value in options.items() if name not in ALGORITHM_OPTIONS}
    chosen: list[tuple[str, Experiment]] = []
    named: list[AlgorithmKind] = []
    for one in [algorithms] if isinstance(algorithms, str) else algorithms:
        if isinstance(one, str):
            allow_named({"algorithm": one})
            methods = parse_algorithms(one)
            made = experiments_of(methods, options)
            chosen += [(m.key, e) for m, e in zip(methods, made, strict=True)]
            named += [experiment.algorithm.kind for experiment in made]
        else:
            taken = [key for key, _ in chosen]
            key = one.label if one.name in taken else one.name
            chosen.append((key, Experiment.of(**common, algorithm=one)))
    check_used(options, named)
    return chosen


def _new_folder(out: str | Path | None, stem: str) -> Path:
    return Path(out) if out else fresh_name(Path("runs"), stem)


@contextmanager
def _quiet_unless(progress: bool) -> Iterator[None]:
    before = console.quiet
    console.quiet = before or not progress
    try:
        yield
    finally:
        console.quiet = before
