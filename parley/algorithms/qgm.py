"""QGM: quasi-global momentum.

Lin et al., "Quasi-global momentum: accelerating decentralized deep learning on heterogeneous data",
ICML 2021. Momentum follows how the averaged models move, not the local gradients:

    m = β m̂ + g;   x⁺ = W (x - η (g + β m));   m̂⁺ = μ m̂ + (1 - μ) (x - x⁺) / η

With ``nesterov=False`` the step is -η m. With τ local steps m̂ stays the same within a round, whose
movement is then divided by the sum of its η. β `momentum`, μ `mu`, η `lr`, γ `gamma`, τ
`local_steps`. Axes: A agents hosted here, D flat parameters.
"""

from typing import NamedTuple

import torch
from pydantic import Field
from torch import Tensor

from parley.algorithms.base import LocalSteps, Momentum
from parley.algorithms.parts import DecayingRule, DecayOptions, FollowingRule, GossipOptions
from parley.algorithms.recipe import Combination


class Direction(NamedTuple):
    """The direction in which the models have been moving, m̂."""

    m_AD: Tensor


class QGMOptions(DecayOptions):
    """The hyper-parameters of QGM."""

    momentum: Momentum = 0.9
    mu: float = Field(0.9, ge=0, lt=1)
    """μ, how slowly the momentum follows the models."""
    nesterov: bool = True
    """True: the step is -η(g + βm). False: it is -ηm."""


class QuasiGlobal(QGMOptions, FollowingRule, DecayingRule):
    """QGM's update rule."""

    word = "qgm"
    title = "QGM"

    def init(self, x_AD: Tensor) -> Direction:
        """Momentum starts at zero."""
        return Direction(torch.zeros_like(x_AD))

    def apply(
        self, state: Direction, g_AD: Tensor, at_AD: Tensor, lr: float
    ) -> tuple[Tensor, Direction]:
        """-η (g + β m), m = β m̂ + g."""
        m_AD = self.momentum * state.m_AD + g_AD
        return -lr * (g_AD + self.momentum * m_AD if self.nesterov else m_AD), state

    def settle(
        self, state: Direction, old_AD: Tensor, new_AD: Tensor, lr: float | Tensor
    ) -> Direction:
        """m̂⁺ = μ m̂ + (1 - μ) (x - x⁺) / η."""
        return Direction(torch.lerp((old_AD - new_AD) / lr, state.m_AD, self.mu))


class QGM(GossipOptions, QGMOptions, Combination):
    """D-PSGD whose momentum follows how the averaged models move."""

    name = "qgm"
    title = "QGM"
    made_of = (QuasiGlobal,)

    local_steps: LocalSteps = 1
