"""What a preset costs: sample gradients, and time, from speeds that were recorded or measured here.

>>> from parley.reproduce.presets import presets
>>> gradients(presets()["fashion_mnist/lenet5/ring/10/ngc"])  # 100 epochs, own and two neighbours'
18000000
"""

import json
import logging
import math
import time
from contextlib import suppress
from functools import cache, partial
from typing import NamedTuple

import torch

from parley import models
from parley.cache import cache_folder
from parley.compute import kernels
from parley.data import Samples, Transform
from parley.experiment import Experiment
from parley.files import write_atomically
from parley.graphs import Topology, parse
from parley.reproduce.preset import (
    SAMPLES,
    WHOLE,
    Preset,
    Reduction,
    classes,
    evaluate_every,
    tested,
)
from parley.reproduce.presets import read_csv
from parley.training.events import StepDone
from parley.training.problem import Problem
from parley.training.trainer import Trainer
from parley.version import __version__
from parley.wire.local import Local
from parley.wire.placement import spread

SHAPES: dict[str, tuple[int, ...]] = {
    "cifar10": (3, 32, 32),
    "cifar100": (3, 32, 32),
    "fashion_mnist": (1, 28, 28),
    "imagenette": (3, 32, 32),
    "imagenette-224": (3, 224, 224),
    "ag_news": (128,),
}
RECORDED_ON = "AMD EPYC, AVX-512"
"""The processor of ``speeds.csv``, the estimate for a network that has not been timed here."""
VOCABULARY = 30_000
"""Token IDs that every text model knows."""
OWN_GRADIENTS = frozenset({"dpsgd", "gut", "qgm"})
"""Methods whose agents compute no gradients at their neighbours' models."""
FORWARD = 1 / 3
"""An evaluation in units of a gradient: backward costs about twice as much as forward."""
BUDGET = 0.5
"""Seconds spent on timing a model."""
LONGEST = 2.0
"""Seconds that one gradient of a whole batch may take."""
FEW = 8
"""Samples that are enough to time a larger one."""


def graph_of(preset: Preset, variant: str = "as-run") -> Topology:
    """The graph its agents communicate on."""
    return parse(preset.graph(variant), preset.agents)


def degree(preset: Preset, variant: str = "as-run") -> float:
    """The average number of neighbours.

    >>> from parley.reproduce.presets import presets
    >>> degree(presets()["imagenette-224/resnet18/chain/5/ngc"])
    1.6
    """
    graph = graph_of(preset, variant)
    return len(graph.edges) / graph.agents


def gradients(preset: Preset, variant: str = "as-run", reduction: Reduction = WHOLE) -> int:
    """Sample gradients of all agents together, training only; with seed 0, if that matters."""
    each = 1 if preset.method in OWN_GRADIENTS else 1 + degree(preset, variant)
    epochs = reduction.epochs or preset.epochs
    return round(epochs * epoch_samples(preset) * (reduction.fraction or 1) * each)


def epoch_samples(preset: Preset) -> int:
    """Samples that all agents together see in an epoch, which is as long as the largest agent's
    data: where parts differ in size, the others go through theirs several times.

    >>> from parley.reproduce.presets import presets
    >>> epoch_samples(presets()["cifar10/cnn5/ring/5/ngc"])
    50000
    >>> epoch_samples(presets()["follow-up/resnet20/dirichlet-0.1/ring/16/ngc"])
    173472
    """
    if not preset.partition.startswith("dirichlet:"):
        return SAMPLES[preset.data]
    return preset.agents * preset.largest_part


def evaluations(preset: Preset, reduction: Reduction = WHOLE) -> int:
    """Test samples seen by a model, over all records: own, after gossip, and the averaged one."""
    epochs = reduction.epochs or preset.epochs
    records = math.ceil(epochs / evaluate_every(epochs))
    return records * (2 * preset.agents + 1) * tested(preset.data)


def hours(
    preset: Preset, speed: float, variant: str = "as-run", reduction: Reduction = WHOLE
) -> float:
    """Expected hours for one seed on one core, evaluations included."""
    work = gradients(preset, variant, reduction) + FORWARD * evaluations(preset, reduction)
    return work / speed / 3600


def input_shape(name: str) -> tuple[int, ...]:
    """The shape of one sample of a dataset."""
    return SHAPES[name]


class Speed(NamedTuple):
    """How fast one core computes gradients of single samples."""

    per_second: float
    machine: str
    """The processor it was measured on."""
    here: bool
    """Whether that is this machine; otherwise it is an estimate."""


