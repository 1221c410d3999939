"""What is learned: a model as a flat vector, its loss, and its score on held-out samples.

Axes: D flat parameters, S flat statistics, E both, n samples, C scores that the model gives.
"""

import copy
import math
import zlib
from collections.abc import Callable
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call

from parley.compute.buffers import (
    Layout,
    check_norms,
    forgetful,
    without_graphs,
    without_statistics,
)
from parley.compute.goals import Goal
from parley.compute.parameters import check_tensors
from parley.compute.precision import BF16, FULL
from parley.errors import BadValue
from parley.models.adapters import merged

Loss = Callable[[Tensor, Tensor], Tensor]
"""``(outputs[n, C], targets[n]) -> losses``: one for each sample, ``[n, ...]``, or their mean."""

NONE = "none"
"""Instead of a checksum, where all is learned."""


def cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """The default loss: one value a sample."""
    return nn.functional.cross_entropy(outputs, targets, reduction="none")


def is_cross_entropy(loss: Loss) -> bool:
    """Whether it is the default loss by another name, for which there are faster engines.

    >>> is_cross_entropy(nn.CrossEntropyLoss()), is_cross_entropy(nn.NLLLoss())
    (True, False)
    """
    if loss in (cross_entropy, nn.functional.cross_entropy):
        return True
    return (
        type(loss) is nn.CrossEntropyLoss
        and loss.weight is None
        and loss.label_smoothing == 0
        and loss.ignore_index < 0  # no class has such a number
        and loss.reduction in ("mean", "none")
    )


class Facts(NamedTuple):
    """What only a trial shows about a task (`parley.compute.trial`)."""

    scores: int = 0
    """Outputs of the model for each sample, or classes it has for each pixel."""
    answer_shape: tuple[int, ...] = ()
    """Of its outputs for one sample."""
    paired: bool = True
    """Whether outputs and targets have the same shape as the loss sees them, so that a loss of
    single values takes them one by one."""
    random: bool = False
    """Whether the model's own code draws random numbers in training."""
    random_in_use: bool = False
    """Whether it also does when the model is used."""


def call_with(named: dict[str, Tensor], model: nn.Module, inputs: Tensor) -> Tensor:
    """What a model answers with these parameters and buffers in place of its own."""
    # Every name is given: torch's way of tying them leaves a layer that has two names changed.
    found: Tensor = functional_call(model, named, (inputs,), tie_weights=False)
    return found


