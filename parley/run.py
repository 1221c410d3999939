"""Carrying out an experiment: one worker's share of it, as a generator of records.

Axes: A agents hosted here, N all agents, D flat parameters.

Everything outside (progress, records on disk, checkpoints) consumes what `Run.events` yields.
"""

import math
import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from parley import data, engines, metrics, models
from parley import partition as partitions
from parley import topology as topologies
from parley.data import Batches, Samples, Transform
from parley.engine import Engine
from parley.errors import BadValue, ParleyError
from parley.experiment import Experiment
from parley.neighbourhood import Neighbourhood
from parley.schedule import parse_decay
from parley.task import Loss, Task, cross_entropy
from parley.topology import Topology
from parley.transport import Kind, Transport

DIVERGED = "training has diverged"
"""In the error of a run whose numbers are no longer finite."""

Record = dict[str, Any]
"""One line of ``records.jsonl``."""


@dataclass(frozen=True)
class Problem:
    """What is trained on what: everything that an experiment's names stand for."""

    topology: Topology
    model: Callable[[], nn.Module]
    """Builds the model that every agent starts from."""
    samples: Sequence[Samples]
    """Each agent's own training data."""
    test: Samples
    transform: Transform
    class_names: tuple[str, ...]
    loss: Loss = cross_entropy
    note: str = ""
    """What the partition could not obey."""


def builder(
    experiment: Experiment, shape: tuple[int, ...], classes: int
) -> Callable[[], nn.Module]:
    """Makes the network that the experiment names."""
    return partial(models.build, experiment.model, shape, classes, **experiment.model_options)


def topology_of(experiment: Experiment) -> Topology:
    """The graph that the experiment names."""
    return topologies.parse(
        experiment.topology, experiment.agents, experiment.weights, experiment.seed
    )


def problem(
    experiment: Experiment,
    topology: Topology | None = None,
    build: Callable[[], nn.Module] | None = None,
    loss: Loss = cross_entropy,
) -> Problem:
    """Loads, partitions and checks what the experiment names; what is given stands for a name."""
    topology = topology or topology_of(experiment)
    experiment.algorithm.check(topology)
    tokenizer = None if build else models.tokenizer(experiment.model, experiment.model_options)
    options = experiment.data_options
    source = data.load(experiment.data, experiment.data_root, options, tokenizer)
    if experiment.fraction < 1:
        share = data.share_of(source.train, experiment.fraction, experiment.seed)
        source = replace(source, train=share)
    if experiment.validation:
        left, held = data.hold_out(source.train, experiment.validation, experiment.seed)
        source = replace(source, train=left, test=held)
    if experiment.test_fraction < 1:
        source = replace(source, test=data.share_of(source.test, experiment.test_fraction, seed=0))
    if build is None:
        models.check_inputs(experiment.model, source.test.inputs)
    classes = len(source.class_names)
    build = build or builder(experiment, tuple(source.test.inputs.shape[1:]), classes)
    note = ""
    folders = partitions.folders(experiment.partition)
    if folders is not None:
        samples = data.load_folders(
            folders,
            source.class_names,
            like=experiment.data,
            root=experiment.data_root,
            options=options,
            tokenizer=tokenizer,
        )
        if len(samples) != topology.agents:
            raise BadValue("partition", experiment.partition, f"{topology.agents} folders")
    else:
        labels = source.train.targets.numpy()
        partitions.check_labels(labels, classes)
        split = partitions.partition(experiment.partition, labels, topology, experiment.seed)
        samples = [source.train.take(indices) for indices in split.indices]
        note = split.note
    return Problem(
        topology, build, samples, source.test, source.transform, source.class_names, loss, note
    )


@dataclass(frozen=True)
class Started:
    """Everything is loaded and checked; training begins."""

    parameters: int
    """Entries of the model."""
    note: str
    """What the partition could not obey, or nothing."""


@dataclass(frozen=True)
class StepDone:
    """A step has been made; the loss is the hosted agents' mean."""

    step: int
    steps: int
    loss: float


@dataclass(frozen=True)
class EpochDone:
    """An epoch has been made; every few epochs with a record."""

    epoch: int
    record: Record | None


Event = Started | StepDone | EpochDone


def device_of(name: str) -> torch.device:
    """The device of that name, if it can be used here."""
    if not re.fullmatch(r"cpu|cuda(:\d+)?", name):
        raise BadValue("device", name, "cpu, cuda or cuda:N")
    present = torch.cuda.device_count()
    if name != "cpu" and int(name.partition(":")[2] or 0) >= present:
        valid = ", ".join(["cpu", *(f"cuda:{n}" for n in range(present))])
        raise BadValue("device", name, valid, "no such CUDA device can be used here")
    return torch.device(name)


