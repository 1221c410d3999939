"""Exact diffusion: adapt, correct, combine.

Yuan, Ying, Zhao, Sayed, "Exact diffusion for distributed optimization and learning", IEEE
Transactions on Signal Processing 2019.

    ψ⁺ = x - η g(x);   φ = ψ⁺ + (η / η_old) (x - ψ);   x⁺ = W φ;   ψ starts at x

The correction x - ψ undoes what the data of an agent alone pull its model away by, which is in
proportion to η; the paper has a constant η. Written out, the sequence of models is that of D². W is
made lazy, (1 - γ) I + γ W; the paper has γ = ½. η `lr`, γ `gamma`. Axes: A agents hosted here, D
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
    """Models, and where their last steps led before correction."""

    x_AD: Tensor
    ψ_AD: Tensor
    lr_A: Tensor
    """η of the last step."""


class ExactDiffusion(LazyGossip):
    """D-PSGD with a correction that makes it exact, at the same cost."""

    name = "exact-diffusion"
    title = "Exact diffusion"
    no_local_steps = "its correction belongs to single steps; led is it with local steps"

    def init(self, x_AD: Tensor, hood: Neighbourhood, apart: bool = False) -> State:
        """The first step has nothing to correct."""
        return State(x_AD, x_AD, x_AD.new_ones(len(x_AD)))

    def step(self, state: State, hood: Neighbourhood, batch: Batch, lr: float) -> Stepped:
        """One iteration."""
        x_AD, ψ_AD, lr_old_A = state
        g_AD, loss_A = hood.gradient(x_AD, batch)
        new_AD = x_AD - lr * (g_AD + self.weight_decay * x_AD)
        lr_A = torch.full_like(lr_old_A, lr)
        φ_AD = new_AD + (lr_A / lr_old_A)[:, None] * (x_AD - ψ_AD)
        return Stepped(State(hood.mix(φ_AD, self.gamma), new_AD, lr_A), loss_A)
