"""Problems built from a Python program's own objects: model, data, graph, loss or metrics."""

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from torch import nn

from parley import data as datasets
from parley import graphs as topologies
from parley.compute.losses import AUTO
from parley.compute.task import Loss, cross_entropy
from parley.data import Samples, Transform, standard, tables
from parley.data.from_python import open_table, reads_options
from parley.data.options import Options
from parley.data.preparation import Preparation
from parley.data.targets import classes_in, described
from parley.errors import BadValue
from parley.experiment import Experiment
from parley.graphs import Topology
from parley.measures import CLASSIFICATION, OWN
from parley.models.architecture import Architecture
from parley.training import problem as problems
from parley.training.preceding import Parts, preceding
from parley.training.problem import Problem
from parley.training.scoring import Function
from parley.user_code import allow_named


def name_of(model: object) -> str:
    """The name of a model that was passed as an object."""
    return getattr(model, "__name__", type(model).__name__)


class Scored(NamedTuple):
    """A loss and metrics that a Python program gives."""

    loss: Loss | None = None
    """None: the one that the experiment names."""
    functions: Mapping[str, Function] = {}


def scored(
    loss: str | Loss | None,
    metrics: str | Sequence[str | Function],
    options: dict[str, Any],
) -> tuple[Scored, list[str]]:
    """A loss and metrics by name or as functions; the options then have their names. Returns the
    functions, and which options they are."""
    functions: dict[str, Function] = {}
    named: list[str] = []
    if callable(task := options.get("task")):  # short for the task own, and this loss
        if loss not in (None, AUTO):
            given = loss if isinstance(loss, str) else name_of(loss)
            raise BadValue("loss", given, "none: the task is a loss already")
        loss, options["task"] = task, OWN
    for metric in [metrics] if isinstance(metrics, str) or callable(metrics) else metrics:
        if isinstance(metric, str):
            named += [metric] * bool(metric)
        elif callable(metric):
            name = name_of(metric)
            if not name.isidentifier():
                raise BadValue(
                    "metrics", name, "a function with a name, def name(outputs, targets)"
                )
            functions[name] = metric
            higher = getattr(metric, "higher_is_better", True)
            named.append(f"{name}:{'lower' if higher is False else 'higher'}")
        else:
            raise BadValue("metrics", metric, "names, and functions of (outputs, targets)")
    if named:
        options["metrics"] = ",".join(named)
    allow_named({"loss": loss, "metrics": ",".join(named)})  # the program itself has named them
    own = ["metrics"] * bool(functions)
    if loss is None:
        return Scored(None, functions), own
    if isinstance(loss, str):
        options["loss"] = loss
        return Scored(None, functions), own
    if not callable(loss):
        raise BadValue("loss", loss, "a function of (outputs, targets), such as a loss of torch.nn")
    if loss is cross_entropy and options.get("task", CLASSIFICATION) == CLASSIFICATION:
        return Scored(None, functions), own
    return Scored(loss, functions), ["loss", *own]


def from_tables(
    data: Any, test: Any, options: Mapping[str, Any], agents: Sequence[int] | None = None
) -> tuple[Any, Any, tables.Read | None]:
    """Frames as samples, all read alike, and how; other data unchanged. `agents`: whose they are,
    if others have tables of their own elsewhere."""
    chosen = Options.of(options.get("data_options") or {})
    if not isinstance(data, list | tuple) or not (chosen.target and any(map(reads_options, data))):
        return data, test, None
    numbers = range(len(data)) if agents is None else agents
    several = isinstance(test, list)
    tests = dict(zip(numbers, test, strict=False)) if several else {None: test}
    if several and len(test) != len(data):
        raise BadValue("test", f"{len(test)} datasets", f"one for each of {len(data)} agents")
    held = {agent: each for agent, each in tests.items() if each is not None}
    given = {f"agent {agent}": each for agent, each in zip(numbers, data, strict=True)}
    given |= {"test" if a is None else f"test of agent {a}": each for a, each in held.items()}
    opened = {where: open_table(each, where, chosen) for where, each in given.items()}
    task = str(options.get("task", CLASSIFICATION))
    found = tables.read(opened, chosen.told, task, alone=agents is not None)
    made = [Samples(inputs, targets) for inputs, targets in found.pairs]
    tested = dict(zip(held, made[len(data) :], strict=True))
    return made[: len(data)], [tested.get(a) for a in tests] if several else tested.get(None), found


def own_samples(data: Any, options: dict[str, Any], tabular: bool = False) -> list[Samples]:
    """Each agent's samples; the options then say that the partition is the user's own. If they were
    tables, their options have been used already."""
    if not isinstance(data, list | tuple):
        found = f"it is a {type(data).__name__}"
        raise BadValue("data", name_of(data), "a name, or a list of one dataset per agent", found)
    if "partition" in options:
        valid = "none together with your own data: each agent holds the dataset you pass"
        raise BadValue("partition", options["partition"], valid)
    options["partition"] = "own"
    of_data = options.get("data_options") or {}
    if of_data and not tabular and not any(map(reads_options, data)):
        valid = "none: only pandas frames and datasets of the library `datasets` have options"
        raise BadValue("data_options", next(iter(of_data)), valid)
    task = str(options.get("task", CLASSIFICATION))
    return datasets.from_user(data, task=task, options=of_data)


