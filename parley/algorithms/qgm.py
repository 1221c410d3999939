"""QGM: quasi-global momentum.

Lin et al., "Quasi-global momentum: accelerating decentralized deep learning on heterogeneous data",
ICML 2021. Momentum follows where the averaged models have gone, not the local gradients:

    m = β m̂ + g;   x⁺ = W (x - η (g + β m));   m̂⁺ = μ m̂ + (1 - μ) (x - x⁺) / η

With ``nesterov=False`` the step is -η m. β `momentum`, μ `mu`, η `lr`, γ `gamma`. Axes: A agents
hosted here, D flat parameters.
"""

import torch
from pydantic import Field
from torch import Tensor

from parley.algorithms.base import Memory, Part
from parley.algorithms.composed import Composed, Gossip, Own
from parley.neighbourhood.verbs import Neighbourhood


class QuasiGlobal(Part):
    """QGM's update rule."""

    momentum: float = Field(0.9, ge=0, lt=1)
    """β, the momentum coefficient."""
    mu: float = Field(0.9, ge=0, lt=1)
    """μ, how slowly the momentum follows the models."""
    nesterov: bool = True
    """True: the step is -η(g + βm). False: it is -ηm."""
    weight_decay: float = Field(0.0, ge=0)
    """λ: adds λx to the gradient."""

    def start(self, x_AD: Tensor, hood: Neighbourhood) -> Memory:
        """Momentum starts at zero."""
        return {"m_AD": torch.zeros_like(x_AD)}

    def update(self, g_AD: Tensor, x_AD: Tensor, lr: float, memory: Memory) -> Tensor:
        """-η (g + β m), m = β m̂ + g."""
        g_AD = g_AD + self.weight_decay * x_AD
        m_AD = self.momentum * memory["m_AD"] + g_AD
        return -lr * (g_AD + self.momentum * m_AD if self.nesterov else m_AD)

    def settle(self, old_AD: Tensor, new_AD: Tensor, lr: float, memory: Memory) -> None:
        """m̂⁺ = μ m̂ + (1 - μ) (x - x⁺) / η."""
        memory["m_AD"] = torch.lerp((old_AD - new_AD) / lr, memory["m_AD"], self.mu)


class QGM(QuasiGlobal, Gossip, Own, Composed):
    """D-PSGD whose momentum follows where the averaged models have gone."""

    name = "qgm"
    title = "QGM"
