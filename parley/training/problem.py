"""What is trained on what: loads, partitions and checks everything that an experiment names."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import torch
from torch import Tensor, nn

from parley import data, models
from parley import graphs as topologies
from parley.code import check_allowed
from parley.compute.goals import Goal
from parley.compute.task import Loss, Task, cross_entropy
from parley.data import Samples, Transform, own
from parley.data import partition as partitions
from parley.data.preparation import AS_IS, Preparation
from parley.data.targets import CLASSES, strata
from parley.errors import BadValue
from parley.experiment import OWN, Experiment
from parley.graphs import Topology
from parley.models.architecture import Architecture
from parley.schedule import Own
from parley.training import tasks
from parley.training.initial import start_from
from parley.training.scoring import Function


@dataclass(frozen=True)
class Problem:
    """What is trained on what: everything that an experiment's names refer to."""

    topology: Topology
    model: Callable[[], nn.Module]
    """Builds the model that every agent starts from."""
    samples: Sequence[Samples]
    """The training data of each agent hosted here, and of no others."""
    test: Samples
    transform: Transform
    class_names: tuple[str, ...]
    loss: Loss = cross_entropy
    goal: Goal = field(default_factory=Goal)
    """The task, and what is measured."""
    functions: Mapping[str, Function] = field(default_factory=dict)
    """The user's own metrics by name."""
    test_sizes: tuple[int, ...] = ()
    """Where hosted agents have their own test samples: how many of those in `test` each has. None
    where they share those in `test`."""
    note: str = ""
    """Which rule the partition could not obey; may be empty."""
    test_is_shared: bool = True
    """Whether every process has the whole test set, or only that of its own agents."""
    data_are_own: bool = False
    """Whether the training data belong to the hosts, which tell others nothing about them."""
    lr_decay: Own | None = None
    """How the learning rate changes, if a Python function says so."""
    gamma_decay: Own | None = None
    """The same for the averaging rate."""
    preparation: Preparation = AS_IS
    """How inputs were made of files."""


def builder(
    experiment: Experiment, like: Samples, class_names: Sequence[str]
) -> Callable[[], nn.Module]:
    """Builds the network that the experiment names, for samples like these; a user's own only if
    this host allows it."""
    return architecture_of(experiment, like, class_names).build


def architecture_of(
    experiment: Experiment, like: Samples, class_names: Sequence[str]
) -> Architecture:
    """How the network that the experiment names is built for samples like these."""
    kind: Literal["name", "code"] = "code" if models.is_code(experiment.model) else "name"
    if kind == "code":
        check_allowed(experiment.model)
    return Architecture(
        model=experiment.model,
        kind=kind,
        options=experiment.model_options,
        input_shape=tuple(like.inputs.shape[1:]),
        classes=tasks.outputs_of(experiment, class_names, like.targets),
    )


def topology_of(experiment: Experiment) -> Topology:
    """The graph that the experiment names."""
    return topologies.parse(
        experiment.topology, experiment.agents, experiment.weights, experiment.seed
    )


def problem(
    experiment: Experiment,
    agents: Sequence[int] | None = None,
    topology: Topology | None = None,
    build: Callable[[], nn.Module] | None = None,
    loss: Loss | None = None,
    places: Mapping[int, str] | None = None,
    functions: Mapping[str, Function] | None = None,
) -> Problem:
    """Loads, partitions and checks what the experiment names; arguments replace names.

    Keeps the samples of these agents (default: all). `places` are where agents' own data are.
    `functions` are metrics by name.
    """
    topology = topology or topology_of(experiment)
    experiment.algorithm.check(topology)
    hosted = range(topology.agents) if agents is None else agents
    tokenizer = None if build else models.tokenizer(experiment.model, experiment.model_options)
    options = experiment.data_options
    places = places or None
    may_call = places is not None
    if OWN in (experiment.data, experiment.partition):
        places = places or {}
    elif places:
        valid = 'none, unless the experiment has data = "own" or partition = "own"'
        raise BadValue("data_here", next(iter(places.values())), valid)
    elif (folders := partitions.folders(experiment.partition)) is not None:
        if len(folders) != topology.agents:
            raise BadValue("partition", experiment.partition, f"{topology.agents} folders")
        places = dict(enumerate(folders))
    if experiment.data == OWN:
        made = _own_problem(experiment, hosted, topology, build, places or {}, tokenizer)
        return with_task(made, experiment, None, loss, functions)
    source = data.load(experiment.data, experiment.data_root, options, tokenizer)
    fraction, validation, seed = experiment.fraction, experiment.validation, experiment.seed
    targets = source.train.targets
    used = data.share_of(targets, fraction, seed)
    if validation:
        left, held = data.hold_out(targets[used], validation, seed)
        source = replace(source, test=source.train.take(used[held]))
        used = used[left]
    source = replace(source, test=share_of_test(source.test, experiment))
    if build is None:
        models.check_inputs(experiment.model, source.test.inputs)
    classes = len(source.class_names)
    build = build or builder(experiment, source.test, source.class_names)
    note = ""
    if places is not None:
        like, root = experiment.data, experiment.data_root
        names = source.class_names
        found = own.load(
            places, hosted, names, like, root, options, tokenizer, may_call, experiment.task
        )
        # No agent trains on the common samples, held out or not.
        samples, _ = data.cut_own(found.samples, source.test, fraction, 0.0, seed)
    else:
        labels = strata(targets)
        if experiment.task in CLASSES:
            partitions.check_labels(labels[used], classes)
        split = partitions.partition(experiment.partition, labels, topology, seed, used)
        samples = [source.train.take(split.indices[agent]) for agent in hosted]
        note = split.note
    made = Problem(
        topology=topology,
        model=build,
        samples=samples,
        test=source.test,
        transform=source.transform,
        class_names=source.class_names,
        note=note,
        data_are_own=places is not None,
        preparation=source.preparation,
    )
    known = None if places is not None else [targets[used]]
    return with_task(made, experiment, known, loss, functions)


