"""What a cell costs: sample gradients, and time, from speeds that were recorded or measured here.

>>> from parley.reproduce.cells import cells, named
>>> gradients(cells(named("paper"))["fashion_mnist/lenet5/ring/10/ngc"])  # own, two neighbours'
18000000
"""

import json
import logging
import math
import time
from contextlib import suppress
from functools import cached_property, partial
from typing import Any, NamedTuple

import torch

from parley import models
from parley.cache import cache_folder
from parley.compute import kernels
from parley.data import Samples, Transform
from parley.experiment import Experiment
from parley.files import write_atomically
from parley.graphs import parse
from parley.process import torch_threads
from parley.reproduce.campaign import Order
from parley.reproduce.cells import Cell, Form
from parley.reproduce.study import Facts
from parley.training.events import StepDone
from parley.training.problem import Problem
from parley.training.trainer import Trainer
from parley.version import __version__
from parley.wire.local import Local
from parley.wire.placement import spread

RECORDED_ON = "AMD EPYC, AVX-512"
RECORDED = {
    "cnn5 3x32x32": 1937.3,
    "vgg11 3x32x32": 2498.6,
    "resnet20 3x32x32": 702.5,
    "lenet5 1x28x28": 29301.8,
    "mobilenetv2 3x32x32": 107.6,
    "bert-mini 128": 24.8,
    "distilbert 128": 2.4,
    "resnet18 3x224x224": 18.3,
}
"""Gradients per second of networks and inputs on one core of that processor: the estimate for a
network that has not been timed here."""
VOCABULARY = 30_000
"""Token IDs that every text model knows."""
AROUND = frozenset({"ngc", "compngc", "cga", "compcga"})
"""Algorithms and gradient rules that compute gradients at the neighbours' models, too."""
FORWARD = 1 / 3
"""An evaluation in units of a gradient: backward costs about twice as much as forward."""
BUDGET = 0.5
"""Seconds spent on timing a model."""
LONGEST = 2.0
"""Seconds that one gradient of a whole batch may take."""
FEW = 8
"""Samples that are enough to time a larger one."""


def degree(cell: Cell, form: Form = Form()) -> float:  # noqa: B008
    """The average number of neighbours.

    >>> from parley.reproduce.cells import cells, named
    >>> degree(cells(named("paper"))["imagenette-224/resnet18/chain/5/ngc"])
    1.6
    """
    experiment = cell.experiment(form)
    graph = parse(experiment.topology, experiment.agents)
    return len(graph.edges) / graph.agents


def gradients(cell: Cell, form: Form = Form()) -> int:  # noqa: B008
    """Sample gradients of all agents together, training only; with seed 0, if that matters."""
    around = AROUND & set(cell.usual.algorithm.name.split("+"))
    each = 1 + degree(cell, form) if around else 1
    epochs = form.epochs or cell.usual.epochs
    return round(epochs * epoch_samples(cell) * (form.fraction or 1) * each)


def epoch_samples(cell: Cell) -> int:
    """Samples that all agents together see in an epoch, which is as long as the largest agent's
    data: where parts differ in size, the others go through theirs several times.

    >>> from parley.reproduce.cells import cells, named
    >>> epoch_samples(cells(named("paper"))["cifar10/cnn5/ring/5/ngc"])
    50000
    >>> epoch_samples(cells(named("follow-up"))["follow-up/resnet20/dirichlet-0.1/ring/16/ngc"])
    173472
    """
    assert cell.facts
    if not cell.usual.partition.startswith("dirichlet:"):
        return cell.facts.samples
    return cell.usual.agents * cell.largest_part


def evaluations(cell: Cell, form: Form = Form()) -> int:  # noqa: B008
    """Test samples seen by a model, over all records: own, after gossip, and the averaged one."""
    assert cell.facts
    experiment = cell.experiment(form)
    records = math.ceil(experiment.epochs / (experiment.evaluate_every or 1))
    return records * (2 * experiment.agents + 1) * cell.facts.test


def hours(cell: Cell, speed: float, form: Form = Form()) -> float:  # noqa: B008
    """Expected hours for one seed on one core, evaluations included."""
    return (gradients(cell, form) + FORWARD * evaluations(cell, form)) / speed / 3600


Row = dict[str, Any]
"""What a cell costs, as it is listed."""


