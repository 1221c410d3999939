"""A plain torch function of a model and a batch: its outputs, and a cotangent pulled back to the
parameters.

Always computed by torch, one pair after the other, whichever engine computes gradients. Axes: P
pairs of a model and a batch, D flat parameters.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call

from parley.compute.engine import Engine, dropout_seed, on_a_cache_line
from parley.compute.precision import BF16
from parley.compute.task import Task
from parley.data import Batch

Function = Callable[[nn.Module, Tensor, Tensor], tuple[Tensor, ...]]
"""``(model, inputs, targets) -> outputs``, each tensor of any shape. The model is in training mode
and has the parameters in question, in its submodules too; hooks may be registered on it if they are
removed again."""


class PairOutputs(NamedTuple):
    """A function of one model and one batch."""

    values: tuple[Tensor, ...]
    """The outputs, without their graph."""
    pull: Callable[[Sequence[Tensor | None]], Tensor]
    """The cotangents of the outputs, pulled back to the parameters, [D]; None stands for zero. It
    can be called once, if the outputs were computed with a graph."""


class Called(nn.Module):
    """A function and its model as one module, whose parameters can be replaced for a call."""

    def __init__(self, model: nn.Module, function: Function) -> None:
        super().__init__()
        self.model = model
        self.function = function

    def forward(self, inputs: Tensor, targets: Tensor) -> tuple[Tensor, ...]:
        """The function's outputs."""
        return self.function(self.model, inputs, targets)


def evaluated(
    engine: Engine,
    function: Function,
    x_PD: Tensor,
    batch: Batch,
    rows: Sequence[int],
    owners: Sequence[int],
    graph: bool,
) -> Iterator[PairOutputs]:
    """The function of model p and the batch in row ``rows[p]``, with or without a graph.

    ``owners[p]`` is the agent whose model it is: dropout draws what it does in that pair's
    gradient.
    """
    called = Called(engine.task.model, function)
    for x_D, row, owner in zip(x_PD, rows, owners, strict=True):
        n = batch.sizes[row]
        with torch.random.fork_rng(devices=[]), torch.set_grad_enabled(graph):
            torch.manual_seed(dropout_seed(engine.seed, batch, row, owner))
            x_D = on_a_cache_line(x_D.detach()).requires_grad_(graph)
            inputs = on_a_cache_line(batch.inputs[row, :n])
            outputs = _outputs(engine.task, called, x_D, inputs, batch.targets[row, :n])
        yield PairOutputs(tuple(output.detach() for output in outputs), _pull(x_D, outputs))


def _outputs(
    task: Task, called: Called, x_D: Tensor, inputs: Tensor, targets: Tensor
) -> tuple[Tensor, ...]:
    """At parameters `x_D`, in their type."""
    named = {f"model.{name}": values for name, values in task.parameters(x_D).items()}
    with torch.autocast(x_D.device.type, torch.bfloat16, enabled=task.precision == BF16):
        outputs = functional_call(called, named, (inputs, targets))
    if not isinstance(outputs, tuple):
        raise TypeError(f"{called.function} returned a {type(outputs).__name__}, not a tuple")
    return tuple(o.to(task.dtype) if o.is_floating_point() else o for o in outputs)


def _pull(x_D: Tensor, outputs: tuple[Tensor, ...]) -> Callable[[Sequence[Tensor | None]], Tensor]:
    def pull(cotangents: Sequence[Tensor | None]) -> Tensor:
        both = zip(outputs, cotangents, strict=True)
        ways = [(o, c) for o, c in both if c is not None and o.requires_grad]
        if not ways:
            return torch.zeros_like(x_D)
        along, back = zip(*ways, strict=True)
        return torch.autograd.grad(along, x_D, back, materialize_grads=True)[0]

    return pull
