"""Exact diffusion: adapt, correct, combine.

Yuan, Ying, Zhao, Sayed, "Exact diffusion for distributed optimization and learning", IEEE
Transactions on Signal Processing 2019.

    ψ⁺ = x - η g(x);   φ = ψ⁺ + x - ψ;   x⁺ = W φ;   ψ starts at x

The correction x - ψ undoes what the data of an agent alone pull its model away by. Written out, the
sequence of models is that of D². W is made lazy, (1 - γ) I + γ W; the paper has γ = ½. η `lr`, γ
`gamma`. Axes: A agents hosted here, D flat parameters.
"""

from typing import NamedTuple

from pydantic import Field
from torch import Tensor

from parley.algorithms.base import MOST, Algorithm, Stepped
from parley.algorithms.d2 import check_rate
from parley.data import Batch
from parley.graphs import Topology
from parley.neighbourhood import Neighbourhood


class State(NamedTuple):
    """Models, and where their last steps led before correction."""

    x_AD: Tensor
    ψ_AD: Tensor


class ExactDiffusion(Algorithm):
    """D-PSGD with a correction that makes it exact, at the same cost."""

    name = "exact-diffusion"
    title = "Exact diffusion"
    needs = "symmetric"
    static = True
    no_local_steps = "its correction belongs to single steps; led is it with local steps"

    gamma: float = Field(0.5, gt=0, le=1)
    """γ, the averaging rate. At 0.5 every symmetric W will do; some graphs allow more."""
    weight_decay: float = Field(0.0, ge=0, le=MOST)
    """λ: adds λx to the gradient."""

    def check(self, topology: Topology) -> None:
        """Also refuses a γ that the graph does not allow."""
        super().check(topology)
        check_rate(self.name, self.gamma, topology)

    def init(self, x_AD: Tensor, hood: Neighbourhood, apart: bool = False) -> State:
        """The first step has nothing to correct."""
        return State(x_AD, x_AD)

    def step(self, state: State, hood: Neighbourhood, batch: Batch, lr: float) -> Stepped:
        """One iteration."""
        x_AD, ψ_AD = state
        g_AD, loss_A = hood.gradient(x_AD, batch)
        new_AD = x_AD - lr * (g_AD + self.weight_decay * x_AD)
        return Stepped(State(hood.mix(new_AD + x_AD - ψ_AD, self.gamma), new_AD), loss_A)
