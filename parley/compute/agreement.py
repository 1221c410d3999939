"""Whether an engine's gradient of a model is autograd's.

Axes: P pairs of a model and a batch, D flat parameters.
"""

import copy
from collections.abc import Callable

import torch
from torch import Tensor, nn

from parley.compute.buffers import without_graphs
from parley.compute.engine import Engine, LoopEngine
from parley.compute.goals import Goal
from parley.compute.reader import Network
from parley.compute.task import Facts, Task
from parley.data import Batch
from parley.measures import OWN

SAMPLES, SAMPLES_TOGETHER = 3, 8
"""In the batch whose gradient is compared. Where samples depend on each other there are more: with
three, BatchNorm would divide by deviations that are nearly 0."""
DIFFERENT = 0.05
"""Share of a parameter's gradient by which it may be off, beyond rounding."""
ROUNDING, TIMES_LOOP = 1e-5, 20
"""What counts as rounding: this share of the whole gradient, and so many times the error that torch
itself makes in float32."""
SEEDS = 2
"""Rounding may put a value on the other side of a kink, but hardly twice."""


def wrong_parameter(
    model: nn.Module, network: Network, shape: tuple[int, ...], build: Callable[[Task], Engine]
) -> str:
    """The name of a parameter whose gradient by the engine that `build` makes is not autograd's;
    empty if there is none. `network` is what was read from the model."""
    found = ""
    for seed in range(SEEDS):
        found = _wrong(model, network, shape, build, seed)
        if not found:
            break
    return found


@torch.inference_mode(False)
@torch.enable_grad()
def _wrong(
    model: nn.Module,
    network: Network,
    shape: tuple[int, ...],
    build: Callable[[Task], Engine],
    seed: int,
) -> str:
    """With the squared error, for random inputs and targets."""
    generator = torch.Generator().manual_seed(seed)
    n = SAMPLES_TOGETHER if network.couples else SAMPLES
    inputs = torch.randn(1, n, *shape, generator=generator)
    targets = torch.randn(1, n, *network.of_each, generator=generator)
    batch = Batch(inputs, targets, torch.full((1, n), 1 / n), (n,), (0,), 0)
    single, double = (_task(model, network, dtype) for dtype in (torch.float32, torch.float64))
    # Beside the start, where some networks have zeros that nothing passes through.
    x_PD = single.start()[None]
    x_PD += 0.01 * torch.randn(x_PD.shape, generator=generator)

    def gradients(engine: Engine) -> tuple[Tensor, ...]:
        dtype = engine.task.dtype
        given = batch._replace(inputs=inputs.to(dtype), targets=targets.to(dtype))
        g_PD = engine.gradients(x_PD.to(dtype), given, [0], [0])[1]
        return tuple(g_PD[0].double().split(engine.task.sizes))

    exact = gradients(LoopEngine(double))
    each = zip(
        *(single.names, gradients(build(single)), gradients(LoopEngine(single)), exact),
        strict=True,
    )
    size = torch.cat(exact).norm()
    for name, found, loop, right in each:
        rounding = ROUNDING * size + TIMES_LOOP * (loop - right).norm()
        if (found - right).norm() > DIFFERENT * right.norm() + rounding:
            return name
    return ""


def _task(model: nn.Module, network: Network, dtype: torch.dtype) -> Task:
    copied = copy.deepcopy(without_graphs(model))
    random = any(step.operation == "masking" for step in network.steps)
    loss = nn.MSELoss(reduction="none")
    return Task(copied, loss, dtype, goal=Goal(OWN), facts=Facts(random=random))
