"""D-PSGD: stochastic gradient descent and gossip averaging.

Lian et al., "Can decentralized algorithms outperform centralized algorithms?", NeurIPS 2017; with
momentum it is DMSGD, Balu et al., ICASSP 2021. The line numbers are those of the algorithm
"Decentralized Peer-to-Peer Training" in the NGC paper's appendix.

    x⁺ = W (x - η g)

η `lr`, β `momentum`, γ `gamma`. Axes: A agents hosted here, D flat parameters.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from parley.algorithms.base import MomentumSGD
from parley.data import Batch
from parley.neighbourhood.verbs import Neighbourhood


class State(NamedTuple):
    """Models and momentum."""

    x_AD: Tensor
    v_AD: Tensor


class DPSGD(MomentumSGD):
    """Step on the own data, then average with the neighbours.

    With ``gradient_at="mixed"`` the neighbours are averaged first. That is the same sequence of
    operations cut at another point: x⁺ = Wx - η ∇f(Wx).
    """

    name = "dpsgd"
    title = "D-PSGD"

    def init(self, x_AD: Tensor, hood: Neighbourhood) -> State:
        """Momentum starts at zero."""
        return State(x_AD, torch.zeros_like(x_AD))

    def step(self, state: State, hood: Neighbourhood, batch: Batch, lr: float) -> State:
        """Lines 3 to 8."""
        x_AD, v_AD = state
        if self.gradient_at == "mixed":
            x_AD = hood.mix(x_AD, self.gamma)
        g_AD = hood.gradient(x_AD, batch)  # line 4
        d_AD, v_AD = self.descend(g_AD, x_AD, v_AD, lr)  # line 5
        x_AD = x_AD + d_AD  # line 6
        if self.gradient_at == "own":
            x_AD = hood.mix(x_AD, self.gamma)  # lines 7-8
        return State(x_AD, v_AD)
