"""Lion: steps along the signs of a running mean.

Chen et al., "Symbolic discovery of optimization algorithms", NeurIPS 2023.

    d = -η sgn(β₁ m + (1 - β₁) g);   m = β₂ m + (1 - β₂) g

Weights decay beside the step, as with AdamW. Every entry moves by η, so that η has to be a third to
a tenth of what Adam would get. β₁ `beta1`, β₂ `beta2`, η `lr`. Axes: A agents hosted here, D flat
parameters.
"""

from typing import NamedTuple

import torch
from pydantic import Field
from torch import Tensor

from parley.algorithms.base import Decoupled
from parley.algorithms.parts import DecayingRule


class Mean(NamedTuple):
    """The running mean of the gradients."""

    m_AD: Tensor


class Lion(DecayingRule):
    """Lion's update rule."""

    word = "lion"
    title = "Lion"
    alone = False
    scale_free = True
    decoupled: Decoupled = True
    beta1: float = Field(0.9, ge=0, lt=1)
    """β₁, how much of the running mean is in a step; the rest is the new gradient."""
    beta2: float = Field(0.99, ge=0, lt=1)
    """β₂, how slowly the running mean changes."""

    def init(self, x_AD: Tensor) -> Mean:
        """The mean starts at zero."""
        return Mean(torch.zeros_like(x_AD))

    def apply(self, state: Mean, g_AD: Tensor, at_AD: Tensor, lr: float) -> tuple[Tensor, Mean]:
        """-η sgn(β₁ m + (1 - β₁) g)."""
        d_AD = torch.lerp(g_AD, state.m_AD, self.beta1).sign_().mul_(-lr)
        return d_AD, Mean(torch.lerp(g_AD, state.m_AD, self.beta2))
