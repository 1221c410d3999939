"""NGC: Neighborhood Gradient Clustering.

Aketi, Kodge, Roy, "Neighborhood Gradient Clustering: An Efficient Decentralized Learning Method
for Non-IID Data Distributions". The line numbers are those of its Algorithm 1.

    g̃^i = Σ_j [(1 - α) w_ji g^ji + α w_ij g^ij]

g^ii  own model, own data: self-gradient
g^ji  neighbour's model, own data: model-variant cross-gradient, computed here
g^ij  own model, neighbour's data: data-variant cross-gradient, computed there and sent back

α `alpha`, η `lr`, β `momentum`, γ `gamma`. Axes: A agents hosted here, I their incoming edges,
D flat parameters.
"""

from typing import ClassVar, NamedTuple

import torch
from pydantic import Field
from torch import Tensor

from parley.algorithms.base import Memory, MomentumSGD, Part
from parley.data import Batch
from parley.neighbourhood.verbs import Flow, Neighbourhood


class State(NamedTuple):
    """Models and momentum: what D-PSGD keeps, and no more."""

    x_AD: Tensor
    v_AD: Tensor


class Clustering(Part):
    """NGC's gradient rule."""

    looks_around: ClassVar[bool] = True
    alpha: float = Field(1.0, ge=0, le=1)
    """α, the share of the data-variant cluster, which calls for a second round of messages; the
    model-variant cluster has the rest."""

    def gradient(
        self, at_AD: Tensor, x_I: Flow, hood: Neighbourhood, batch: Batch, memory: Memory
    ) -> Tensor:
        """g̃^i, with self-gradients at `at_AD` and cross-gradients at the neighbours' models."""
        g_AD = hood.gradient(at_AD, batch)  # line 4
        g_I = hood.cross_gradient(x_I, batch)  # lines 6-7
        return hood.cluster(g_AD, g_I, self.alpha)  # lines 8-12


class NGC(Clustering, MomentumSGD):
    """Replaces each agent's gradient by the mean of those seen in its neighbourhood.

    At ``alpha=0`` the cross-gradients are used where they are computed and nothing but models is
    sent. The cross-gradients are added up as they come; they are never all in memory at once.
    """

    name = "ngc"
    title = "NGC"

    @property
    def label(self) -> str:
        """α is part of the name where it is not 1."""
        return self.title if self.alpha == 1 else f"{self.title} α={self.alpha:g}"

    def init(self, x_AD: Tensor, hood: Neighbourhood) -> State:
        """Momentum starts at zero."""
        return State(x_AD, torch.zeros_like(x_AD))

    def step(self, state: State, hood: Neighbourhood, batch: Batch, lr: float) -> State:
        """Lines 3 to 15."""
        x_AD, v_AD = state
        x_I = hood.exchange(x_AD)  # line 5
        at_AD = x_AD if self.gradient_at == "own" else self.mixed(x_AD, x_I, hood)
        g_AD = self.gradient(at_AD, x_I, hood, batch, {})  # lines 4 and 6-12
        d_AD, v_AD = self.descend(g_AD, at_AD, v_AD, lr)  # line 13
        mixed_AD = self.mixed(x_AD, x_I, hood) if self.gradient_at == "own" else at_AD
        return State(mixed_AD + d_AD, v_AD)  # lines 14-15
