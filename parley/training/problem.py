"""What is trained on what: loads, partitions and checks everything that an experiment names."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import nn

from parley import data, models
from parley import graphs as topologies
from parley.compute.task import Loss, Task, cross_entropy
from parley.data import Samples, Transform, own
from parley.data import partition as partitions
from parley.data.preparation import AS_IS, Preparation
from parley.errors import BadValue
from parley.experiment import OWN, Experiment
from parley.graphs import Topology
from parley.models.architecture import Architecture
from parley.models.user import check_allowed
from parley.schedule import Own


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
    experiment: Experiment, shape: tuple[int, ...], classes: int
) -> Callable[[], nn.Module]:
    """Builds the network that the experiment names; a user's own only if this host allows it."""
    return architecture_of(experiment, shape, classes).build


def architecture_of(experiment: Experiment, shape: tuple[int, ...], classes: int) -> Architecture:
    """How the network that the experiment names is built."""
    kind: Literal["name", "code"] = "code" if models.is_code(experiment.model) else "name"
    if kind == "code":
        check_allowed(experiment.model)
    options = experiment.model_options
    return Architecture(
        model=experiment.model, kind=kind, options=options, input_shape=shape, classes=classes
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
    loss: Loss = cross_entropy,
    places: Mapping[int, str] | None = None,
) -> Problem:
    """Loads, partitions and checks what the experiment names; arguments replace names.

    Keeps the samples of these agents (default: all). `places` are where agents' own data are.
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
        return _own_problem(experiment, hosted, topology, build, loss, places or {}, tokenizer)
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
    build = build or builder(experiment, tuple(source.test.inputs.shape[1:]), classes)
    note = ""
    if places is not None:
        like, root = experiment.data, experiment.data_root
        names = source.class_names
        found = own.load(places, hosted, names, like, root, options, tokenizer, may_call)
        # No agent trains on the common samples, held out or not.
        samples, _ = data.cut_own(found.samples, source.test, fraction, 0.0, seed)
    else:
        labels = targets.numpy()
        partitions.check_labels(labels[used], classes)
        split = partitions.partition(experiment.partition, labels, topology, seed, used)
        samples = [source.train.take(split.indices[agent]) for agent in hosted]
        note = split.note
    return Problem(
        topology=topology,
        model=build,
        samples=samples,
        test=source.test,
        transform=source.transform,
        class_names=source.class_names,
        loss=loss,
        note=note,
        data_are_own=places is not None,
        preparation=source.preparation,
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
    loss: Loss,
    places: Mapping[int, str],
    tokenizer: str | None,
) -> Problem:
    if experiment.partition != OWN:
        raise BadValue("partition", experiment.partition, OWN, 'the experiment has data = "own"')
    root, options = experiment.data_root, experiment.data_options
    found = own.load(places, hosted, None, "", root, options, tokenizer)
    names = found.class_names
    made = of_the_hosts(experiment, topology, build, loss, found.samples, found.test, names)
    return replace(made, preparation=found.preparation)


def of_the_hosts(
    experiment: Experiment,
    topology: Topology,
    build: Callable[[], nn.Module] | None,
    loss: Loss,
    samples: Sequence[Samples],
    test: Samples,
    names: tuple[str, ...],
) -> Problem:
    """A problem with each host's own data; the handshake checks that they fit together."""
    fraction, validation = experiment.fraction, experiment.validation
    samples, test = data.cut_own(samples, test, fraction, validation, experiment.seed)
    test = share_of_test(test, experiment)
    if build is None:
        models.check_inputs(experiment.model, samples[0].inputs)
        build = builder(experiment, tuple(samples[0].inputs.shape[1:]), len(names))
    return Problem(
        topology=topology,
        model=build,
        samples=samples,
        test=test,
        transform=Transform(),
        class_names=names,
        loss=loss,
        test_is_shared=False,
        data_are_own=True,
    )


def task_of(experiment: Experiment, problem: Problem) -> Task:
    """The model to train, initialised identically in every process."""
    device, dtype = device_of(experiment.device), getattr(torch, experiment.dtype)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(experiment.seed)
        model = problem.model()
    return Task(model, problem.loss, dtype, device)


def device_of(name: str) -> torch.device:
    """The device with that name, if it is available."""
    if not re.fullmatch(r"cpu|cuda(:\d+)?", name):
        raise BadValue("device", name, "cpu, cuda or cuda:N")
    present = torch.cuda.device_count()
    if name != "cpu" and int(name.partition(":")[2] or 0) >= present:
        valid = ", ".join(["cpu", *(f"cuda:{n}" for n in range(present))])
        raise BadValue("device", name, valid, "this CUDA device is not available")
    return torch.device(name)
