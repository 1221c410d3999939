"""Parley from Python: `train` in one call, with your own model and data or named ones; `compare`
and `tune` for many runs; `load` to read what a run has written."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import networkx as nx
import torch
from torch import Tensor, nn

from parley import graphs as topologies
from parley import models
from parley.algorithms import Algorithm, Kind
from parley.cluster import launch
from parley.cluster.rank import is_first
from parley.cluster.worker import Load, Outcome, Watcher
from parley.code import allow_named
from parley.compute.losses import AUTO
from parley.compute.task import Loss, Task
from parley.compute.threads import usable_cores
from parley.errors import BadValue
from parley.experiment import ALGORITHM_OPTIONS, OWN, Experiment
from parley.graphs import Topology
from parley.stopping import Callbacks, OnEpoch, OnRecord
from parley.store import checkpoint, outputs
from parley.store.folder import fresh_name
from parley.training import given
from parley.training import problem as problems
from parley.training.events import Event
from parley.training.record import Record
from parley.training.scoring import Function
from parley.watch import trackers
from parley.watch.log import LOG, console, show
from parley.watch.progress import TrainingProgress

if TYPE_CHECKING:
    from parley.results.group import Group
    from parley.results.pictures import Picture
    from parley.results.read import RecordedRun
    from parley.store.using import Answer


class _Shown(ABC):
    """Runs that can be displayed."""

    @abstractmethod
    def _groups(self) -> Sequence[Group]:
        """What is shown, with the seeds of one experiment grouped."""

    @overload
    def plot(self) -> Picture: ...

    @overload
    def plot(self, path: str | Path) -> Path: ...

    def plot(self, path: str | Path | None = None) -> Picture | Path:
        """The graph, accuracies, distance, traffic and loss as a picture.

        With a path, writes it there (png, svg or pdf). Without one, returns it for a notebook.
        """
        from parley.results.pictures import Picture, overview

        picture = Picture(overview(self._groups()))
        return picture if path is None else picture.save(path)

    def report(self, path: str | Path) -> Path:
        """Writes the page that ``parley report`` produces: one HTML file."""
        from parley.files import write_atomically
        from parley.reproduce.cell import find_cell
        from parley.results.page import page

        write_atomically(Path(path), page(self._groups(), published=find_cell))
        return Path(path)


@dataclass(frozen=True)
class Result(_Shown):
    """The result of a run: its records, its summary and the trained models."""

    experiment: Experiment
    records: list[Record]
    summary: dict[str, Any]
    task: Task
    x_ND: Tensor
    """Every agent's parameters, one row each."""
    about: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Graph and holdings (``agents``) and the ``confusion`` of the best and the worst agent."""
    models_NE: Tensor | None = None
    """The same as `x_ND`, with the running statistics of each model (BatchNorm's) behind them."""
    mean_E: Tensor | None = None
    """The average of all models, with the running statistics that it needs."""

    def model(self, agent: int | None = None) -> nn.Module:
        """The average of all agents' models, or one agent's own."""
        if agent is None and self.mean_E is not None:
            return self.task.module(self.mean_E)
        return self.task.module(
            _chosen(self.x_ND if self.models_NE is None else self.models_NE, agent)
        )

    def _groups(self) -> Sequence[Group]:
        from parley.results.group import Group
        from parley.results.read import RecordedRun
        from parley.store.folder import environment

        run = RecordedRun(
            path=Path(self.summary["out"] or "."),
            options=self.experiment.model_dump(exclude_none=True),
            environment=environment(),
            records=self.records,
            summary=self.summary,
            agents=self.about.get("agents"),
            confusion=self.about.get("confusion"),
        )
        return [Group(self.experiment.algorithm.label, [run], self.experiment)]


def train(
    model: str | nn.Module | Callable[[], nn.Module] = "mlp",
    data: str | Sequence[Any] = "digits",
    topology: str | Topology | nx.Graph[Any] = "ring",
    algorithm: str | Algorithm = "ngc",
    *,
    test: Any = None,
    loss: str | Loss = AUTO,
    metrics: str | Sequence[str | Function] = (),
    out: str | Path | None = None,
    resume: bool = False,
    progress: bool = True,
    watch: Watcher | None = None,
    log: str | Sequence[str] = (),
    on_epoch: OnEpoch | None = None,
    on_record: OnRecord | None = None,
    **options: Any,
) -> Result:
    """Trains one model among peers; every field of `Experiment` may be given as an option.

    `model` is a name, ``module:function``, an `nn.Module`, or a callable that returns one. `data`
    is a name, or one dataset per agent: a pair (inputs, targets) or a torch or Hugging Face dataset
    of such pairs; `test` is then a dataset of the same kind, or a list with one for each agent
    (None for one that has none), without which every agent is measured on the training data of all.

    `task` says what is learned (``"classification"``, ``"regression"``, …). `loss` is a name,
    ``module:function``, or a function that returns one value per sample or their mean, like those
    of torch.nn. `metrics` are names (``"f1,auroc"``), ``module:function``, and functions of
    (outputs, targets) that return a number; one whose attribute ``higher_is_better`` is False is
    better when it is lower.

    Nothing is written unless `out` names a folder. `log` names trackers that receive the
    metrics (tensorboard, wandb, mlflow); they write to that folder.

    `on_epoch` is called with the number of epochs made, after each of them, and `on_record` with
    every record, both by the first worker only. The run ends, with its record, checkpoint and
    summary, once one of them returns True. `lr_decay` and `gamma_decay` may also be functions
    ``(epoch, epochs) -> factor``, which are asked in every step; `epoch` is then a fraction.

    >>> result = train(data="digits", algorithm="dpsgd", agents=4, epochs=1, progress=False)
    >>> result.summary["algorithm"], len(result.records), result.x_ND.shape[0]
    ('dpsgd', 1, 4)

    With the user's own model and data:

    >>> import torch
    >>> inputs, targets = torch.randn(2, 40, 3), torch.randint(2, (2, 40))
    >>> result = train(
    ...     model=lambda: nn.Linear(3, 2),
    ...     data=[(inputs[0], targets[0]), (inputs[1], targets[1])],
    ...     algorithm="ngc", alpha=0.5, epochs=2, progress=False,
    ... )
    >>> result.model()(torch.zeros(1, 3)).shape
    torch.Size([1, 2])
    """
    logged = trackers.parse(log)
    if logged and out is None:
        raise BadValue("log", ",".join(logged), "only together with out, the folder to write to")
    scored, of_task = given.scored(loss, metrics, options)
    own_data = None if isinstance(data, str) else given.own_samples(data, options)
    if own_data is None and test is not None:
        raise BadValue("test", type(test).__name__, "only together with your own data")
    graph = None if isinstance(topology, str) else topologies.parse(topology)
    if graph is not None:
        options.setdefault("agents", graph.agents)
    elif own_data is not None:
        options.setdefault("agents", len(own_data))
    allow_named({"model": model})  # the program itself has named it
    own = {"model": not isinstance(model, str), "data": own_data is not None}
    own |= dict.fromkeys(of_task, True)
    schedules = {f: options[f] for f in ("lr_decay", "gamma_decay") if callable(options.get(f))}
    options |= dict.fromkeys(schedules, OWN)
    own |= dict.fromkeys(schedules, True)
    experiment = Experiment.of(
        **options,
        from_python=[name for name, is_own in own.items() if is_own],
        data=data if isinstance(data, str) else "own",
        model=model if isinstance(model, str) else given.name_of(model),
        topology=graph.name if graph else topology,
        algorithm=algorithm,
    )
    if own_data is not None and len(own_data) != experiment.agents:
        agents = experiment.agents
        raise BadValue("data", f"{len(own_data)} datasets", f"one for each of {agents} agents")
    build = None if isinstance(model, str) else given.builder_of(model)
    load: Load
    if own_data is None:
        load = partial(given.problem_of_named_data, graph, build, scored)
    else:
        tests = given.test_sets(test, own_data, experiment.task)
        load = partial(given.problem_of_own_data, graph, build, scored, own_data, tests)
    if schedules:
        load = partial(given.with_schedules, load, schedules)

    if progress and not LOG.hasHandlers():
        show()  # notes next to the bar, unless the user has set up logging
    with TrainingProgress(experiment, shown=progress and is_first()) as bar:

        def shown(event: Event) -> None:
            bar(event)
            if watch:
                watch(event)

        where = Path(out) if out else None
        with trackers.logging(logged, experiment, where or Path(), shown) as tell:
            callbacks = Callbacks(on_epoch, on_record)
            outcome = launch.execute(
                experiment, load, where, resume, tell, callbacks=callbacks, everywhere=True
            )
    assert outcome is not None
    return result_of(experiment, outcome)


def result_of(experiment: Experiment, outcome: Outcome) -> Result:
    """What a program gets."""
    return Result(
        experiment,
        outcome.records,
        outcome.summary,
        outcome.task,
        outcome.x_ND,
        outcome.about,
        outcome.models_NE,
        outcome.mean_E,
    )


# --- reading, comparing, tuning ---------------------------------------------------------------


@dataclass(frozen=True)
class LoadedRun(_Shown):
    """A run as read from its folder, finished or not."""

    path: Path
    experiment: Experiment
    records: list[Record]
    """One per evaluation, oldest first."""
    summary: dict[str, Any] | None
    """Of a complete run."""
    recorded: RecordedRun
    """Everything else in the folder: environment, graph, confusion, notes on damage."""

    def parameters(self) -> Tensor:
        """Every agent's parameters in the newest complete checkpoint, one row each."""
        x_ND: Tensor = self._checkpoint().state
        return x_ND

    def _checkpoint(self) -> checkpoint.Loaded:
        found = checkpoint.models(self.path, range(self.experiment.agents))
        if found is None:
            because = "it has no checkpoint with the models of all agents"
            raise BadValue(
                "folder", str(self.path), "the folder of a run that has completed an epoch", because
            )
        return found

    def model(
        self,
        build: nn.Module | Callable[..., nn.Module] | None = None,
        *,
        agent: int | None = None,
        allow_code: str | Sequence[str] = (),
    ) -> nn.Module:
        """The average of all agents' models, or one agent's own; of a run that is not complete, as
        of its newest complete checkpoint.

        If the run trained your own model, `build` is that model or a function that returns it. If
        it was named as ``module:function``, `allow_code` may name the module instead: it is then
        imported from your own path.
        """
        trained = outputs.Trained.read(self.path) if self.summary is not None else None
        if trained is not None:
            return trained.module(agent, build, allow_code)
        found = self._checkpoint()
        models_NE = found.state if found.b_AS is None else torch.cat([found.state, found.b_AS], 1)
        return self._task(build, found.state).module(_chosen(models_NE, agent))

    def predict(
        self,
        *inputs: str | Path,
        agent: int | None = None,
        build: nn.Module | Callable[..., nn.Module] | None = None,
        allow_code: str | Sequence[str] = (),
        resize: bool = False,
    ) -> list[Answer]:
        """What the model of a complete run says about images, ``.npy`` and ``.npz`` arrays, or
        texts, as ``parley predict`` prints it."""
        from parley.store.using import answers

        trained = outputs.found(self.path)
        names, raw = trained.expected(resize).read([str(one) for one in inputs])
        module = trained.module(agent, build, allow_code)
        return answers(module, trained.card, names, raw)

    def _task(self, build: nn.Module | Callable[..., nn.Module] | None, x_ND: Tensor) -> Task:
        experiment = self.experiment
        if build is not None:
            task = Task(given.builder_of(build)(), dtype=x_ND.dtype)
        elif experiment.data == OWN or experiment.model not in (*models.MODELS, *models.TEXT):
            valid = "model(build) with the nn.Module that was trained"
            raise BadValue("model", experiment.model, valid, "the run used its own model or data")
        else:
            task = problems.task_of(experiment, problems.problem(experiment, [0]))
        if task.size != x_ND.shape[1]:
            because = f"it has {task.size:,} parameters, but the checkpoint has {x_ND.shape[1]:,}"
            raise BadValue("model", experiment.model, "the model that was trained", because)
        return task

    def _groups(self) -> Sequence[Group]:
        from parley.results.group import group_seeds

        return group_seeds([self.recorded], self.experiment.algorithm.kind)


def _chosen(x_ND: Tensor, agent: int | None) -> Tensor:
    """One agent's row, or the mean of all."""
    if agent is None:
        return x_ND.double().mean(0).to(x_ND.dtype)
    if not 0 <= agent < len(x_ND):
        raise BadValue("agent", agent, f"0 to {len(x_ND) - 1}")
    return x_ND[agent]


def load(folder: str | Path, algorithm: Algorithm | type[Algorithm] | None = None) -> LoadedRun:
    """Reads a run from its folder. If it used an algorithm of your own, pass that as `algorithm`.

    >>> import tempfile, torch
    >>> out = Path(tempfile.mkdtemp()) / "run"
    >>> _ = train(agents=3, epochs=2, out=out, progress=False)
    >>> found = load(out)
    >>> found.experiment.agents, len(found.records), found.summary["epochs"]
    (3, 2, 2)
    >>> found.model()(torch.zeros(1, 1, 8, 8)).shape
    torch.Size([1, 10])
    """
    from parley.results.group import group_seeds
    from parley.results.read import read_run

    path = Path(folder)
    found = read_run(path)
    own = algorithm.kind if isinstance(algorithm, Algorithm) else algorithm
    [group] = group_seeds([found], own)
    if group.experiment is None:
        valid = "the folder of a run that this version understands; "
        valid += "for an algorithm of your own, load(folder, algorithm=its class)"
        raise BadValue("folder", str(path), valid, "; ".join([*found.notes, group.note]))
    return LoadedRun(path, group.experiment, found.records, found.summary, found)


@dataclass(frozen=True)
class Comparison(_Shown):
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
        from parley.results.group import Group

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
    """What to run, by method: its name, and the options after it."""
    from parley.sweep.compare import check_used, experiments_of, parse_algorithms

    common = {name: value for name, value in options.items() if name not in ALGORITHM_OPTIONS}
    chosen: list[tuple[str, Experiment]] = []
    named: list[Kind] = []
    for one in [algorithms] if isinstance(algorithms, str) else algorithms:
        if isinstance(one, str):
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
