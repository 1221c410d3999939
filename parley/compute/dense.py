"""Gradients of many dense networks at once, as batched matrix products.

Axes: P pairs of a model and a batch, D flat parameters, B samples of a batch, F features.

For a stack of dense layers the gradients of all pairs are a few batched products; writing them out
saves what autograd and vmap spend on bookkeeping, which for networks this small is most of the
time.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from parley.compute.beside import code_of_its_own
from parley.compute.engine import Engine
from parley.compute.task import Task, cross_entropy
from parley.data import Batch
from parley.errors import BadValue

SLOPES: dict[type[nn.Module], Callable[[Tensor], Tensor]] = {
    nn.ReLU: lambda y: y > 0,
    nn.Tanh: lambda y: 1 - y.square(),
    nn.Sigmoid: lambda y: y * (1 - y),
}
"""Activations whose derivative follows from their output."""

CHUNK_BYTES = 1 << 20
"""Inputs handled at once: what comes after them should still be in the cache when it is needed."""


class StackedEngine(Engine):
    """All pairs through each layer at once, without autograd."""

    name = "stacked"

    def __init__(self, task: Task, seed: int = 0, threads: int = 1) -> None:
        super().__init__(task, seed, threads)
        reason = unsupported(task)
        if reason:
            raise BadValue("engine", "stacked", "loop, vmap or auto", reason)
        assert isinstance(task.model, nn.Sequential)
        self._layers = list(task.model)

    def gradients(
        self, x_PD: Tensor, batch: Batch, rows: Sequence[int], owners: Sequence[int]
    ) -> tuple[Tensor, Tensor]:
        """Loss and gradient of each pair, as `Engine.gradients` says."""
        inputs, targets, weights = batch.inputs, batch.targets, batch.weights
        if list(rows) != list(range(len(inputs))):
            index = torch.as_tensor(rows, dtype=torch.int64, device=x_PD.device)
            inputs, targets, weights = (t.index_select(0, index) for t in batch[:3])
        loss_P, g_PD = x_PD.new_empty(len(x_PD)), torch.empty_like(x_PD)
        if not len(rows):
            return loss_P, g_PD
        chunk = max(1, CHUNK_BYTES // (inputs[0].numel() * inputs.element_size()))
        parts = (t.split(chunk) for t in (x_PD, inputs, targets, weights, loss_P, g_PD))
        for part in zip(*parts, strict=True):
            self._backpropagate(*part)
        return loss_P, g_PD

    def _backpropagate(
        self,
        x_PD: Tensor,
        inputs: Tensor,
        targets_PB: Tensor,
        weights_PB: Tensor,
        loss_P: Tensor,
        g_PD: Tensor,
    ) -> None:
        """Writes the losses and gradients of some pairs into `loss_P` and `g_PD`."""
        parameters = x_PD.split(self.task.sizes, 1)
        gradients = g_PD.split(self.task.sizes, 1)
        h, kept, used = inputs, [], 0
        for layer in self._layers:
            if isinstance(layer, nn.Flatten):
                h = h.flatten(2)
                continue
            if isinstance(layer, nn.Linear):
                kept.append(h)
                weight_POF = _matrices(parameters[used], layer)
                used += 1
                if layer.bias is None:
                    h = torch.bmm(h, weight_POF.mT)
                else:
                    h = torch.baddbmm(parameters[used][:, None], h, weight_POF.mT)
                    used += 1
            else:
                h = layer(h)
                kept.append(h)

        # d: the derivative of the loss by what the layer below puts out.
        answers = targets_PB[..., None]
        log_p = h.log_softmax(2)
        loss_P.copy_((log_p.gather(2, answers).squeeze(2) * weights_PB).sum(1).neg_())
        d = log_p.exp_()
        d.scatter_add_(2, answers, d.new_full((1, 1, 1), -1).expand(answers.shape))
        d.mul_(weights_PB[..., None])
        for layer in reversed(self._layers):
            if isinstance(layer, nn.Linear):
                if layer.bias is not None:
                    used -= 1
                    gradients[used].copy_(d.sum(1))
                used -= 1
                _matrices(gradients[used], layer).copy_(torch.bmm(d.mT, kept.pop()))
                if used:  # nothing learned lies below the first one
                    d = torch.bmm(d, _matrices(parameters[used], layer))
            elif not isinstance(layer, nn.Flatten):
                slope = SLOPES[type(layer)](kept.pop())
                if used:
                    d = d * slope


def _matrices(flat: Tensor, layer: nn.Linear) -> Tensor:
    return flat.view(len(flat), layer.out_features, layer.in_features)


def unsupported(task: Task) -> str:
    """Why this engine cannot be used for a task; nothing if it can."""
    if type(task.model) is not nn.Sequential:
        return f"the model is a {type(task.model).__name__}, not a plain nn.Sequential"
    if why := code_of_its_own(task.model):
        return why
    layers, known = list(task.model), (nn.Flatten, nn.Linear, *SLOPES)
    if strange := [type(layer).__name__ for layer in layers if type(layer) not in known]:
        return f"the model has {strange[0]}, not only dense layers"
    if len(task.names) != sum(len(list(layer.parameters())) for layer in layers):
        return "some parameters are frozen, or shared by layers"
    if task.loss is not cross_entropy or not task.goal.has_classes:
        return "the loss is not cross-entropy of one class for each sample"
    return ""