class Run:
    """One worker's share of an experiment: the state of its agents and how it goes on."""

    def __init__(self, experiment: Experiment, problem: Problem, transport: Transport) -> None:
        self.experiment = experiment
        self.transport = transport
        self.algorithm = experiment.algorithm
        self.note = problem.note
        placement = transport.placement
        device, dtype = device_of(experiment.device), getattr(torch, experiment.dtype)

        # Every agent starts from the same weights, drawn alike in every process.
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(experiment.seed)
            model = problem.model()
        self.task = Task(model, problem.loss, dtype, device)
        hosted = [problem.samples[a] for a in placement.agents]
        self.batches = Batches(
            hosted,
            placement.agents,
            experiment.batch,
            problem.transform,
            experiment.seed,
            device=device,
            dtype=dtype,
        )
        self._try_model(problem)
        self.engine = self._choose_engine()
        self.hood = Neighbourhood(transport, self.engine)
        self.test = metrics.TestSet(problem.test, problem.transform, self.engine)
        sizes = [len(s) for s in problem.samples]
        self.steps_per_epoch = data.steps_per_epoch(sizes, experiment.batch)
        self.decay = parse_decay(experiment.lr_decay)

        x_AD = self.task.start().expand(len(placement.agents), -1).clone()
        self.state: Any = self.algorithm.init(x_AD, self.hood)
        self.epoch = 0
        """Epochs made so far."""
        self.seconds = 0.0
        """Time spent in training steps so far, without evaluation."""
        self._earlier_samples = 0

    def _choose_engine(self) -> Engine:
        """As asked for; for ``auto`` what the first worker finds fastest, the same on all."""
        name, here = self.experiment.engine, self.transport.placement.here
        if name == "auto":
            names = engines.candidates(self.task)
            found = engines.fastest(self.task, self.batches.at(0)) if here == 0 else names[0]
            name = names[int(self.transport.sum(torch.tensor(names.index(found))))]
        return engines.build(name, self.task, self.experiment.seed)

    def _try_model(self, problem: Problem) -> None:
        """Finds out on one sample whether model and data fit, before anything is written."""
        classes, device = len(problem.class_names), self.task.start().device
        inputs = problem.transform.normalise(problem.test.inputs[:1], self.task.dtype).to(device)
        last = torch.full_like(problem.test.targets[:1], classes - 1).to(device)
        try:
            self.task.loss(self.task.predict(self.task.start(), inputs), last)
        except Exception as error:  # whatever the model and the loss may raise
            shape = list(inputs.shape[1:])
            raise BadValue(
                "model",
                self.experiment.model,
                f"a model that takes inputs of shape {shape} and gives {classes} scores",
                (str(error).splitlines() or [type(error).__name__])[0],
            ) from error

    @property
    def steps(self) -> int:
        """Steps of the whole run."""
        return self.experiment.epochs * self.steps_per_epoch

    def about(self) -> dict[str, Any]:
        """What a checkpoint needs beside the state."""
        samples = self._earlier_samples + self.engine.samples
        return {"epoch": self.epoch, "seconds": self.seconds, "samples": samples}

    def restore(self, state: Any, about: dict[str, Any], sent: dict[Kind, Tensor]) -> None:
        """Goes on from a checkpoint."""
        self.state = state
        self.epoch, self.seconds = about["epoch"], about["seconds"]
        self._earlier_samples = about["samples"]
        for kind, value in sent.items():
            self.transport.sent[kind].copy_(value)

    def events(self) -> Iterator[Event]:
        """Trains to the end; yields after every step and every epoch."""
        experiment = self.experiment
        yield Started(self.task.size, self.note)
        while self.epoch < experiment.epochs:
            lr = experiment.lr * self.decay(self.epoch, experiment.epochs)
            losses = []
            for step in range(
                self.epoch * self.steps_per_epoch, (self.epoch + 1) * self.steps_per_epoch
            ):
                started = time.perf_counter()
                hood, batch = self.hood.at(step), self.batches.at(step)
                self.state = self.algorithm.step(self.state, hood, batch, lr)
                losses.append(self._checked_loss(hood, step))
                self.seconds += time.perf_counter() - started
                yield StepDone(step + 1, self.steps, losses[-1])
            self.epoch += 1
            due = self.epoch % experiment.evaluate_every == 0 or self.epoch == experiment.epochs
            self._check_models()
            record = self.record(lr, sum(losses) / len(losses)) if due else None
            self._check_record(record or {})
            yield EpochDone(self.epoch, record)

    def _checked_loss(self, hood: Neighbourhood, step: int) -> float:
        loss_A = hood.loss_A
        assert loss_A is not None, "an algorithm's step must ask for the self-gradient"
        if not bool(torch.isfinite(loss_A).all()):
            row = int(torch.nonzero(~torch.isfinite(loss_A))[0])
            what = f"loss: {float(loss_A[row])} at agent {hood.agents[row]}"
            raise self._diverged(what, step + 1)
        return float(loss_A.mean())

    def _check_models(self) -> None:
        # Of the last step no loss is known yet, and a checkpoint must be good.
        bad = torch.nonzero(~torch.isfinite(self.state.x_AD).all(1)).flatten()
        if len(bad):
            what = f"model: not finite at agent {self.hood.agents[int(bad[0])]}"
            raise self._diverged(what, self.epoch * self.steps_per_epoch)

    def _check_losses(self, loss_N: Tensor) -> None:
        for agent in torch.nonzero(~torch.isfinite(loss_N)).flatten()[:1]:
            what = f"loss: {float(loss_N[agent])} at agent {int(agent)}"
            raise self._diverged(what, self.epoch * self.steps_per_epoch)

    def _check_record(self, record: Record) -> None:
        for name, value in record.items():
            if isinstance(value, float) and not math.isfinite(value):
                what = f"{name}: {value} of all agents together"
                raise self._diverged(what, self.epoch * self.steps_per_epoch)

    def _diverged(self, what: str, step: int) -> ParleyError:
        remedy = f"{DIVERGED}; try a smaller lr (now {self.experiment.lr:g})"
        return ParleyError(f"{what}, step {step} of {self.steps}: {remedy}")

    def record(self, lr: float, loss_train: float) -> Record:
        """All metrics at this point, the same on every worker."""
        experiment, transport, x_AD = self.experiment, self.transport, self.state.x_AD
        gamma = self.algorithm.gossip_rate
        mean_D = metrics.mean_model(x_AD, transport)
        loss_N, own_N = transport.gather(self.test.scores(x_AD)).unbind(1)
        self._check_losses(loss_N)
        gossiped_AD = metrics.after_gossip(x_AD, self.hood, experiment.gossip_rounds, gamma)
        gossiped_N = transport.gather(self.test.scores(gossiped_AD))[:, 1]
        mean = self.test.score(mean_D)
        hosted = len(self.hood.agents)
        loss = transport.sum(torch.tensor(loss_train * hosted, dtype=torch.float64))
        sent = {k: transport.gather(v).double().mean() for k, v in transport.sent.items()}
        samples = transport.sum(torch.tensor(float(self.about()["samples"]), dtype=torch.float64))
        record: Record = {
            "epoch": self.epoch,
            "step": self.epoch * self.steps_per_epoch,
            "lr": lr,
            "loss": mean.loss,
            "loss_train": float(loss) / transport.topology.agents,
            "accuracy_mean_model": mean.accuracy,
            "accuracy_own": float(own_N.mean()),
            "accuracy_own_min": float(own_N.min()),
            "accuracy_own_max": float(own_N.max()),
            "accuracy_after_gossip": float(gossiped_N.mean()),
            "accuracy_agents": [round(a, 6) for a in own_N.tolist()],
            "consensus_distance": metrics.consensus_distance(x_AD, mean_D, transport),
            "distance_agents": [
                float(f"{d:.6g}") for d in metrics.distances(x_AD, mean_D, transport).tolist()
            ],
            "bytes_models": float(sent["models"]),
            "bytes_cross_gradients": float(sent["cross_gradients"]),
        }
        if experiment.bias_norms != "off":
            samples_before = self.engine.samples
            batch = self.batches.at(self.epoch * self.steps_per_epoch)
            norms = metrics.bias_norms(x_AD, batch, self.hood, experiment.bias_norms)
            record["epsilon_norm"], record["omega_norm"] = norms
            self.engine.samples = samples_before  # measuring is not training
        record["seconds"] = round(self.seconds, 3)
        record["gradients_per_second"] = round(float(samples) / max(self.seconds, 1e-9), 1)
        record["peak_memory_mb"] = round(metrics.peak_memory_mb(transport), 1)
        return record
