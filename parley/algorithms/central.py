"""Central SGD, as on a server that sees all gradients: the baseline without a graph.

    x⁺ = x - η (1/n) Σ_i g^i,   the same at every agent

Momentum follows `momentum` and `nesterov`. η `lr`. Axes: A agents hosted here, D flat
parameters.
"""

from typing import Any

from torch import Tensor

from parley.algorithms.base import MomentumSGD, Moving, Stepped
from parley.data import Batch
from parley.graphs import Topology
from parley.neighbourhood import Neighbourhood


class Central(MomentumSGD):
    """All agents' gradients are averaged in every step, as if by a server."""

    name = "central"
    title = "Central SGD"
    needs = "row-stochastic"
    no_local_steps = "it averages gradients in every step; fedavg averages after local steps"

    def check(self, topology: Topology) -> None:
        """Accepts any graph, since it is not used."""

    def init(self, x_AD: Tensor, hood: Neighbourhood, apart: bool = False) -> Any:
        """One model for all: those that differ are averaged first; they would stay apart."""
        return super().init(hood.mean(x_AD) if apart else x_AD, hood)

    def step(self, state: Moving, hood: Neighbourhood, batch: Batch, lr: float) -> Stepped:
        """One iteration."""
        x_AD, v_AD = state
        g_AD, loss_A = hood.gradient(x_AD, batch)
        g_AD = hood.mean(g_AD, kind="cross_gradients")
        d_AD, v_AD = self.descend(g_AD, x_AD, v_AD, lr)
        return Stepped(Moving(x_AD + d_AD, v_AD), loss_A)
