"""Many runs side by side: algorithms times seeds, in parallel, as one table and one picture."""

import logging
import re
import statistics
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

from parley import algorithms
from parley.algorithms.combinations import named_with
from parley.errors import BadValue, ParleyError
from parley.experiment import ALGORITHM_OPTIONS, Experiment, on_top
from parley.files import write_atomically
from parley.measures import FORMS, KNOWN, of_record
from parley.results.curves import curves_picture
from parley.results.table import Table, mean_and_spread
from parley.store.enclosed import enclosed
from parley.store.folder import EXPERIMENT, RunFolder
from parley.store.lock import Hold
from parley.store.status import LOCK
from parley.sweep.jobs import Job, one_by_one, side_by_side
from parley.training import problem as problems
from parley.training.record import value
from parley.training.trainer import Trainer
from parley.watch.progress import megabytes
from parley.wire.local import Local
from parley.wire.placement import spread

logger = logging.getLogger(__name__)

PAPER = "dpsgd,ngc:alpha=0,cga,ngc,compcga,compngc"
"""The six methods of the NGC paper's tables."""


@dataclass(frozen=True)
class Method:
    """An algorithm to compare, with the settings written after its name."""

    name: str
    settings: dict[str, Any]
    """Hyper-parameters and any other fields of an experiment; they override the common ones."""
    own: algorithms.AlgorithmKind | None = None
    """The user's own algorithm, if the name is not one of Parley's."""

    @property
    def kind(self) -> algorithms.AlgorithmKind:
        """The algorithm."""
        return self.own or algorithms.find(self.name)

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
        return Experiment.of(**on_top(common, {"algorithm": {"name": self.kind, **self.settings}}))


TUNABLE = ("lr", "gamma")
"""What tuning may set."""


def parse_algorithms(
    specs: str, own: Callable[[str], dict[str, Any] | None] | None = None
) -> list[Method]:
    """What to compare, from ``dpsgd,ngc:alpha=0:lr=0.01,ngc``; ``all`` stands for every algorithm.

    `own` finds a user's algorithm: its table, or None for the name of one of Parley's.

    >>> parse_algorithms("choco:codec=topk:0.01,dpsgd:topology=circulant:1,5")[1]
    Method(name='dpsgd', settings={'topology': 'circulant:1,5'}, own=None)
    """
    chosen = []
    names = ",".join(algorithms.ALGORITHMS) if specs == "all" else specs
    # A comma may be part of a value, as in circulant:1,5: then no algorithm's name follows it.
    for spec in (s.strip() for s in re.split(r",(?!\s*[\d.]|[^:,]*=)", names) if s.strip()):
        name, settings = named_with(spec, "algorithms")
        if "metrics" in settings:
            valid = "metrics for all of them, for example --metrics f1,auroc"
            raise BadValue("algorithms", spec, valid, "all rows of a table have the same columns")
        if own and (table := own(spec)):
            chosen.append(Method(name, table, table.pop("name")))
            continue
        first = name.partition("+")[0]
        if ":" in first and not algorithms.is_own(first):
            raise BadValue("algorithms", spec, "name or name:option=value:option=value")
        chosen.append(Method(name, settings))
    if not chosen:
        raise BadValue("algorithms", specs, "at least one of " + ", ".join(algorithms.ALGORITHMS))
    return chosen


def check_used(options: Mapping[str, Any], kinds: Sequence[algorithms.AlgorithmKind]) -> None:
    """Refuses a hyper-parameter that none of the algorithms has."""
    for name in ALGORITHM_OPTIONS:
        if name in options and not any(name in kind.options() for kind in kinds):
            names = ", ".join(dict.fromkeys(kind.name for kind in kinds))
            because = f"none of {names} has it" if names else "no algorithm is given by name"
            raise BadValue(name, options[name], "an option of one of the algorithms", because)


