"""Many (model, batch) gradients at once.

Axes: P pairs of a model and a batch, D flat parameters, A hosted agents, B samples of a batch.

`LoopEngine` is the obvious way and what the others are tested against; `VmapEngine` computes all
pairs as one batched operation, which wins where a model is made of small dense layers.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from parley.data import Batch
from parley.errors import BadValue, unknown_name
from parley.task import Task


class Engine(ABC):
    """Gradients of many models, each on some hosted agent's batch."""

    def __init__(self, task: Task, seed: int = 0) -> None:
        self.task = task
        self.seed = seed
        self.samples = 0
        """Samples times gradients computed so far."""

    def gradients(
        self, x_PD: Tensor, batch: Batch, rows: Sequence[int], owners: Sequence[int]
    ) -> tuple[Tensor, Tensor]:
        """Loss and gradient of model p on the batch in row ``rows[p]``.

        ``owners[p]`` is the agent whose model it is; with the batch's own agent and step it keys
        the randomness of dropout, so that a result does not depend on where it is computed.
        """
        self.samples += sum(batch.sizes[r] for r in rows)
        return self._gradients(x_PD, batch, rows, owners)

    @abstractmethod
    def _gradients(
        self, x_PD: Tensor, batch: Batch, rows: Sequence[int], owners: Sequence[int]
    ) -> tuple[Tensor, Tensor]: ...


class LoopEngine(Engine):
    """One pair after the other."""

    def _gradients(
        self, x_PD: Tensor, batch: Batch, rows: Sequence[int], owners: Sequence[int]
    ) -> tuple[Tensor, Tensor]:
        loss_P, g_PD = x_PD.new_empty(len(rows)), torch.empty_like(x_PD)
        for p, (row, owner) in enumerate(zip(rows, owners, strict=True)):
            n = batch.sizes[row]
            if self.task.random:
                key = [self.seed, 3, batch.agents[row], owner, batch.step]
                torch.manual_seed(int(np.random.SeedSequence(key).generate_state(1, np.uint64)[0]))
            x_D = x_PD[p].detach().requires_grad_()
            loss = self.task.losses(x_D, batch.inputs[row, :n], batch.targets[row, :n]).mean()
            (g_PD[p],) = torch.autograd.grad(loss, x_D)
            loss_P[p] = loss.detach()
        return loss_P, g_PD


class VmapEngine(Engine):
    """All pairs as one batched operation."""

    def __init__(self, task: Task, seed: int = 0) -> None:
        super().__init__(task, seed)
        if task.random:
            raise BadValue("engine", "vmap", "loop", "the model has dropout")

        def loss(x_D: Tensor, inputs: Tensor, targets: Tensor, weights_B: Tensor) -> Tensor:
            return (task.losses(x_D, inputs, targets) * weights_B).sum()

        self._batched = torch.func.vmap(torch.func.grad_and_value(loss))

    def _gradients(
        self, x_PD: Tensor, batch: Batch, rows: Sequence[int], owners: Sequence[int]
    ) -> tuple[Tensor, Tensor]:
        inputs, targets, weights = batch.inputs, batch.targets, batch.weights
        if list(rows) != list(range(len(inputs))):
            index = torch.as_tensor(rows, device=x_PD.device)
            inputs, targets, weights = inputs[index], targets[index], weights[index]
        g_PD, loss_P = self._batched(x_PD, inputs, targets, weights)
        return loss_P, g_PD


ENGINES: dict[str, type[Engine]] = {"loop": LoopEngine, "vmap": VmapEngine}


def choose(name: str, task: Task, seed: int = 0) -> Engine:
    """The engine of that name, or for ``auto`` the faster one for this kind of model.

    Batched dense layers are one matrix product for all agents; batched convolutions become
    grouped convolutions, which are slow on a CPU.
    """
    if name == "auto":
        convolutional = any(isinstance(m, nn.modules.conv._ConvNd) for m in task.model.modules())
        name = "loop" if convolutional or task.random else "vmap"
    if name not in ENGINES:
        raise unknown_name("engine", name, [*ENGINES, "auto"])
    return ENGINES[name](task, seed)
