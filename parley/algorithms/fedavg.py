"""FedAvg: local steps, then averaging by a server.

McMahan et al., "Communication-efficient learning of deep networks from decentralized data",
AISTATS 2017, with all agents in every round and equal weights.

    τ times: x^i ← x^i - η g^i;   then x⁺ = (1/n) Σ_i x^i at every agent

τ `local_steps`, η `lr`. Axes: A agents hosted here, D flat parameters.
"""

from pydantic import Field

from parley.algorithms.base import MOST, MomentumSGD, Moving, Stepped
from parley.data import Batch
from parley.graphs import Topology
from parley.neighbourhood import Neighbourhood


class FedAvg(MomentumSGD):
    """Local steps on each agent's own data, then a server averages all models."""

    name = "fedavg"
    title = "FedAvg"
    needs = "row-stochastic"

    local_steps: int = Field(5, ge=1, le=MOST)
    """τ, the number of local steps between averagings."""

    def check(self, topology: Topology) -> None:
        """Accepts any graph, since it is not used."""

    def averages(self, seed: int, step: int) -> bool:
        """After τ steps; records do not wait for it."""
        return (step + 1) % self.local_steps == 0

    def step(self, state: Moving, hood: Neighbourhood, batch: Batch, lr: float) -> Stepped:
        """One local step, and the averaging if it is due."""
        x_AD, v_AD = state
        g_AD, loss_A = hood.gradient(x_AD, batch)
        d_AD, v_AD = self.descend(g_AD, x_AD, v_AD, lr)
        x_AD = x_AD + d_AD
        if self.averages(hood.seed, batch.step):
            x_AD = hood.mean(x_AD)
        return Stepped(Moving(x_AD, v_AD), loss_A)
