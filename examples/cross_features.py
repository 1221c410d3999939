"""Cross-feature contrastive loss: neighbours pull each other's features together.

After Aketi and Roy, "Cross-feature contrastive loss for decentralized deep learning on
heterogeneous data", WACV 2024. h are the last hidden activations, b_i agent i's batch, y its
classes, and sg makes a constant of a value:

    L_i = CE(x_i; b_i) + λ_m Σ_j MSE(h(x_i; b_i), sg h(x_j; b_i)) + λ_d MSE(h(x_i; b_i), sg z_i[y])
    z_i[c] = the mean of h(x_i; s) over all samples s of class c in b_i and the neighbours' batches
    v = βv - η ∇L;   x⁺ = x + v + γ Σ_j (w_ij - I_ij) x^j

A neighbour evaluates h(x_i; ·) on its own batch and sends back one sum and one count for each
class: C (F + 1) numbers in place of a gradient. λ_m `model_weight`, λ_d `data_weight`, β
`momentum`, γ `gamma`, η `lr`. Axes: A agents hosted here, I their incoming edges, O their outgoing
edges, W sums and counts, n samples, F features, C classes, D flat parameters.

    parley train --algorithm cross_features:CrossFeatures --model cnn5 --agents 5
"""

from typing import NamedTuple

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn.functional import mse_loss, one_hot

from parley.algorithms import Algorithm, Stepped
from parley.algorithms.base import Momentum, Rate
from parley.data import Batch
from parley.neighbourhood import Neighbourhood


class State(NamedTuple):
    """Models and momentum."""

    x_AD: Tensor
    v_AD: Tensor


class CrossFeatures(Algorithm):
    """D-PSGD whose loss also compares features with the neighbours'."""

    name = "cross-features"
    title = "Cross-features"
    gradients_per_edge = 1

    model_weight: float = Field(0.1, ge=0, le=1000)
    """λ_m, the weight of the distance to the features of the neighbours' models."""
    data_weight: float = Field(0.1, ge=0, le=1000)
    """λ_d, the weight of the distance to the mean features of a class in the neighbourhood."""
    momentum: Momentum = 0.9
    gamma: Rate = 1.0

    def init(self, x_AD: Tensor, hood: Neighbourhood, apart: bool = False) -> State:
        """Momentum starts at zero."""
        return State(x_AD, torch.zeros_like(x_AD))

    def step(self, state: State, hood: Neighbourhood, batch: Batch, lr: float) -> Stepped:
        """One iteration."""
        x_AD, v_AD = state
        x_I = hood.exchange(x_AD)
        own = hood.evaluate(features, x_AD, batch)
        theirs = hood.cross_evaluate(features, x_I, batch)

        receivers, targets = hood.receiver_I.tolist(), [samples(batch, a) for a in range(len(x_AD))]
        classes = own.values[0][1].shape[1]
        sums_AW = [sums(h, y, classes) for (h, _), y in zip(own.values, targets, strict=True)]
        pairs = zip(theirs.values, receivers, strict=True)
        sums_IW = [sums(h, targets[a], classes) for (h, _), a in pairs]
        none_W = sums_AW[0].new_empty(0, len(sums_AW[0]))  # an agent may be alone
        back_OW = hood.send_back(hood.stored(torch.cat([none_W, *(s[None] for s in sums_IW)])))

        losses, cotangents = [], []
        for a, (h_nF, outputs_nC) in enumerate(own.values):
            around = [h for (h, _), i in zip(theirs.values, receivers, strict=True) if i == a]
            means_CF = class_means(sums_AW[a] + back_OW[hood.sender_O == a].sum(0), classes)
            leaves = h_nF.requires_grad_(), outputs_nC.requires_grad_()
            loss = hood.losses(outputs_nC, targets[a]).mean()
            contrast = self.data_weight * mse_loss(h_nF, means_CF[targets[a]])
            for other_nF in around:
                contrast = contrast + self.model_weight * mse_loss(h_nF, other_nF)
            cotangents.append(torch.autograd.grad(loss + contrast, leaves))
            losses.append(loss.detach())

        v_AD = self.momentum * v_AD - lr * own.pull(cotangents)
        return Stepped(State(hood.gossip(x_AD, x_I, self.gamma, v_AD), v_AD), torch.stack(losses))


def features(model: nn.Module, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """The last hidden activations, which enter the last linear layer, and the outputs."""
    head = [layer for layer in model.modules() if isinstance(layer, nn.Linear)][-1]
    entered: list[Tensor] = []
    handle = head.register_forward_pre_hook(lambda _, given: entered.append(given[0]))
    try:
        outputs = model(inputs)
    finally:
        handle.remove()
    return entered[-1].flatten(1), outputs


def samples(batch: Batch, row: int) -> Tensor:
    """The classes in the batch of one row."""
    return batch.targets[row, : batch.sizes[row]]


def sums(h_nF: Tensor, targets: Tensor, classes: int) -> Tensor:
    """The sum of the features of each class, and how many samples it has, [W]."""
    of_Cn = one_hot(targets, classes).to(h_nF).mT
    return torch.cat([of_Cn @ h_nF, of_Cn.sum(1, keepdim=True)], 1).flatten()


def class_means(sums_W: Tensor, classes: int) -> Tensor:
    """The mean features of each class; zero for one without samples."""
    sums_CG = sums_W.view(classes, -1)
    return sums_CG[:, :-1] / sums_CG[:, -1:].clamp(min=1)