def experiments_of(methods: Sequence[Method], common: Mapping[str, Any]) -> list[Experiment]:
    """One experiment per method with these options; see `Method.experiment`."""
    made = []
    for method in methods:
        try:
            made.append(method.experiment(common))
        except BadValue as error:
            if error.field != "variant" or "variant" in method.settings:
                raise
            fit = [m for m in methods if "gradient_at" in m.kind.options()]
            alone = ", ".join(f"{m.name}:variant={common['variant']}" for m in fit)
            words = f"{error}; to use it only where it exists: {alone}" if fit else str(error)
            raise error.saying(words) from None
    return made


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
    made: list[str] = []
    for experiment in experiments:
        label = experiment.algorithm.label
        for name in differing(experiments):
            if _names(experiment, name, experiments):
                label += f" {name}={getattr(experiment, name)}"
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


def _names(experiment: Experiment, field: str, experiments: Sequence[Experiment]) -> bool:
    """Whether its label gives its value of a field, rather than leaving that to the title."""
    if getattr(experiment, field) != usual([getattr(e, field) for e in experiments]):
        return True
    label = experiment.algorithm.label
    return _undecided([getattr(e, field) for e in experiments if e.algorithm.label == label])


def _peculiar(experiment: Experiment, experiments: Sequence[Experiment]) -> dict[str, Any]:
    """The hyper-parameters that are not the algorithm's defaults, unless all experiments that have
    them share them or the label already shows them."""
    algorithm = experiment.algorithm
    defaults = getattr(algorithm, "kind", type(algorithm)).options()
    found = {}
    for name, mine in algorithm.settings().items():
        missing = 1 if name == "local_steps" else mine  # whoever has none averages in every step
        shared = all(e.algorithm.settings().get(name, missing) == mine for e in experiments)
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
        if name not in shown
        and most[name] not in more
        and not all(_names(e, name, experiments) for e in experiments)
    ]
    return ", ".join([*said, f"{seeds} seed{'s' * (seeds > 1)}"])


def compare(todo: Sequence[Job], parallel: int, out: Path, resume: bool) -> None:
    """Runs all jobs, `parallel` at a time; finished ones are left as they are."""
    if out.exists() and not out.is_dir():
        raise BadValue("out", str(out), "a folder", "it is a file")
    _check_empty(out, resume)  # before a lock is left in somebody's folder
    # Of two comparisons in one folder, each could hold runs that the other needs.
    with Hold(out, uuid4().hex, rank=0) as hold:
        hold.settle([hold.take()])
        _check_empty(out, resume)  # another may have been here in the meantime
        _compare(todo, parallel, out, resume)


def _check_empty(out: Path, resume: bool) -> None:
    if resume or not out.exists():
        return
    if any(not path.name.startswith(LOCK) for path in out.iterdir()):
        because = "it is not empty; use --resume to continue a comparison"
        raise BadValue("out", str(out), "a new or empty folder", because)


def _compare(todo: Sequence[Job], parallel: int, out: Path, resume: bool) -> None:
    # Invalid input is found here, before anything is written or started.
    for job in todo:
        if (job.out / EXPERIMENT).exists():
            kept = enclosed(job.experiment, problems.topology_of(job.experiment))
            RunFolder(job.out).check(kept.experiment, resume, kept.files)
    settings = {(job.label, job.experiment.partition): job.experiment for job in todo}
    for experiment in settings.values():
        check_graph(experiment)
    notes: dict[str, None] = {}
    for experiment in {_problem_of(job.experiment): job.experiment for job in todo}.values():
        problem = problems.problem(experiment)
        Trainer(experiment, problem, Local(spread(problem.topology, 1)))
        notes[problem.note] = None
    for note in filter(None, notes):
        logger.info("%s", note)

    pending = [job for job in todo if not job.is_done]
    if parallel == 1 or len(pending) <= 1:
        one_by_one(pending, resume)
    else:
        parallel = min(parallel, len(pending))
        side_by_side([job.on_a_share(parallel) for job in pending], parallel, resume)


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
    topology = problems.topology_of(experiment)  # a graph that no method could use has no remedy
    try:
        experiment.algorithm.check(topology)
    except BadValue as error:
        for remedy in REMEDIES.get(error.field, []):
            name, _, value = remedy.partition("=")
            with suppress(BadValue):
                other = experiment.replace(**{name: value})
                other.algorithm.check(problems.topology_of(other))
                raise ParleyError(
                    f"{error}; for it alone: {other.algorithm.name}:{remedy}"
                ) from None
        raise


