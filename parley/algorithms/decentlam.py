"""DecentLaM: momentum of the whole D-PSGD step, averaging included.

Yuan et al., "DecentLaM: decentralized momentum SGD for large-batch deep training", ICCV 2021.

    g̃ = (x - W (x - η g)) / η;   m = β m + g̃;   x⁺ = x - η m

β `momentum`, η `lr`, γ `gamma`. Axes: A agents hosted here, D flat parameters.
"""

from typing import NamedTuple

import torch
from pydantic import Field
from torch import Tensor

from parley.algorithms.base import MOST, Algorithm, Momentum, Rate, Stepped
from parley.data import Batch
from parley.neighbourhood import Neighbourhood


class State(NamedTuple):
    """Models and momentum."""

    x_AD: Tensor
    m_AD: Tensor


class DecentLaM(Algorithm):
    """D-PSGD with momentum that does not add to the bias of heterogeneous data."""

    name = "decentlam"
    title = "DecentLaM"
    no_local_steps = "its momentum is that of whole steps, averaging included"

    momentum: Momentum = 0.9
    gamma: Rate = 1.0
    weight_decay: float = Field(0.0, ge=0, le=MOST)
    """λ: adds λx to the gradient."""

    def init(self, x_AD: Tensor, hood: Neighbourhood, apart: bool = False) -> State:
        """Momentum starts at zero."""
        return State(x_AD, torch.zeros_like(x_AD))

    def step(self, state: State, hood: Neighbourhood, batch: Batch, lr: float) -> Stepped:
        """One iteration."""
        x_AD, m_AD = state
        g_AD, loss_A = hood.gradient(x_AD, batch)
        g_AD = g_AD + self.weight_decay * x_AD
        g_AD = (x_AD - hood.mix(x_AD - lr * g_AD, self.gamma)) / lr
        m_AD = self.momentum * m_AD + g_AD
        return Stepped(State(x_AD - lr * m_AD, m_AD), loss_A)
