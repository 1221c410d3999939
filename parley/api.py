"""Parley from Python: `train` in one call, with the user's own model and data or named ones."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import networkx as nx
from torch import Tensor, nn

from parley import data as datasets
from parley import graphs as topologies
from parley.algorithms import Algorithm
from parley.cluster import launch
from parley.cluster.worker import Load, Watcher
from parley.compute.task import Loss, Task, cross_entropy
from parley.data import Samples, Transform
from parley.errors import BadValue
from parley.experiment import Experiment
from parley.graphs import Topology
from parley.training import run
from parley.training.events import Event
from parley.training.record import Record
from parley.training.run import Problem
from parley.watch import trackers
from parley.watch.progress import TrainingProgress

if TYPE_CHECKING:
    from parley.results.group import Group
    from parley.results.pictures import Picture


@dataclass(frozen=True)
class Result:
    """What a run leaves: its records, its summary, and the trained models."""

    experiment: Experiment
    records: list[Record]
    summary: dict[str, Any]
    task: Task
    x_ND: Tensor
    """Every agent's parameters, one row each."""
    about: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Graph and holdings (``agents``) and the ``confusion`` of the best and the worst agent."""

    def model(self) -> nn.Module:
        """The average of all agents' models."""
        return self.task.module(self.x_ND.double().mean(0).to(self.x_ND.dtype))

    def agent_model(self, agent: int) -> nn.Module:
        """One agent's own model."""
        return self.task.module(self.x_ND[agent])

    @overload
    def plot(self) -> Picture: ...

    @overload
    def plot(self, path: str | Path) -> Path: ...

    def plot(self, path: str | Path | None = None) -> Picture | Path:
        """The graph, accuracies, distance, traffic and loss as a picture.

        With a path, writes it there (png, svg or pdf). Without, returns it: a notebook shows it.
        """
        from parley.results.pictures import Picture, overview

        picture = Picture(overview([self._group()]))
        return picture if path is None else picture.save(path)

    def report(self, path: str | Path) -> Path:
        """Writes the page that ``parley report`` makes of a run: one HTML file."""
        from parley.files import write_atomically
        from parley.reproduce.cell import find_cell
        from parley.results.page import page

        write_atomically(Path(path), page([self._group()], published=find_cell))
        return Path(path)

    def _group(self) -> Group:
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
        return Group(self.experiment.algorithm.label, [run], self.experiment)