def row(cell: Cell, order: Order, calibration: "Calibration") -> Row:
    """The cost of one seed of a cell; without times if the study does not describe its data, or
    nobody has timed its network."""
    if cell.study.tune:
        form = Form("", order.epochs, order.fraction)
    else:
        form = cell.form(order.variant, order.epochs, order.fraction)
    speed = calibration.speed(cell) if cell.facts else None
    return {
        "name": cell.name,
        "group": cell.setting,
        "table": cell.section,
        "method": cell.method,
        "epochs": form.epochs or cell.usual.epochs,
        "whole_epochs": cell.usual.epochs,
        "reduced": form.reduction(cell.usual.epochs) or None,
        "gradients": gradients(cell, form) if cell.facts else None,
        "gradients_per_second": speed and speed.per_second,
        "one_core_of": speed and speed.machine,
        "measured_here": speed and speed.here,
        "hours": hours(cell, speed.per_second, form) if speed else None,
        "paper": cell.published[0] if cell.published else None,
    }


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
        self._speeds: dict[str, float] = {}
        with suppress(OSError, ValueError):
            kept = json.loads(self.path.read_text(encoding="utf-8"))
            self._speeds = kept["speeds"] if kept["here"] == self._here else {}

    @cached_property
    def _machine(self) -> str:
        """Asked for where something has been measured: the first time, kernels are built for it."""
        return kernels.processor_name()

    @property
    def _here(self) -> str:
        versions = f"torch {torch.__version__}, {kernels.identity() or 'no kernels'}"
        return f"{self._machine}, {versions}, parley {__version__}"

    def known(self, cell: Cell) -> bool:
        """Whether its network has been timed here."""
        return _key(cell) in self._speeds

    def speed(self, cell: Cell) -> Speed | None:
        """The speed measured here, or the recorded one; None if there is neither."""
        key = _key(cell)
        if key in self._speeds:
            return Speed(self._speeds[key], self._machine, here=True)
        return Speed(RECORDED[key], RECORDED_ON, here=False) if key in RECORDED else None

    def measure(self, cell: Cell) -> None:
        """Times its network on this machine and keeps the result."""
        self._speeds[_key(cell)] = measured_speed(cell)
        with suppress(OSError):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            text = json.dumps({"here": self._here, "speeds": self._speeds}, indent=2)
            write_atomically(self.path, text + "\n")


def _key(cell: Cell) -> str:
    return f"{cell.usual.model} {'x'.join(map(str, cell.facts.shape if cell.facts else ()))}"


def measured_speed(cell: Cell) -> float:
    """Sample gradients per second over a few steps of NGC with three agents, on random samples.

    For a large network, a single gradient is enough: of a whole batch, as the compiled kernels
    compute many samples in the time of a few.
    """
    batch = cell.usual.batch
    logging.disable(logging.INFO)  # which engine a trial has is of no interest
    try:
        with torch_threads(1):
            speed = _of_one_gradient(_trial(cell, FEW, 1))
            if batch / speed < LONGEST:
                speed = _of_one_gradient(_trial(cell, batch, 1))
            if 9 * batch / speed < BUDGET:
                speed = _of_steps(_trial(cell, batch, 3))
        return round(speed, 1)
    finally:
        logging.disable(logging.NOTSET)


def _of_one_gradient(run: Trainer) -> float:
    batch, x_AD = run.batches.at(0), run.state.x_AD
    run.engine.gradients(x_AD[:1], batch, [0], [0])  # the first one sets everything up
    began = time.process_time()
    run.engine.gradients(x_AD[:1], batch, [0], [0])
    return batch.sizes[0] / max(time.process_time() - began, 1e-9)


def _trial(cell: Cell, batch: int, agents: int) -> Trainer:
    short = {"lr": 1e-6, "epochs": 1000, "evaluate_every": 1000}
    experiment = cell.usual.replace(agents=agents, topology="full", batch=batch, **short)
    return random_run(experiment, cell.facts, 3 * batch)


def random_run(experiment: Experiment, facts: Facts | None, samples: int) -> Trainer:
    """A run with random samples of the right shape for an experiment's network, on its graph."""
    assert facts
    shape, n = facts.shape, facts.classes
    generator = torch.Generator().manual_seed(0)

    def some(number: int) -> Samples:
        high, kind = (VOCABULARY, torch.int64) if len(shape) == 1 else (256, torch.uint8)
        inputs = torch.randint(high, (number, *shape), generator=generator, dtype=kind)
        return Samples(inputs, torch.randint(n, (number,), generator=generator))

    problem = Problem(
        topology=parse(experiment.topology, experiment.agents),
        model=partial(models.build, experiment.model, shape, n, **experiment.model_options),
        samples=[some(samples) for _ in range(experiment.agents)],
        test=some(2),
        transform=Transform(),
        class_names=tuple(map(str, range(n))),
    )
    return Trainer(experiment, problem, Local(spread(problem.topology, 1)))


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
