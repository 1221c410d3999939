"""D²: D-PSGD that removes the effect of differences between agents' data from its steps.

Tang et al., "D²: decentralized training over decentralized data", ICML 2018.

    x⁺ = W (x + (η / η_old) (x - x_old) - η (g - g_old));   the first step is D-PSGD's

At a constant rate this is the paper's W (2 x - x_old - η g + η g_old). The correction of g,
(x_old - x) / η_old - g_old, is itself in units of gradients, so that it fits any η. With W
symmetric the models rest where all gradients sum to zero and all models agree, however much the
gradients differ. It needs λ_min(W) > -1/3. An even ring sits exactly on that bound and a torus
is beyond it, so W is made lazy, (1 - γ) I + γ W. γ `gamma`, η `lr`. Axes: A agents hosted here, D
flat parameters.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from parley.algorithms.base import Stepped
from parley.algorithms.lazy import LazyGossip
from parley.data import Batch
from parley.neighbourhood import Neighbourhood


class State(NamedTuple):
    """Models, and the previous step."""

    x_AD: Tensor
    old_AD: Tensor
    """x of the previous step."""
    g_AD: Tensor
    """g of the previous step."""
    lr_A: Tensor
    """η of the previous step."""


class D2(LazyGossip):
    """D-PSGD without the bias caused by heterogeneous data, at the same cost."""

    name = "d2"
    title = "D²"
    no_local_steps = "it takes single gradients out of the next step; led is d2 with local steps"

    def init(self, x_AD: Tensor, hood: Neighbourhood, apart: bool = False) -> State:
        """As if the agents had been at rest with no gradient, so that the first step is plain."""
        return State(x_AD, x_AD, torch.zeros_like(x_AD), x_AD.new_ones(len(x_AD)))

    def step(self, state: State, hood: Neighbourhood, batch: Batch, lr: float) -> Stepped:
        """One iteration."""
        x_AD, old_AD, g_old_AD, lr_old_A = state
        g_AD, loss_A = hood.gradient(x_AD, batch)
        g_AD = g_AD + self.weight_decay * x_AD
        lr_A = torch.full_like(lr_old_A, lr)
        moved_AD = (lr_A / lr_old_A)[:, None] * (x_AD - old_AD)
        new_AD = hood.mix(x_AD + moved_AD - lr * (g_AD - g_old_AD), self.gamma)
        return Stepped(State(new_AD, x_AD, g_AD, lr_A), loss_A)
