"""Problems made of what a Python program gives: its own model, data, graph or loss."""

import copy
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from torch import nn

from parley import data as datasets
from parley import graphs as topologies
from parley.compute.task import Loss
from parley.data import Samples, Transform
from parley.errors import BadValue
from parley.experiment import Experiment
from parley.graphs import Topology
from parley.models.architecture import Architecture
from parley.training import problem as problems
from parley.training.problem import Problem


def name_of(model: object) -> str:
    """What to call a model that has no name of Parley's."""
    return getattr(model, "__name__", type(model).__name__)


def own_samples(data: Any, options: dict[str, Any]) -> list[Samples]:
    """Each agent's samples; the options then say that the partition is the user's own."""
    if not isinstance(data, list | tuple):
        found = f"it is a {type(data).__name__}"
        raise BadValue("data", name_of(data), "a name, or a list of one dataset per agent", found)
    if "partition" in options:
        valid = "none together with your own data: each agent holds the dataset you pass"
        raise BadValue("partition", options["partition"], valid)
    options["partition"] = "own"
    return datasets.from_user(data)


def builder_of(model: nn.Module | Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    """Makes a new model each time, from a model or from what makes one."""
    if not callable(model):
        raise BadValue("model", model, "a name, an nn.Module, or a function that returns one")
    return partial(_make, model)


def _make(model: nn.Module | Callable[[], nn.Module]) -> nn.Module:
    # A copy: training must not change the user's module.
    made = copy.deepcopy(model) if isinstance(model, nn.Module) else model()
    if not isinstance(made, nn.Module):
        raise BadValue("model", name_of(model), "a callable that returns an nn.Module")
    return made


def architecture_of(experiment: Experiment, problem: Problem) -> Architecture:
    """How the model that is trained can be built again, as far as words can say it."""
    raw = problem.test.inputs if len(problem.test) else problem.samples[0].inputs
    shape, classes = tuple(raw.shape[1:]), len(problem.class_names)
    made = partial(Architecture, input_shape=shape, classes=classes)
    if "model" not in experiment.from_python:
        return problems.architecture_of(experiment, shape, classes)
    given = getattr(problem.model, "args", (None,))[0]
    home, name = getattr(given, "__module__", ""), getattr(given, "__qualname__", "")
    if home in ("", "__main__") or not name.isidentifier() or isinstance(given, nn.Module):
        return made(model=experiment.model, kind="python")
    return made(model=f"{home}:{name}", kind="code", passes=())


def held_out(test: Any, like: Samples) -> Samples:
    """A test set that has the form of an agent's samples."""
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


def problem_of_named_data(
    topology: Topology | None,
    build: Callable[[], nn.Module] | None,
    loss: Loss,
    experiment: Experiment,
    agents: Sequence[int],
) -> Problem:
    """A dataset by name, with whatever else the program gives."""
    return problems.problem(experiment, agents, _graph(topology, experiment), build, loss)


def problem_of_own_data(
    topology: Topology | None,
    build: Callable[[], nn.Module] | None,
    loss: Loss,
    samples: list[Samples],
    test: Samples,
    experiment: Experiment,
    agents: Sequence[int],
) -> Problem:
    """A dataset for each agent, with whatever else the program gives."""
    graph = _graph(topology, experiment)
    experiment.algorithm.check(graph)
    fraction, validation = experiment.fraction, experiment.validation
    samples, test = datasets.cut_own(samples, test, fraction, validation, experiment.seed)
    test = problems.share_of_test(test, experiment)
    classes = int(max(s.targets.max() for s in [*samples, test])) + 1
    build = build or problems.builder(experiment, tuple(test.inputs.shape[1:]), classes)
    names = tuple(map(str, range(classes)))
    hosted = [samples[agent] for agent in agents]
    return Problem(graph, build, hosted, test, Transform(), names, loss)


def _graph(topology: Topology | None, experiment: Experiment) -> Topology:
    if topology is None:
        return problems.topology_of(experiment)
    return topologies.parse(topology, experiment.agents, experiment.weights)


def with_schedules(
    load: Callable[[Experiment, Sequence[int]], Problem],
    schedules: dict[str, Any],
    experiment: Experiment,
    agents: Sequence[int],
) -> Problem:
    """A problem whose rates follow functions of the user's."""
    return replace(load(experiment, agents), **schedules)