def builder_of(model: nn.Module | Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    """A function that returns a new model each time, from a model or from a function."""
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
    """How to build the trained model again, as far as a file can describe it."""
    like = problem.test if len(problem.test) else problem.samples[0]
    if "model" not in experiment.from_python:
        return problems.architecture_of(experiment, like, problem.class_names)
    shape, classes = tuple(like.inputs.shape[1:]), len(problem.class_names)
    made = partial(Architecture, input_shape=shape, classes=classes)
    given = getattr(problem.model, "args", (None,))[0]
    home, name = getattr(given, "__module__", ""), getattr(given, "__qualname__", "")
    if home in ("", "__main__") or not name.isidentifier() or isinstance(given, nn.Module):
        return made(model=experiment.model, kind="python")
    return made(model=f"{home}:{name}", kind="code", passes=())


def held_out(
    test: Any, like: Samples, task: str, options: Mapping[str, Any] | None = None
) -> Samples:
    """A test set that has the form of an agent's samples."""
    valid = "a dataset of the same kind as each agent's"
    try:
        [samples] = datasets.from_user([test], task=task, options=options)
    except BadValue as error:
        raise BadValue("test", type(test).__name__, valid, str(error)) from None
    ours, theirs = samples.inputs, like.inputs
    if (ours.shape[1:], ours.dtype) != (theirs.shape[1:], theirs.dtype):
        because = f"its inputs are {described(ours)}, theirs {described(theirs)}"
        raise BadValue("test", type(test).__name__, valid, because)
    if samples.targets.shape[1:] != like.targets.shape[1:]:
        because = f"its targets are {described(samples.targets)}, theirs {described(like.targets)}"
        raise BadValue("test", type(test).__name__, valid, because)
    return samples


def test_sets(
    test: Any, samples: list[Samples], task: str, options: Mapping[str, Any] | None = None
) -> list[Samples]:
    """One test set for all agents, or one for each; without any, all agents' training data."""
    if test is None:
        return [datasets.joined(samples)]
    first = samples[0]
    # A pair may also be written as a list, but not one with as many datasets as there are agents.
    if isinstance(test, list) and all(_is_dataset(each) for each in test):
        if len(test) != len(samples):
            raise BadValue(
                "test", f"{len(test)} datasets", f"one for each of {len(samples)} agents"
            )
        if all(each is None for each in test):
            raise BadValue("test", test, "a test set for at least one agent")
        empty = Samples(first.inputs[:0], first.targets[:0])
        return [empty if each is None else held_out(each, first, task, options) for each in test]
    return [held_out(test, first, task, options)]


def _is_dataset(each: Any) -> bool:
    """Whether it is a dataset, or None, rather than inputs or targets."""
    return (
        each is None
        or isinstance(each, tuple | Samples)
        or reads_options(each)  # which have a shape, too
        or (hasattr(each, "__getitem__") and not (isinstance(each, list) or hasattr(each, "shape")))
    )


def problem_of_named_data(
    topology: Topology | None,
    build: Callable[[], nn.Module] | None,
    scored: Scored,
    experiment: Experiment,
    agents: Sequence[int],
) -> Problem:
    """The problem of a named dataset, with the objects that the program passes."""
    graph = _graph(topology, experiment)
    loss, functions = scored
    return problems.problem(experiment, agents, graph, build, loss, functions=functions)


def problem_of_own_data(
    topology: Topology | None,
    build: Callable[[], nn.Module] | None,
    scored: Scored,
    samples: list[Samples],
    tests: list[Samples],
    table: tables.Read | None,
    experiment: Experiment,
    agents: Sequence[int],
) -> Problem:
    """A dataset for each agent, with whatever else the program gives; one test set for all, or one
    for each. `table`: how they were read, if they were tables."""
    graph = _graph(topology, experiment)
    experiment.algorithm.check(graph)
    fraction, validation, seed = experiment.fraction, experiment.validation, experiment.seed
    shared = len(tests) == 1
    if shared:
        samples, test = datasets.cut_own(samples, tests[0], fraction, validation, seed)
        tests = [test]
    else:
        samples, tests = datasets.cut_each(samples, tests, fraction, validation, seed)
    tests = [problems.share_of_test(test, experiment) for test in tests]
    targets = [part.targets for part in [*samples, *tests]]
    names = classes_in(experiment.task, targets, experiment.ignore_index)
    options, before = Options.of(experiment.data_options), preceding(experiment.init)
    how = options.preparation
    if table is not None:
        names, how = table.class_names, Preparation(table=table.form)
    if before is not None:
        parts = Parts([*samples, *tests], names, how)
        made, names, how = before.prepared(parts, experiment.task)
        samples, tests = made[: len(samples)], made[len(samples) :]
    elif table is not None and options.standardise:
        form = standard.together(table.form, samples)
        samples, tests = (
            [standard.standardised(part, form) for part in parts] for parts in (samples, tests)
        )
        how = Preparation(table=form)
    build = build or problems.builder(experiment, samples[0], names)
    held = tests if shared else [tests[agent] for agent in agents]
    problem = Problem(
        graph,
        build,
        [samples[agent] for agent in agents],
        datasets.joined(held),
        Transform(),
        names,
        test_sizes=() if shared else tuple(map(len, held)),
        test_is_shared=shared,
        preparation=how,
    )
    known = [part.targets for part in samples]
    loss, functions = scored
    return problems.with_task(problem, experiment, known, loss, functions)


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
    """A problem whose rates follow the user's functions."""
    return replace(load(experiment, agents), **schedules)
