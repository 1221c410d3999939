"""D²: D-PSGD that removes the effect of differences between agents' data from its steps.

Tang et al., "D²: decentralized training over decentralized data", ICML 2018.

    x⁺ = W (2 x - x_old - η g + η_old g_old);   the first step is D-PSGD's

With W symmetric this rests where all gradients sum to zero and all models agree, however much the
gradients differ. It needs λ_min(W) > -1/3. An even ring sits exactly on that bound and a torus
is beyond it, so W is made lazy, (1 - γ) I + γ W. γ `gamma`, η `lr`; η_old belongs to g_old. Axes: A
agents hosted here, D flat parameters.
"""

from typing import NamedTuple

import torch
from pydantic import Field
from torch import Tensor

from parley.algorithms.base import MOST, Algorithm, Stepped
from parley.data import Batch
from parley.errors import BadValue
from parley.graphs import Topology
from parley.neighbourhood import Neighbourhood


class State(NamedTuple):
    """Models, what the last step added to them before the averaging, and the last ηg."""

    x_AD: Tensor
    old_AD: Tensor
    """x of the previous step."""
    s_AD: Tensor
    """η g of the previous step."""


class D2(Algorithm):
    """D-PSGD without the bias caused by heterogeneous data, at the same cost."""

    name = "d2"
    title = "D²"
    needs = "symmetric"
    static = True
    no_local_steps = "it takes single gradients out of the next step; led is d2 with local steps"

    gamma: float = Field(0.5, gt=0, le=1)
    """γ, the averaging rate. 0.5 works with every symmetric W; some graphs allow more."""
    weight_decay: float = Field(0.0, ge=0, le=MOST)
    """λ: adds λx to the gradient."""

    def check(self, topology: Topology) -> None:
        """Also refuses a γ for which the smallest eigenvalue is not above -1/3."""
        super().check(topology)
        check_rate(self.name, self.gamma, topology)

    def init(self, x_AD: Tensor, hood: Neighbourhood, apart: bool = False) -> State:
        """As if the agents had been at rest with no gradient, so that the first step is plain."""
        return State(x_AD, x_AD, torch.zeros_like(x_AD))

    def step(self, state: State, hood: Neighbourhood, batch: Batch, lr: float) -> Stepped:
        """One iteration."""
        x_AD, old_AD, s_old_AD = state
        g_AD, loss_A = hood.gradient(x_AD, batch)
        s_AD = lr * (g_AD + self.weight_decay * x_AD)
        new_AD = hood.mix(2 * x_AD - old_AD - s_AD + s_old_AD, self.gamma)
        return Stepped(State(new_AD, x_AD, s_AD), loss_A)


def check_rate(name: str, gamma: float, topology: Topology) -> None:
    """Refuses an averaging rate at which (1 - γ) I + γ W has an eigenvalue of -1/3 or less."""
    most = (4 / 3) / (1 - topology.lambda_min) if topology.lambda_min < 1 else float("inf")
    if gamma >= most - 1e-9:
        least = 1 - gamma * (1 - topology.lambda_min)
        because = f"{name} needs (1 - γ) I + γ W to have eigenvalues above -1/3, here {least:.4g}"
        raise BadValue("gamma", gamma, f"below {most:.4g} on {topology.name}", because)
