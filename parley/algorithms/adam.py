"""Adam and AdamW: steps scaled by running means of the gradient and of its square.

Kingma, Ba, "Adam: a method for stochastic optimization", ICLR 2015; Loshchilov, Hutter, "Decoupled
weight decay regularization", ICLR 2019.

    m = β₁ m + (1 - β₁) g;   v = β₂ v + (1 - β₂) g²
    d = -η (m / (1 - β₁ᵗ)) / (√(v / (1 - β₂ᵗ)) + ε)

Every agent keeps its own m and v. AdamW is Adam whose weights decay beside the step and not through
the gradient. β₁ `beta1`, β₂ `beta2`, ε `epsilon`, η `lr`. Axes: A agents hosted here, D flat
parameters.
"""

from typing import NamedTuple

import torch
from pydantic import Field
from torch import Tensor

from parley.algorithms.base import Decoupled, WeightDecay
from parley.algorithms.parts import DecayingRule


class Moments(NamedTuple):
    """What Adam keeps."""

    m_AD: Tensor
    v_AD: Tensor
    t_A: Tensor
    """Steps taken."""


class Adam(DecayingRule):
    """Adam's update rule."""

    word = "adam"
    title = "Adam"
    alone = False
    scale_free = True
    beta1: float = Field(0.9, ge=0, lt=1)
    """β₁, how slowly the running mean of the gradients changes."""
    beta2: float = Field(0.999, ge=0, lt=1)
    """β₂, how slowly the second running mean changes: Adam's of the squared gradients, or Lion's
    momentum."""
    epsilon: float = Field(1e-8, gt=0, le=1)
    """ε, added to the root of the mean square."""

    def init(self, x_AD: Tensor) -> Moments:
        """Both means start at zero."""
        zeros_AD = torch.zeros_like(x_AD)
        return Moments(zeros_AD, zeros_AD, x_AD.new_zeros(len(x_AD)))

    def apply(
        self, state: Moments, g_AD: Tensor, at_AD: Tensor, lr: float
    ) -> tuple[Tensor, Moments]:
        """-η m̂ / (√v̂ + ε)."""
        m_AD = torch.lerp(state.m_AD, g_AD, 1 - self.beta1)
        v_AD = (self.beta2 * state.v_AD).addcmul_(g_AD, g_AD, value=1 - self.beta2)
        t_A = state.t_A + 1
        times_A1 = t_A.double()[:, None]
        step_A1 = (-lr / (1 - self.beta1**times_A1)).to(g_AD.dtype)
        root_A1 = (1 - self.beta2**times_A1).sqrt().to(g_AD.dtype)
        return step_A1 * m_AD / (v_AD.sqrt() / root_A1 + self.epsilon), Moments(m_AD, v_AD, t_A)


class AdamW(Adam):
    """Adam with decoupled weight decay."""

    word = "adamw"
    title = "AdamW"
    weight_decay: WeightDecay = 0.01
    decoupled: Decoupled = True
