"""Whether an engine computes what `loop` computes, up to rounding.

Axes: P pairs of a model and a batch, D flat parameters, S flat statistics, E both, A agents.
"""

import warnings
from typing import NamedTuple

import torch
from torch import Tensor

from parley.compute.engine import Engine, LoopEngine
from parley.compute.precision import FULL
from parley.compute.task import Task
from parley.data import Batch

SAMPLES = 8
"""In the full batch, at most: what reads the number of samples shows with few of them, too."""
TRIES = 3
"""Rounding may put a value on the other side of a kink, but hardly at three different models."""
ROUNDING = {torch.float64: 1e-9, torch.float32: 1e-4, torch.bfloat16: 0.05}
"""Share of a parameter's gradient by which it may be off."""
OF_ALL = 0.1
"""And so much of that share of the whole gradient, as that of some parameters is nearly zero."""
AMPLIFIED = 20
"""So many times as far as the loop's own answer moves with the last digit of what it is given."""


class Part(NamedTuple):
    """Something that an engine computes, in a row for each pair or model."""

    name: str
    values: Tensor
    scale: Tensor
    """How large the whole is of which it is a part, if it is one."""


class Agreement:
    """What `loop` computes for a task, with which other engines are compared: for a full batch and
    a short one, at models that differ, each on its own batch and one on its neighbour's.

    >>> task = Task(torch.nn.Linear(4, 2))
    >>> inputs, targets = torch.ones(1, 3, 4), torch.tensor([[0, 1, 0]])
    >>> batch = Batch(inputs, targets, torch.full((1, 3), 1 / 3), (3,), (0,), 0)
    >>> Agreement(task, batch).difference(LoopEngine(task))
    ''
    """

    def __init__(self, task: Task, batch: Batch) -> None:
        """The first samples of a run are compared."""
        self.task, self._loop = task, LoopEngine(task)
        self._batch = _full_and_short(batch)
        self._type = task.dtype if task.precision == FULL else torch.bfloat16
        self._tries = [self._tried(0)]

    def difference(self, engine: Engine) -> str:
        """What an engine computes otherwise than `loop`; empty if nothing."""
        found = ""
        for number in range(TRIES):
            if number == len(self._tries):
                self._tries.append(self._tried(number))
            found = self._different(engine, *self._tries[number])
            if not found:
                break
        return found

    def _tried(self, seed: int) -> tuple[Tensor, list[Part]]:
        """Two models with their running statistics, [A, E], and what `loop` computes for them."""
        start_D, layout = self.task.start(), self.task.layout
        # Beside the start, where some networks have zeros that nothing passes through.
        noise_AD = _noise(start_D.expand(2, -1), seed)
        x_AD = start_D + noise_AD * torch.where(start_D == 0, 0.01, 0.1 * start_D)
        b_AS = layout.start(start_D).expand(2, -1)
        if layout.size:
            b_AS = self._loop.moved(x_AD, b_AS, self._batch, [0, 1])
        models_AE = torch.cat([x_AD, b_AS], 1)
        return models_AE, self._loops(models_AE, self._batch)

    def _different(self, engine: Engine, models_AE: Tensor, expected: list[Part]) -> str:
        share, near = ROUNDING[self._type], None
        found = self._computed(engine, models_AE, self._batch)
        for k, (name, right, scale) in enumerate(expected):
            off = _lengths(found[k].values - right)
            allowed = share * (_lengths(right) + OF_ALL * scale)
            if bool((off <= allowed).all()):
                continue
            near = near or self._nearby(models_AE)
            if not bool((off <= allowed + AMPLIFIED * _lengths(near[k].values - right)).all()):
                return name
        return ""

    def _nearby(self, models_AE: Tensor) -> list[Part]:
        """What `loop` computes where the last digit of models and inputs is another one."""
        digit, batch = torch.finfo(self._type).eps, self._batch
        if batch.inputs.is_floating_point():
            inputs = batch.inputs * (1 + digit * _noise(batch.inputs, 0))
            batch = batch._replace(inputs=inputs)
        return self._loops(models_AE * (1 + digit * _noise(models_AE, 0)), batch)

    def _loops(self, models_AE: Tensor, batch: Batch) -> list[Part]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what a model says, it says in training
            return self._computed(self._loop, models_AE, batch)

    def _computed(self, engine: Engine, models_AE: Tensor, batch: Batch) -> list[Part]:
        task, owners = self.task, list(batch.agents)
        x_AD, b_AS = models_AE.split([task.size, task.layout.size], 1)
        parts: list[Part] = []
        own = engine.gradients(x_AD.clone(), batch, [0, 1], owners)
        if task.layout.size:
            seen_AS = engine.moments(x_AD, b_AS, batch, [0, 1])
            of_layers = [seen_AS[:, part] for both in task.layout.moments for part in both]
            parts.append(_part("what norms see", torch.cat(of_layers, 1)))
            moved_AS = engine.moved(x_AD, b_AS, batch, [0, 1])
            parts.append(_part("running statistics", moved_AS))
        cross = engine.gradients(x_AD[1:].clone(), batch, [0], owners[1:])
        loss_P, g_PD = (torch.cat(both).detach() for both in zip(own, cross, strict=True))
        parts.append(_part("the loss", loss_P))
        whole_P = _lengths(g_PD)
        for name, g_P in zip(task.names, g_PD.split(task.sizes, 1), strict=True):
            parts.append(Part(f"the gradient of {name}", g_P, whole_P))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)  # where dropout is on even in use
            answers = engine.predict_each(list(models_AE), batch.inputs[1, : batch.sizes[1]])
        return [*parts, _part("what the model predicts", answers)]


def _part(name: str, values: Tensor) -> Part:
    return Part(name, values, torch.zeros(()))


def _lengths(values: Tensor) -> Tensor:
    return values.double().reshape(len(values), -1).square().sum(1).sqrt()


def _noise(like: Tensor, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(like.shape, generator=generator).to(like)


def _full_and_short(batch: Batch) -> Batch:
    """Samples of a batch as those of two agents, of which one has fewer: two, for BatchNorm."""
    first = [slice(min(size, SAMPLES)) for size in batch.sizes]
    inputs, targets = (
        torch.cat([values[row, part] for row, part in enumerate(first)])[:SAMPLES]
        for values in (batch.inputs, batch.targets)
    )
    sizes = (n := len(inputs), n - n // 3)
    size_A1 = torch.tensor(sizes, dtype=torch.float64)[:, None]
    weights = ((torch.arange(n) < size_A1) / size_A1).to(batch.weights)
    inputs, targets = (torch.stack([values, values.flip(0)]) for values in (inputs, targets))
    return Batch(inputs, targets, weights, sizes, (0, 1), 0)
