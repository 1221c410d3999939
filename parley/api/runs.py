"""`train` runs an experiment in one call, with your own model and data or named ones; `load` reads
a run back from its folder."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import networkx as nx
import torch
from torch import Tensor, nn

from parley import graphs as topologies
from parley import models
from parley.algorithms import Algorithm
from parley.cluster import launch
from parley.cluster.rank import is_first
from parley.cluster.run import Load, Outcome, Watcher
from parley.compute.losses import AUTO
from parley.compute.task import Loss, Task
from parley.errors import BadValue
from parley.experiment import OWN, Experiment
from parley.graphs import Topology
from parley.stopping import Callbacks, OnEpoch, OnRecord, check_function
from parley.store import checkpoint, outputs
from parley.training import from_python
from parley.training import problem as problems
from parley.training.record import Record
from parley.training.scoring import Function
from parley.user_code import allow_named
from parley.watch.observe import logged_to, observed

if TYPE_CHECKING:
    from parley.charts.picture import Picture
    from parley.results.read import RecordedRun
    from parley.results.seeds import Group
    from parley.store.inference import Answer


class Shown(ABC):
    """Runs that can be displayed."""

    @abstractmethod
    def _groups(self) -> Sequence[Group]:
        """The runs to show, with the seeds of one experiment grouped."""

    @overload
    def plot(self) -> Picture: ...

    @overload
    def plot(self, path: str | Path) -> Path: ...

    def plot(self, path: str | Path | None = None) -> Picture | Path:
        """The graph, accuracies, distance, traffic and loss as a picture.

        With a path, writes it there (png, svg or pdf). Without one, returns it for a notebook.
        """
        from parley.charts.picture import Picture
        from parley.results.pictures import overview

        picture = Picture(overview(self._groups()))
        return picture if path is None else picture.save(path)

    def report(self, path: str | Path) -> Path:
        """Writes the page that ``parley report`` produces: one HTML file."""
        from parley.files import write_atomically
        from parley.reproduce.cells import find_cell
        from parley.results.page import page

        write_atomically(Path(path), page(self._groups(), published=find_cell))
        return Path(path)


@dataclass(frozen=True)
class Result(Shown):
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
        from parley.results.read import RecordedRun
        from parley.results.seeds import Group
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
    ``(epoch, epochs) -> factor``, which are called in every step, with a fractional `epoch`.

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
    callbacks = Callbacks(on_epoch, on_record)
    callbacks.check()
    where = Path(out) if out else None
    logged = logged_to(log, where)
    experiment, load = _described(model, data, topology, algorithm, test, loss, metrics, options)
    bar = progress and is_first()
    with observed(experiment, logged, where, notes=progress, bar=bar, watch=watch) as tell:
        outcome = launch.execute(
            experiment, load, where, resume, tell, callbacks=callbacks, everywhere=True
        )
    assert outcome is not None
    return result_of(experiment, outcome)


def _described(
    model: str | nn.Module | Callable[[], nn.Module],
    data: str | Sequence[Any],
    topology: str | Topology | nx.Graph[Any],
    algorithm: str | Algorithm,
    test: Any,
    loss: str | Loss,
    metrics: str | Sequence[str | Function],
    options: dict[str, Any],
) -> tuple[Experiment, Load]:
    """The experiment that the arguments describe, with names in place of objects, and a function
    that builds its problem from the objects."""
    scored, of_task = from_python.scored(loss, metrics, options)
    data, test, table = from_python.from_tables(data, test, options)
    own_data = None
    if not isinstance(data, str):
        own_data = from_python.own_samples(data, options, table is not None)
    if own_data is None and test is not None:
        raise BadValue("test", type(test).__name__, "only together with your own data")
    graph = None if isinstance(topology, str) else topologies.parse(topology)
    if graph is not None:
        options.setdefault("agents", graph.agents)
    elif own_data is not None:
        options.setdefault("agents", len(own_data))
    named = {"model": model, "task": options.get("task"), "algorithm": algorithm}
    allow_named(named)  # the program itself has named them
    schedules = {f: options[f] for f in ("lr_decay", "gamma_decay") if callable(options.get(f))}
    for name, schedule in schedules.items():
        check_function(name, schedule, "epoch", "epochs")
    options |= dict.fromkeys(schedules, OWN)
    own = {"model": not isinstance(model, str), "data": own_data is not None}
    own |= dict.fromkeys([*of_task, *schedules], True)
    experiment = Experiment.of(
        **options,
        from_python=[name for name, is_own in own.items() if is_own],
        data=data if isinstance(data, str) else "own",
        model=model if isinstance(model, str) else from_python.name_of(model),
        topology=graph.name if graph else topology,
        algorithm=algorithm,
    )
    build = None if isinstance(model, str) else from_python.builder_of(model)
    load: Load
    if own_data is None:
        load = partial(from_python.problem_of_named_data, graph, build, scored)
    else:
        if len(own_data) != (agents := experiment.agents):
            raise BadValue("data", f"{len(own_data)} datasets", f"one for each of {agents} agents")
        tests = from_python.test_sets(test, own_data, experiment.task, experiment.data_options)
        parts = partial(from_python.problem_of_own_data, graph, build, scored, own_data, tests)
        load = partial(parts, table)
    return experiment, partial(from_python.with_schedules, load, schedules) if schedules else load


def result_of(experiment: Experiment, outcome: Outcome) -> Result:
    """The result of a run for the program that started it."""
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


@dataclass(frozen=True)
class LoadedRun(Shown):
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
        """The predictions of a complete run's model for images, ``.npy`` and ``.npz`` arrays, or
        texts, as ``parley predict`` prints it."""
        from parley.store.inference import answers

        trained = outputs.found(self.path)
        names, raw = trained.expected(resize).read([str(one) for one in inputs])
        module = trained.module(agent, build, allow_code)
        return answers(module, trained.card, names, raw)

    def _task(self, build: nn.Module | Callable[..., nn.Module] | None, x_ND: Tensor) -> Task:
        experiment = self.experiment
        if build is not None:
            model = problems.model_of(experiment, from_python.builder_of(build))
            task = Task(model, dtype=x_ND.dtype)
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
