"""The problem to train on: loads, partitions and checks everything that an experiment names."""

import logging
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import torch
from torch import Tensor, nn

from parley import data, models
from parley import graphs as topologies
from parley.compute.goals import Goal
from parley.compute.task import Loss, Task, cross_entropy
from parley.compute.trial import TRIED, tried
from parley.data import Samples, Transform, features, own, standard
from parley.data import partition as partitions
from parley.data.mapped import in_memory
from parley.data.options import Options
from parley.data.preparation import AS_IS, Preparation
from parley.data.samples import Data
from parley.data.targets import CLASSES, strata
from parley.errors import BadValue
from parley.experiment import OWN, Experiment
from parley.graphs import Topology
from parley.measures import LANGUAGE_MODEL
from parley.models.adapters import adapted, parse_lora
from parley.models.architecture import Architecture
from parley.models.text import NEXT_TOKEN
from parley.schedule import RateFunction
from parley.training import tasks
from parley.training.initial_weights import start_from
from parley.training.preceding import Parts, preceding
from parley.training.scoring import Function
from parley.user_code import check_allowed

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Problem:
    """Everything that an experiment's names refer to: graph, model, data, task."""

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
    lr_decay: RateFunction | None = None
    """How the learning rate changes, if a Python function determines it."""
    gamma_decay: RateFunction | None = None
    """The same for the averaging rate."""
    preparation: Preparation = AS_IS
    """How inputs were made of files."""
    standardise: bool = False
    """Whether the columns of the agents' tables still have to be, over the rows of all agents."""


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
    options = dict(experiment.model_options)
    if experiment.task == LANGUAGE_MODEL and experiment.model.startswith("hf:"):
        options["head"] = NEXT_TOKEN
    return Architecture(
        model=experiment.model,
        kind=kind,
        options=options,
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
    may_call = bool(places)
    places = _places(experiment, topology, places or None)
    before = preceding(experiment.init)
    tokenizer = before.tokenizer or tokenizer if before else tokenizer
    if experiment.data == OWN:
        made = _own_problem(experiment, hosted, topology, build, places or {}, tokenizer)
        return with_task(made, experiment, None, loss, functions)
    options, root, task = experiment.data_options, experiment.data_root, experiment.task
    kind, _, column = experiment.partition.partition(":")
    group, whole = column if kind == "column" else "", not experiment.validation
    loaded = data.load(experiment.data, root, options, tokenizer, task, whole, group)
    source, used = _shares(loaded, experiment)
    split = _dealt(source, used, experiment, topology) if places is None else None
    form, wanted = source.preparation.table, Options.of(options).standardise
    if before is not None:
        parts = Parts([source.train, source.test], source.class_names, source.preparation)
        [train, test], names, how = before.prepared(parts, task)
        source = replace(source, train=train, test=test, class_names=names, preparation=how)
    elif form is not None and wanted:
        form = standard.together(form, [source.train.take(used)])
        train, test = (standard.standardised(p, form) for p in (source.train, source.test))
        how = replace(source.preparation, table=form)
        source = replace(source, train=train, test=test, preparation=how)
    if build is None:
        models.check_inputs(experiment.model, source.test.inputs)
        build = builder(experiment, source.test, source.class_names)
    note, known = "", None
    if split is None:
        names, like = source.class_names, experiment.data
        found = own.load(
            places or {}, hosted, names, like, root, options, tokenizer, may_call, task
        )
        # No agent trains on the common samples, held out or not.
        fraction, seed = experiment.fraction, experiment.seed
        samples, _ = data.cut_own(found.samples, source.test, fraction, 0.0, seed)
    else:
        samples = [
            _seen(source.train.take(split.indices[agent]), agent, experiment) for agent in hosted
        ]
        note, known = split.note, [source.train.targets[used]]
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
    return with_task(made, experiment, known, loss, functions)


def _places(
    experiment: Experiment, topology: Topology, places: Mapping[int, str] | None
) -> Mapping[int, str] | None:
    """Where agents' own data are; None if a dataset is dealt out to them."""
    if OWN in (experiment.data, experiment.partition):
        return places or {}
    if places:
        valid = 'none, unless the experiment has data = "own" or partition = "own"'
        raise BadValue("data_here", next(iter(places.values())), valid)
    folders = partitions.folders(experiment.partition)
    if folders is None:
        return None
    if len(folders) != topology.agents:
        raise BadValue("partition", experiment.partition, f"{topology.agents} folders")
    return dict(enumerate(folders))


def _shares(source: Data, experiment: Experiment) -> tuple[Data, partitions.Indices]:
    """A source with the test samples that count, and which of its training samples are used."""
    targets, seed = source.train.targets, experiment.seed
    used = data.share_of(targets, experiment.fraction, seed)
    if experiment.validation:
        left, held = data.hold_out(targets[used], experiment.validation, seed)
        source = replace(source, test=in_memory(source.train.take(used[held])))
        used = used[left]
    return replace(source, test=share_of_test(source.test, experiment)), used


def _dealt(
    source: Data, used: partitions.Indices, experiment: Experiment, topology: Topology
) -> partitions.Partition:
    labels = strata(source.train.targets)
    if experiment.task in CLASSES:
        partitions.check_labels(labels[used], len(source.class_names))
    spec, seed = experiment.partition, experiment.seed
    return partitions.partition(spec, labels, topology, seed, used, source.groups)


def _seen(samples: Samples, agent: int, experiment: Experiment) -> Samples:
    """An agent's samples as it sees them, which a partition may decide."""
    spec, agents, seed = experiment.partition, experiment.agents, experiment.seed
    return features.changed(spec, samples, agent, agents, seed)


def with_task(
    made: Problem,
    experiment: Experiment,
    known: Sequence[Tensor] | None,
    loss: Loss | None = None,
    functions: Mapping[str, Function] | None = None,
) -> Problem:
    """The problem with the experiment's task, loss and metrics, which are the user's own code only
    if this host allows it. `known` are the targets of all agents, where this process has them."""
    before, transform = preceding(experiment.init), made.transform
    if before is not None:
        transform = replace(transform, mean=before.mean, std=before.std)
    return replace(
        made,
        transform=transform,
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
    before = preceding(experiment.init)
    found = own.load(
        places, hosted, None, "", root, options, tokenizer,
        task=task, ignored=ignored, labels=before.labels if before and task in CLASSES else (),
    )  # fmt: skip
    parts = found.class_names, found.preparation
    return of_the_hosts(experiment, topology, build, found.samples, found.tests, *parts)


def of_the_hosts(
    experiment: Experiment,
    topology: Topology,
    build: Callable[[], nn.Module] | None,
    samples: Sequence[Samples],
    tests: Sequence[Samples],
    names: tuple[str, ...],
    how: Preparation | None = None,
) -> Problem:
    """A problem with each host's own data; the handshake checks that they fit together.

    Each agent has its own test samples, or none; or there is one set for all of them. `how` their
    inputs were made, if options do not say it all.
    """
    options, before = Options.of(experiment.data_options), preceding(experiment.init)
    how = how or options.preparation
    standardise = how.table is not None and options.standardise
    if before is not None:
        parts = Parts([*samples, *tests], names, how)
        made, names, how = before.prepared(parts, experiment.task)
        samples, tests, standardise = made[: len(samples)], made[len(samples) :], False
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
        preparation=how,
        standardise=standardise,
    )


def task_of(experiment: Experiment, problem: Problem, agents: Sequence[int] | None = None) -> Task:
    """The model to train, initialised identically in every process, and its loss; refused here if
    they and the data of these agents do not fit together."""
    _check_finite(problem, range(len(problem.samples)) if agents is None else agents)
    device, dtype = device_of(experiment.device), getattr(torch, experiment.dtype)
    model = model_of(experiment, problem.model)
    task = Task(model, problem.loss, dtype, device, problem.goal, experiment.precision)
    some = problem.test if len(problem.test) else problem.samples[0]
    few = in_memory(some.take([i % len(some) for i in range(TRIED)]))
    inputs = problem.transform.normalise(few.inputs, dtype).to(device)
    classes = len(problem.class_names)
    task = tried(task, experiment.model, inputs, few.targets.to(device), classes)
    if task.facts.random_in_use:
        log.warning(
            "the model draws random numbers when it is used, not only in training, so its accuracy "
            "differs from one evaluation to the next; is there a dropout without self.training?"
        )
    return task


def _check_finite(problem: Problem, agents: Sequence[int]) -> None:
    names = [f"agent {number}" for number in agents]
    for name, samples in zip([*names, "test"], [*problem.samples, problem.test], strict=True):
        if samples.inputs.is_floating_point() and not bool(samples.inputs.isfinite().all()):
            raise BadValue("data", name, "finite inputs", "some are NaN or infinite")


def model_of(experiment: Experiment, build: Callable[[], nn.Module]) -> nn.Module:
    """The model that every agent starts from, with its adapters if there are any."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(experiment.seed)
        model = build()
        if experiment.init:
            start_from(model, experiment.init)
        if experiment.lora and (lora := parse_lora(experiment.lora)):
            model = adapted(model, lora)
    return model


def device_of(name: str) -> torch.device:
    """The device with that name, if it is available."""
    if not re.fullmatch(r"cpu|cuda(:\d+)?", name):
        raise BadValue("device", name, "cpu, cuda or cuda:N")
    present = torch.cuda.device_count()
    if name != "cpu" and int(name.partition(":")[2] or 0) >= present:
        valid = ", ".join(["cpu", *(f"cuda:{n}" for n in range(present))])
        raise BadValue("device", name, valid, "this CUDA device is not available")
    return torch.device(name)
