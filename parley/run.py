"""Carrying out an experiment: one worker's share of it, as a generator of records.

Axes: A agents hosted here, D flat parameters.

Everything outside (progress, records on disk, checkpoints) consumes what `Run.events` yields.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from parley import data, engine, metrics, models
from parley import partition as partitions
from parley import topology as topologies
from parley.data import Batches, Samples, Transform
from parley.errors import BadValue, ParleyError
from parley.experiment import Experiment
from parley.neighbourhood import Neighbourhood
from parley.schedule import parse_decay
from parley.task import Loss, Task, cross_entropy
from parley.topology import Topology
from parley.transport import Kind, Transport

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


def problem(
    experiment: Experiment,
    topology: Topology | None = None,
    build: Callable[[], nn.Module] | None = None,
    loss: Loss = cross_entropy,
) -> Problem:
    """Loads, partitions and checks what the experiment names; what is given stands for a name."""
    topology = topology or topologies.parse(
        experiment.topology, experiment.agents, experiment.weights, experiment.seed
    )
    experiment.algorithm.check(topology)
    source = data.load(experiment.data, experiment.data_root)
    classes = len(source.class_names)
    build = build or builder(experiment, tuple(source.test.inputs.shape[1:]), classes)
    note = ""
    folders = partitions.folders(experiment.partition)
    if folders is not None:
        samples = data.load_folders(folders, source.class_names)
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


class Run:
    """One worker's share of an experiment: the state of its agents and how it goes on."""

    def __init__(self, experiment: Experiment, problem: Problem, transport: Transport) -> None:
        self.experiment = experiment
        self.transport = transport
        self.algorithm = experiment.algorithm
        self.note = problem.note
        placement = transport.placement
        device, dtype = torch.device(experiment.device), getattr(torch, experiment.dtype)

        # Every agent starts from the same weights, drawn alike in every process.
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(experiment.seed)
            model = problem.model()
        self.task = Task(model, problem.loss, dtype, device)
        self.engine = engine.choose(experiment.engine, self.task, experiment.seed)
        self.hood = Neighbourhood(transport, self.engine)
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
        self.test = metrics.TestSet(problem.test, problem.transform, self.task)
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
                self.transport.step = step
                batch = self.batches.at(step)
                self.state = self.algorithm.step(self.state, self.hood, batch, lr)
                losses.append(self._checked_loss(step))
                self.seconds += time.perf_counter() - started
                yield StepDone(step + 1, self.steps, losses[-1])
            self.epoch += 1
            due = self.epoch % experiment.evaluate_every == 0 or self.epoch == experiment.epochs
            record = self.record(lr, sum(losses) / len(losses)) if due else None
            self._check_models()
            yield EpochDone(self.epoch, record)

    def _checked_loss(self, step: int) -> float:
        loss_A = self.hood.loss_A
        assert loss_A is not None, "an algorithm's step must ask for the self-gradient"
        if not bool(torch.isfinite(loss_A).all()):
            row = int(torch.nonzero(~torch.isfinite(loss_A))[0])
            raise ParleyError(
                f"loss: {float(loss_A[row])} at agent {self.hood.agents[row]}, step {step}: "
                f"training has diverged; try a smaller lr (now {self.experiment.lr:g})"
            )
        return float(loss_A.mean())

    def _check_models(self) -> None:
        bad = torch.nonzero(~torch.isfinite(self.state.x_AD).all(1)).flatten()
        if len(bad):
            raise ParleyError(
                f"model: agent {self.hood.agents[int(bad[0])]} has entries that are not finite "
                f"after epoch {self.epoch}: training has diverged; try a smaller lr "
                f"(now {self.experiment.lr:g})"
            )

    def record(self, lr: float, loss_train: float) -> Record:
        """All metrics at this point, the same on every worker."""
        experiment, transport, x_AD = self.experiment, self.transport, self.state.x_AD
        gamma = getattr(self.algorithm, "gamma", 1.0)
        mean_D = metrics.mean_model(x_AD, transport)
        own = transport.gather(self.test.accuracies(x_AD))
        gossiped_AD = metrics.after_gossip(x_AD, self.hood, experiment.gossip_rounds, gamma)
        gossiped = transport.gather(self.test.accuracies(gossiped_AD))
        mean = self.task.evaluate(mean_D, self.test.inputs, self.test.targets)
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
            "accuracy_own": float(own.mean()),
            "accuracy_own_min": float(own.min()),
            "accuracy_own_max": float(own.max()),
            "accuracy_after_gossip": float(gossiped.mean()),
            "accuracy_agents": [round(a, 6) for a in own.tolist()],
            "consensus_distance": metrics.consensus_distance(x_AD, mean_D, transport),
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