def with_task(
    made: Problem,
    experiment: Experiment,
    known: Sequence[Tensor] | None,
    loss: Loss | None = None,
    functions: Mapping[str, Function] | None = None,
) -> Problem:
    """The problem with the experiment's task, loss and metrics, which are the user's own code only
    if this host allows it. `known` are the targets of all agents, where this process has them."""
    return replace(
        made,
        goal=tasks.goal_of(experiment),
        loss=loss or tasks.loss_of(experiment, made.class_names, known),
        functions={**tasks.functions_of(experiment), **(functions or {})},
    )


def share_of_test(test: Samples, experiment: Experiment) -> Samples:
    """A share of the test samples, the same for every seed."""
    if experiment.test_fraction == 1 or not len(test):
        return test
    return test.take(data.share_of(test.targets, experiment.test_fraction, seed=0))


def _own_problem(
    experiment: Experiment,
    hosted: Sequence[int],
    topology: Topology,
    build: Callable[[], nn.Module] | None,
    places: Mapping[int, str],
    tokenizer: str | None,
) -> Problem:
    if experiment.partition != OWN:
        raise BadValue("partition", experiment.partition, OWN, 'the experiment has data = "own"')
    root, options = experiment.data_root, experiment.data_options
    task, ignored = experiment.task, experiment.ignore_index
    found = own.load(places, hosted, None, "", root, options, tokenizer, task=task, ignored=ignored)
    names = found.class_names
    made = of_the_hosts(experiment, topology, build, found.samples, found.tests, names)
    return replace(made, preparation=found.preparation)


def of_the_hosts(
    experiment: Experiment,
    topology: Topology,
    build: Callable[[], nn.Module] | None,
    samples: Sequence[Samples],
    tests: Sequence[Samples],
    names: tuple[str, ...],
) -> Problem:
    """A problem with each host's own data; the handshake checks that they fit together.

    Each agent has its own test samples, or none; or there is one set for all of them.
    """
    fraction, validation = experiment.fraction, experiment.validation
    samples, tests = data.cut_each(samples, tests, fraction, validation, experiment.seed)
    tests = [share_of_test(test, experiment) for test in tests]
    sizes = tuple(map(len, tests)) if len(tests) == len(samples) else ()
    if build is None:
        models.check_inputs(experiment.model, samples[0].inputs)
        build = builder(experiment, samples[0], names)
    return Problem(
        topology=topology,
        model=build,
        samples=samples,
        test=data.joined(tests),
        test_sizes=sizes,
        transform=Transform(),
        class_names=names,
        test_is_shared=False,
        data_are_own=True,
    )


def task_of(experiment: Experiment, problem: Problem) -> Task:
    """The model to train, initialised identically in every process."""
    device, dtype = device_of(experiment.device), getattr(torch, experiment.dtype)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(experiment.seed)
        model = problem.model()
        if experiment.init:
            start_from(model, experiment.init)
    return Task(model, problem.loss, dtype, device, problem.goal)


def device_of(name: str) -> torch.device:
    """The device with that name, if it is available."""
    if not re.fullmatch(r"cpu|cuda(:\d+)?", name):
        raise BadValue("device", name, "cpu, cuda or cuda:N")
    present = torch.cuda.device_count()
    if name != "cpu" and int(name.partition(":")[2] or 0) >= present:
        valid = ", ".join(["cpu", *(f"cuda:{n}" for n in range(present))])
        raise BadValue("device", name, valid, "this CUDA device is not available")
    return torch.device(name)