def train(
    model: str | nn.Module | Callable[[], nn.Module] = "mlp",
    data: str | Sequence[Any] = "digits",
    topology: str | Topology | nx.Graph[Any] = "ring",
    algorithm: str | Algorithm = "ngc",
    *,
    test: Any = None,
    loss: Loss = cross_entropy,
    out: str | Path | None = None,
    resume: bool = False,
    progress: bool = True,
    watch: Watcher | None = None,
    log: str | Sequence[str] = (),
    **options: Any,
) -> Result:
    """Trains one model among peers; every field of `Experiment` may be given as an option.

    `model` is a name, an `nn.Module`, or something that makes one when called. `data` is a name,
    or one dataset for each agent: a pair (inputs, targets) or a torch or Hugging Face dataset of
    such pairs; `test` is then a dataset of the same kind, without which every agent is measured
    on the training data of all. `loss` gives one value for each sample or their mean, as those of
    torch.nn do. Nothing is written unless `out` names a folder. `log` names
    trackers that receive the metrics (tensorboard, wandb, mlflow); they write into that folder.

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
    if not callable(loss):
        raise BadValue("loss", loss, "a function of (outputs, targets), such as a loss of torch.nn")
    logged = trackers.parse(log)
    if logged and out is None:
        raise BadValue("log", ",".join(logged), "only together with out, where it is written")
    own_data = None if isinstance(data, str) else _own_samples(data, options)
    if own_data is None and test is not None:
        raise BadValue("test", type(test).__name__, "only together with your own data")
    graph = None if isinstance(topology, str) else topologies.parse(topology)
    if graph is not None:
        options.setdefault("agents", graph.agents)
    elif own_data is not None:
        options.setdefault("agents", len(own_data))
    given = {"model": not isinstance(model, str), "data": own_data is not None}
    given["loss"] = loss is not cross_entropy
    experiment = Experiment.of(
        **options,
        from_python=[name for name, is_own in given.items() if is_own],
        data=data if isinstance(data, str) else "own",
        model=model if isinstance(model, str) else _name(model),
        topology=graph.name if graph else topology,
        algorithm=algorithm,
    )
    if own_data is not None and len(own_data) != experiment.agents:
        agents = experiment.agents
        raise BadValue("data", f"{len(own_data)} datasets", f"one for each of {agents} agents")
    build = None if isinstance(model, str) else _builder(model)
    load: Load
    if own_data is None:
        load = partial(_named_data, graph, build, loss)
    else:
        held_out = datasets.joined(own_data) if test is None else _held_out(test, own_data[0])
        load = partial(_own_data, graph, build, loss, own_data, held_out)

    with TrainingProgress(experiment, shown=progress and launch.is_first()) as bar:

        def show(event: Event) -> None:
            bar(event)
            if watch:
                watch(event)

        where = Path(out) if out else None
        with trackers.logging(logged, experiment, where or Path(), show) as tell:
            outcome = launch.execute(experiment, load, where, resume, tell)
    if outcome is None:
        raise SystemExit(0)  # a worker other than the first: its part is done
    return Result(
        experiment, outcome.records, outcome.summary, outcome.task, outcome.x_ND, outcome.about
    )


def _name(model: object) -> str:
    return getattr(model, "__name__", type(model).__name__)


def _own_samples(data: Any, options: dict[str, Any]) -> list[Samples]:
    if not isinstance(data, list | tuple):
        found = f"it is a {type(data).__name__}"
        raise BadValue("data", _name(data), "a name, or a list of one dataset per agent", found)
    if "partition" in options:
        valid = "none together with your own data: each agent holds what you give it"
        raise BadValue("partition", options["partition"], valid)
    options["partition"] = "own"
    return datasets.from_user(data)


def _builder(model: nn.Module | Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    if not callable(model):
        raise BadValue("model", model, "a name, an nn.Module, or a function that makes one")
    return partial(_make, model)


def _make(model: nn.Module | Callable[[], nn.Module]) -> nn.Module:
    # A copy: training must not change what the user gave.
    made = copy.deepcopy(model) if isinstance(model, nn.Module) else model()
    if not isinstance(made, nn.Module):
        raise BadValue("model", _name(model), "something that makes an nn.Module when called")
    return made


def _held_out(test: Any, like: Samples) -> Samples:
    valid = "a dataset of the same kind as each agent's"
    try:
        [samples] = datasets.from_user([test])
    except BadValue as error:
        raise BadValue("test", type(test).__name__, valid, str(error)) from None
    ours, theirs = samples.inputs, like.inputs
    if (ours.shape[1:], ours.dtype) != (theirs.shape[1:], theirs.dtype):
        because = f"its inputs are {ours.dtype} of shape {list(ours.shape[1:])}, theirs "
        because += f"{theirs.dtype} of shape {list(theirs.shape[1:])}"
        raise BadValue("test", type(test).__name__, valid, because)
    return samples


def _named_data(
    topology: Topology | None,
    build: Callable[[], nn.Module] | None,
    loss: Loss,
    experiment: Experiment,
    agents: Sequence[int],
) -> Problem:
    return run.problem(experiment, agents, _graph(topology, experiment), build, loss)


def _own_data(
    topology: Topology | None,
    build: Callable[[], nn.Module] | None,
    loss: Loss,
    samples: list[Samples],
    test: Samples,
    experiment: Experiment,
    agents: Sequence[int],
) -> Problem:
    graph = _graph(topology, experiment)
    experiment.algorithm.check(graph)
    fraction, validation = experiment.fraction, experiment.validation
    samples, test = datasets.cut_own(samples, test, fraction, validation, experiment.seed)
    test = run.share_of_test(test, experiment)
    classes = int(max(s.targets.max() for s in [*samples, test])) + 1
    build = build or run.builder(experiment, tuple(test.inputs.shape[1:]), classes)
    names = tuple(map(str, range(classes)))
    hosted = [samples[agent] for agent in agents]
    return Problem(graph, build, hosted, test, Transform(), names, loss)


def _graph(topology: Topology | None, experiment: Experiment) -> Topology:
    if topology is None:
        return run.topology_of(experiment)
    return topologies.parse(topology, experiment.agents, experiment.weights)