class Task:
    """A model's architecture and loss, with the parameters taken out as one flat vector.

    >>> task = Task(nn.Linear(3, 2))
    >>> task.size, task.sizes
    (8, (6, 2))
    >>> x_D = task.start()
    >>> bool((task.outputs(x_D, torch.zeros(1, 3)) == x_D[6:]).all())
    True
    """

    def __init__(
        self,
        model: nn.Module,
        loss: Loss = cross_entropy,
        dtype: torch.dtype = torch.float32,
        device: str | torch.device = "cpu",
        goal: Goal | None = None,
        precision: str = FULL,
        facts: Facts = Facts(),  # noqa: B008 - it never changes
    ) -> None:
        check_tensors(model)
        check_norms(model)
        self.whole = model.to(device=device, dtype=dtype).train()
        """The model with its running statistics, as it is used after training."""
        self.layout = Layout(model)
        """Its running statistics; there may be none."""
        self.model = without_statistics(model) if self.layout.size else self.whole
        """What gradients are computed with: normalises by the statistics of the batch."""
        self._forgetful = forgetful(model) if self.layout.size else self.whole
        self.goal = goal or Goal()
        if isinstance(loss, nn.Module):  # class weights are tensors of its own
            loss = copy.deepcopy(loss).to(device=device, dtype=dtype)
        self.loss = cross_entropy if is_cross_entropy(loss) else loss
        """One value for each sample, in a task that has been `tried`."""
        self.facts = facts
        self.dtype = dtype
        self.precision = precision
        """What the forward and backward passes of training multiply with."""
        # Frozen parameters stay in the module: they are the same everywhere and never travel.
        learned = {k: p for k, p in model.named_parameters() if p.requires_grad}
        if not learned:
            valid = "a model with parameters to learn"
            raise BadValue("model", type(model).__name__, valid, "it has none")
        for path, parameter in learned.items():
            if parameter._backward_hooks:
                because = f"parameter {path} has a hook, which would never be called"
                raise BadValue("model", type(model).__name__, "a model without such hooks", because)
        self.names = tuple(learned)
        self.shapes = tuple(p.shape for p in learned.values())
        self.sizes = tuple(p.numel() for p in learned.values())
        # Several layers may share a parameter, and of a layer that has two names one is enough.
        number = {id(p): k for k, p in enumerate(learned.values())}
        self._places = [
            (f"{path}.{name}" if path else name, number[id(p)])
            for path, layer in model.named_modules()
            for name, p in layer._parameters.items()
            if id(p) in number
        ]
        self.size = sum(self.sizes)
        self.random = (
            facts.random
            or getattr(model, "random", False) is True
            or any(
                isinstance(m, nn.modules.dropout._DropoutNd) and m.p > 0 for m in model.modules()
            )
        )
        """Whether a forward pass in training draws random numbers (dropout)."""
        of_weights = [torch.full((p.numel(),), p.ndim > 1) for p in learned.values()]
        self.weights_D = torch.cat(of_weights).to(device=device, dtype=dtype)
        """1 for entries of weights, 0 for those of biases and norms, which have one dimension."""
        self._start = torch.cat([p.detach().flatten() for p in learned.values()])

    @property
    def answer_size(self) -> int:
        """How many numbers the model gives for a sample."""
        return math.prod(self.facts.answer_shape)

    def with_facts(self, loss: Loss, facts: Facts) -> "Task":
        """The same task with a loss for each sample, and with what a trial has shown."""
        how = (self.dtype, self._start.device, self.goal, self.precision, facts)
        return Task(self.whole, loss, *how)

    @cached_property
    def frozen(self) -> str:
        """A checksum of what is never sent, parameters and buffers, and must be the same
        everywhere."""
        total, learned = 0, {*self.names}
        state = {**dict(self.model.named_parameters()), **dict(self.model.named_buffers())}
        for name, value in sorted(state.items()):
            if name not in learned:
                array = value.detach().cpu().to(torch.float64).numpy()
                total = zlib.crc32(np.ascontiguousarray(array).tobytes(), total)
        return f"checksum {total}" if total else NONE

    def start(self) -> Tensor:
        """The parameters the model was given with, ``[D]``."""
        return self._start.clone()

    def moved(self, x_D: Tensor, b_S: Tensor, inputs: Tensor) -> Tensor:
        """The running statistics after the model has seen a batch in training."""
        return self._seen(self.whole, x_D, b_S, inputs)

    def moments(self, x_D: Tensor, b_S: Tensor, inputs: Tensor) -> Tensor:
        """Means of a batch, and mean squares where variances would be, ``float64[S]``."""
        return self.layout.squares(self._seen(self._forgetful, x_D, b_S, inputs).double())

    @torch.no_grad()
    def _seen(self, model: nn.Module, x_D: Tensor, b_S: Tensor, inputs: Tensor) -> Tensor:
        buffers = self.layout.tensors(b_S)
        with torch.random.fork_rng(devices=[], enabled=self.random):
            call_with({**self.parameters(x_D), **buffers}, model, inputs)
        return self.layout.flat(buffers, b_S)

    def parameters(self, x_D: Tensor) -> dict[str, Tensor]:
        """The flat vector as named tensors: views, not copies. One that several layers share has
        several names."""
        parts = [p.view(s) for p, s in zip(x_D.split(self.sizes), self.shapes, strict=True)]
        return {name: parts[k] for name, k in self._places}

    def outputs(self, x_D: Tensor, inputs: Tensor) -> Tensor:
        """What the model with parameters `x_D` answers in training, in the parameters' type."""
        bf16 = self.precision == BF16
        with torch.autocast(x_D.device.type, torch.bfloat16, enabled=bf16):
            outputs = call_with(self.parameters(x_D), self.model, inputs)
        return outputs.to(self.dtype) if bf16 else outputs

    def losses(self, x_D: Tensor, inputs: Tensor, targets: Tensor) -> Tensor:
        """The loss of every sample, ``[n]``."""
        return self.per_sample(self.outputs(x_D, inputs), targets)

    def per_sample(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The loss of every sample, for outputs that are at hand."""
        losses = self.loss(*self.goal.pair(outputs, targets))
        return losses.flatten(1).mean(1) if losses.ndim > 1 else losses

    @torch.no_grad()
    def predict(self, x_E: Tensor, inputs: Tensor) -> Tensor:
        """What the model answers when it is used, not trained: with dropout off.

        `x_E` are its parameters and behind them its running statistics. Without those, the
        statistics of the inputs are used, as in training.
        """
        model, named = self._split(x_E)
        model.eval()
        try:
            return call_with(named, model, inputs)
        finally:
            model.train()

    def _split(self, x_E: Tensor) -> tuple[nn.Module, dict[str, Tensor]]:
        if len(x_E) == self.size:
            return self.model, self.parameters(x_E)
        x_D, b_S = x_E.split([self.size, self.layout.size])
        return self.whole, {**self.parameters(x_D), **self.layout.tensors(b_S)}

    def module(self, x_E: Tensor) -> nn.Module:
        """A stand-alone copy of the model that carries these parameters, and running statistics if
        they follow. Adapters become part of its weights."""
        module = copy.deepcopy(without_graphs(self.whole)).eval()
        _, named = self._split(x_E)
        module.load_state_dict({n: p.clone() for n, p in named.items()}, strict=False)
        return merged(module)
