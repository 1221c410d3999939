"""Momentum tracking: gradient tracking of momentum.

Takezawa et al., "Momentum tracking: momentum acceleration for decentralized deep learning on
heterogeneous data", TMLR 2023.

    u = β u + g;   x⁺ = W x - η (u - c);   c⁺ = W (c - u) + u

c is how far an agent's momentum is from the mean of all; it starts at zero. β `momentum`, η `lr`,
γ `gamma`. Axes: A agents hosted here, D flat parameters.
"""

from typing import NamedTuple

import torch
from pydantic import Field
from torch import Tensor

from parley.algorithms.base import MOST, Algorithm, Momentum, Rate, Stepped
from parley.data import Batch
from parley.neighbourhood import Neighbourhood


class State(NamedTuple):
    """Models, momentum, and its correction."""

    x_AD: Tensor
    u_AD: Tensor
    c_AD: Tensor


class MomentumTracking(Algorithm):
    """Steps along momentum corrected towards the mean over agents, sent along with the models."""

    name = "momentum-tracking"
    title = "Momentum tracking"
    no_local_steps = "what it tracks is sent in every step; kgt tracks gradients over local steps"

    momentum: Momentum = 0.9
    gamma: Rate = 1.0
    weight_decay: float = Field(0.0, ge=0, le=MOST)
    """λ: adds λx to the gradient."""

    def init(self, x_AD: Tensor, hood: Neighbourhood, apart: bool = False) -> State:
        """Momentum and correction start at zero."""
        return State(x_AD, torch.zeros_like(x_AD), torch.zeros_like(x_AD))

    def step(self, state: State, hood: Neighbourhood, batch: Batch, lr: float) -> Stepped:
        """One iteration."""
        x_AD, u_AD, c_AD = state
        g_AD, loss_A = hood.gradient(x_AD, batch)
        u_AD = self.momentum * u_AD + g_AD + self.weight_decay * x_AD
        x_AD = hood.mix(x_AD, self.gamma) - lr * (u_AD - c_AD)
        c_AD = hood.mix(c_AD - u_AD, self.gamma, kind="cross_gradients") + u_AD
        return Stepped(State(x_AD, u_AD, c_AD), loss_A)