FIGURES = (
    "consensus_distance", "bytes_models", "bytes_cross_gradients", "seconds",
    "gradients_per_second", "peak_memory_mb",
)  # fmt: skip
"""What is averaged over seeds, besides loss and metrics."""
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
        trained = [end["epoch"] for end in ends]
        row |= {"epochs": statistics.mean(trained), "seeds": len(runs)}
        row["stopped"] = min(trained) < first.epochs
        row["momentum"] = first.algorithm.momentum_label
        network = (NETWORK,) if all(NETWORK in end for end in ends) else ()
        measured = [m.field(form) for m in first.measures for form in FORMS]
        for key in ("loss", *measured, *FIGURES, *network):
            values = [found for end in ends if (found := value(end, key)) is not None]
            row[key] = statistics.fmean(values) if values else None
            row[f"{key}_std"] = statistics.stdev(values) if len(values) > 1 else 0.0
        made.append(row)
    return made


Column = tuple[str, str, float, str, str]
"""A heading, its field, a factor, and the forms of mean and standard deviation."""


def columns_of(made: Sequence[dict[str, Any]]) -> list[Column]:
    """The columns for what was measured: all forms of the first metric, the averaged model of every
    other."""
    first, *others = of_record(made[0]) if made else [KNOWN["accuracy"]]
    unit, form, spread = (", %", ".1f", ".1f") if first.share else ("", ".4g", ".2g")
    name = f"{first.title},\n" * (first.name != "accuracy" or bool(others))
    titles = {"averaged\nmodel": "mean_model", "own\nmodels": "own"}
    titles |= {"after\ngossip": "after_gossip"}
    columns: list[Column] = [
        (f"{name}{title}{unit}", first.field(of), first.factor, form, spread)
        for title, of in titles.items()
    ]
    for measure in others:
        unit, form, spread = (", %", ".1f", ".1f") if measure.share else ("", ".4g", ".2g")
        title = f"{measure.title},\naveraged\nmodel{unit}"
        columns.append((title, measure.field("mean_model"), measure.factor, form, spread))
    return [*columns, ("consensus\ndistance", "consensus_distance", 1, ".3g", ".1g")]


def table(made: Sequence[dict[str, Any]]) -> Table:
    """One line per method; with the epochs and the momentum of each where they differ."""
    seconds = "network\nseconds" if any(NETWORK in row for row in made) else "seconds"
    columns = columns_of(made)
    headings = ["", *(heading for heading, *_ in columns), "MB sent\nper agent", seconds]
    found = Table(headings, [_cells(row, columns) for row in made])
    if any(row.get("stopped") for row in made):
        found = found.beside("epochs", [f"{row['epochs']:.4g}" for row in made])
    return with_momentum(found, made)


def with_momentum(table: Table, made: Sequence[Mapping[str, Any]]) -> Table:
    """The table with the momentum of each method, unless all have the same."""
    momenta = [row.get("momentum", "none") for row in made]
    return table.beside("momentum", momenta) if len(set(momenta)) > 1 else table


def _cells(row: dict[str, Any], columns: Sequence[Column]) -> list[str]:
    cells = [row["label"]]
    for _, key, factor, form, form_of_std in columns:
        if row.get(key) is None:
            cells.append("–")
            continue
        std = factor * row[f"{key}_std"] if row["seeds"] > 1 else None
        cells.append(mean_and_spread(factor * row[key], std, form, form_of_std))
    return [*cells, f"{megabytes(row):.2f}", f"{row.get(NETWORK, row['seconds']):.1f}"]


def write(out: Path, done: Sequence[Job], made: list[dict[str, Any]]) -> None:
    """Writes the table and the picture next to the runs."""
    write_atomically(out / "table.md", table(made).markdown())
    curves: dict[str, list[Any]] = {}
    for job in done:
        curves.setdefault(job.label, []).append(RunFolder(job.out).records())
    curves_picture(curves, out / "curves.svg")
