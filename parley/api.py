"""Parley from Python: `train` in one call, with the user's own model and data or named ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import torch
from torch import Tensor, nn

from parley import data as datasets
from parley import launch, run
from parley import topology as topologies
from parley.algorithms import Algorithm
from parley.data import Samples, Transform
from parley.errors import BadValue
from parley.experiment import Experiment
from parley.launch import Watcher
from parley.progress import TrainingProgress
from parley.run import Event, Problem, Record
from parley.task import Loss, Task, cross_entropy
from parley.topology import Topology


@dataclass(frozen=True)
class Result:
    """What a run leaves: its records, its summary, and the trained models."""

    experiment: Experiment
    records: list[Record]
    summary: dict[str, Any]
    task: Task
    x_ND: Tensor
    """Every agent's parameters, one row each."""

    def model(self) -> nn.Module:
        """The average of all agents' models."""
        return self.task.module(self.x_ND.double().mean(0).to(self.x_ND.dtype))

    def agent_model(self, agent: int) -> nn.Module:
        """One agent's own model."""
        return self.task.module(self.x_ND[agent])

    def plot(self, path: str | Path) -> Path:
        """Accuracies, loss and consensus distance over time, as a picture."""
        from parley.draw import curves_picture

        return curves_picture({self.experiment.algorithm.label: [self.records]}, path)


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
    **options: Any,
) -> Result:
    """Trains one model among peers; every field of `Experiment` may be given as an option.

    `model` is a name, an `nn.Module`, or something that makes one when called. `data` is a name,
    or one dataset for each agent: a pair (inputs, targets) or a torch or Hugging Face dataset of
    such pairs; `test` is then a dataset of the same kind, without which every agent is measured
    on the training data of all. Nothing is written unless `out` names a folder.

    >>> result = train(data="digits", algorithm="dpsgd", agents=4, epochs=1, progress=False)
    >>> result.summary["algorithm"], len(result.records), result.x_ND.shape[0]
    ('dpsgd', 1, 4)

    With the user's own model and data:

    >>> inputs, targets = torch.randn(2, 40, 3), torch.randint(2, (2, 40))
    >>> result = train(
    ...     model=lambda: nn.Linear(3, 2),
    ...     data=[(inputs[0], targets[0]), (inputs[1], targets[1])],
    ...     algorithm="ngc", alpha=0.5, epochs=2, progress=False,
    ... )
    >>> result.model()(torch.zeros(1, 3)).shape
    torch.Size([1, 2])
    """
    own_data = None if isinstance(data, str) else datasets.from_user(data)
    if own_data is not None:
        options.setdefault("agents", len(own_data))
        options.setdefault("partition", "own")
    if isinstance(topology, str):
        options["topology"] = topology
    else:
        topology = topologies.parse(topology)
        options.setdefault("agents", topology.agents)
        options["topology"] = topology.name
    experiment = Experiment.of(
        data=data if isinstance(data, str) else "own",
        model=model if isinstance(model, str) else _name(model),
        algorithm=algorithm,
        **options,
    )
    if not isinstance(model, str) and isinstance(data, str):
        load: Callable[[Experiment], Problem] = partial(_own_model, model, topology, loss)
    elif own_data is not None:
        held_out = datasets.from_user([test])[0] if test is not None else _all(own_data)
        load = partial(_own_data, model, topology, loss, own_data, held_out)
    elif not isinstance(topology, str):
        load = partial(_own_topology, topology)
    else:
        load = run.problem
    if loss is not cross_entropy and own_data is None and isinstance(model, str):
        raise BadValue("loss", loss, "only together with your own model or data")

    with TrainingProgress(experiment, shown=progress and launch.is_first()) as bar:

        def show(event: Event) -> None:
            bar(event)
            if watch:
                watch(event)

        outcome = launch.execute(experiment, load, Path(out) if out else None, resume, show)
    if outcome is None:
        raise SystemExit(0)  # a worker other than the first: its part is done
    return Result(experiment, outcome.records, outcome.summary, outcome.task, outcome.x_ND)


def _name(model: object) -> str:
    return getattr(model, "__name__", type(model).__name__)


def _builder(model: str | nn.Module | Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    if isinstance(model, nn.Module):
        return partial(_same, model)
    if not callable(model):
        raise BadValue("model", model, "a name, an nn.Module, or a function that makes one")
    return model


def _same(model: nn.Module) -> nn.Module:
    return model


def _all(samples: Sequence[Samples]) -> Samples:
    return Samples(torch.cat([s.inputs for s in samples]), torch.cat([s.targets for s in samples]))


def _check_topology(experiment: Experiment, topology: str | Topology) -> Topology:
    made = topologies.parse(topology, experiment.agents, experiment.weights, experiment.seed)
    experiment.algorithm.check(made)
    return made


def _own_topology(topology: Topology, experiment: Experiment) -> Problem:
    return run.problem(experiment, _check_topology(experiment, topology))


def _own_model(model: Any, topology: str | Topology, loss: Loss, experiment: Experiment) -> Problem:
    graph = _check_topology(experiment, topology)
    return run.problem(experiment, graph, build=_builder(model), loss=loss)


def _own_data(
    model: Any,
    topology: str | Topology,
    loss: Loss,
    samples: list[Samples],
    test: Samples,
    experiment: Experiment,
) -> Problem:
    graph = _check_topology(experiment, topology)
    if len(samples) != graph.agents:
        raise BadValue("data", f"{len(samples)} datasets", f"one for each of {graph.agents} agents")
    classes = int(max(s.targets.max() for s in [*samples, test])) + 1
    if isinstance(model, str):
        shape = tuple(test.inputs.shape[1:])
        build: Callable[[], nn.Module] = run.builder(experiment, shape, classes)
    else:
        build = _builder(model)
    names = tuple(str(c) for c in np.arange(classes))
    return Problem(graph, build, samples, test, Transform(), names, loss)