class Calibration:
    """Sample gradients per second of each network: as measured on this machine and kept, or else as
    recorded on another.

    It depends on the network and its inputs; methods differ only in what they compute besides
    gradients, which is little except for CGA on the smallest networks.
    """

    def __init__(self) -> None:
        self.path = cache_folder() / "gradients-per-second.json"
        self._machine = kernels.processor_name()
        versions = f"torch {torch.__version__}, {kernels.identity() or 'no kernels'}"
        self._here = f"{self._machine}, {versions}, parley {__version__}"
        self._speeds: dict[str, float] = {}
        with suppress(OSError, ValueError):
            kept = json.loads(self.path.read_text(encoding="utf-8"))
            self._speeds = kept["speeds"] if kept["here"] == self._here else {}

    def known(self, preset: Preset) -> bool:
        """Whether its network has been timed here."""
        return _key(preset) in self._speeds

    def speed(self, preset: Preset) -> Speed:
        """The speed measured here, or the recorded one."""
        key = _key(preset)
        if key in self._speeds:
            return Speed(self._speeds[key], self._machine, here=True)
        return Speed(recorded_speeds()[key], RECORDED_ON, here=False)

    def measure(self, preset: Preset) -> None:
        """Times its network on this machine and keeps the result."""
        self._speeds[_key(preset)] = measured_speed(preset)
        with suppress(OSError):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            text = json.dumps({"here": self._here, "speeds": self._speeds}, indent=2)
            write_atomically(self.path, text + "\n")


def _key(preset: Preset) -> str:
    return f"{preset.model} {'x'.join(map(str, input_shape(preset.data)))}"


@cache
def recorded_speeds() -> dict[str, float]:
    """Gradients per second of every network, from ``speeds.csv``."""
    return {row["network"]: float(row["gradients_per_second"]) for row in read_csv("speeds.csv")}


def measured_speed(preset: Preset) -> float:
    """Sample gradients per second over a few steps of NGC with three agents, on random samples.

    For a large network, a single gradient is enough: of a whole batch, as the compiled kernels
    compute many samples in the time of a few.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    logging.disable(logging.INFO)  # which engine a trial has is of no interest
    try:
        speed = _of_one_gradient(_trial(preset, FEW, 1))
        if preset.batch / speed < LONGEST:
            speed = _of_one_gradient(_trial(preset, preset.batch, 1))
        if 9 * preset.batch / speed < BUDGET:
            speed = _of_steps(_trial(preset, preset.batch, 3))
        return round(speed, 1)
    finally:
        logging.disable(logging.NOTSET)
        torch.set_num_threads(before)


def _of_one_gradient(run: Trainer) -> float:
    batch, x_AD = run.batches.at(0), run.state.x_AD
    run.engine.gradients(x_AD[:1], batch, [0], [0])  # the first one sets everything up
    began = time.process_time()
    run.engine.gradients(x_AD[:1], batch, [0], [0])
    return batch.sizes[0] / max(time.process_time() - began, 1e-9)


def _trial(preset: Preset, batch: int, agents: int) -> Trainer:
    experiment = preset.experiment(
        agents=agents, topology="full", batch=batch, lr=1e-6, epochs=1000, evaluate_every=1000
    )
    problem = random_problem(experiment, 3 * batch)
    return Trainer(experiment, problem, Local(spread(problem.topology, 1)))


def random_problem(experiment: Experiment, samples: int) -> Problem:
    """Random samples of the right shape for an experiment's network, on its graph."""
    shape, n = input_shape(experiment.data), classes(experiment.data)
    generator = torch.Generator().manual_seed(0)

    def some(number: int) -> Samples:
        high, kind = (VOCABULARY, torch.int64) if len(shape) == 1 else (256, torch.uint8)
        inputs = torch.randint(high, (number, *shape), generator=generator, dtype=kind)
        return Samples(inputs, torch.randint(n, (number,), generator=generator))

    return Problem(
        topology=parse(experiment.topology, experiment.agents),
        model=partial(models.build, experiment.model, shape, n, **experiment.model_options),
        samples=[some(samples) for _ in range(experiment.agents)],
        test=some(2),
        transform=Transform(),
        class_names=tuple(map(str, range(n))),
    )


def _of_steps(run: Trainer) -> float:
    """Timed without the first step.

    Measures processor time, since other programs may be running: the speed of a dedicated core.
    """
    samples, began, done = 0, 0.0, 0
    for event in run.events():
        if isinstance(event, StepDone):
            done += 1
            if done == 1:
                samples, began = run.meter.samples, time.process_time()
            elif time.process_time() - began > BUDGET:
                break
    return (run.meter.samples - samples) / max(time.process_time() - began, 1e-9)


def duration(time_hours: float) -> str:
    """Hours in readable form.

    >>> duration(0.01), duration(0.4), duration(2.6), duration(200)
    ('36 s', '24 min', '2.6 h', '8.3 days')
    """
    if time_hours < 1 / 60:
        return f"{time_hours * 3600:.0f} s"
    if time_hours < 1:
        return f"{time_hours * 60:.0f} min"
    return f"{time_hours:.1f} h" if time_hours < 48 else f"{time_hours / 24:.1f} days"
