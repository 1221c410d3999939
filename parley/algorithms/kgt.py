"""K-GT: gradient tracking with local steps.

Liu, Lin, Koloskova, Stich, "Decentralized gradient tracking with local steps", Optimization Methods
and Software 2024.

    τ times: x ← x - η (g(x) + c)
    z = (x_start - x) / (τ η);   c⁺ = c - z + W z;   x⁺ = W (x_start - η_o τ η z)

c is how far an agent's mean gradient of a round is from the neighbourhood's; it starts at zero and
sums to zero over all agents. With one local step, z is gradient tracking's y. Where the rate
changes within a round, τη is the sum of its rates. τ `local_steps`, η `lr`, η_o `outer_lr`, γ
`gamma`. Axes: A agents hosted here, D flat parameters.
"""

from typing import NamedTuple

import torch
from pydantic import Field
from torch import Tensor

from parley.algorithms.base import MOST, Algorithm, LocalSteps, Rate, Stepped
from parley.data import Batch
from parley.neighbourhood import Neighbourhood


class State(NamedTuple):
    """Models, their correction, and the round so far."""

    x_AD: Tensor
    start_AD: Tensor
    """x at the start of the round."""
    c_AD: Tensor
    rates_A: Tensor
    """The sum of the round's learning rates."""


class KGT(Algorithm):
    """Local steps along gradients corrected to the mean of all agents'."""

    name = "kgt"
    title = "K-GT"

    local_steps: LocalSteps = 4
    outer_lr: float = Field(1.0, gt=0, le=MOST)
    """η_o, how much of a round's change is kept."""
    gamma: Rate = 1.0
    weight_decay: float = Field(0.0, ge=0, le=MOST)
    """λ: adds λx to the gradient."""

    @property
    def round_steps(self) -> int:
        """Models are one round's after τ steps."""
        return self.local_steps

    def init(self, x_AD: Tensor, hood: Neighbourhood, apart: bool = False) -> State:
        """Nothing is corrected yet."""
        return State(x_AD, x_AD, torch.zeros_like(x_AD), x_AD.new_zeros(len(x_AD)))

    def step(self, state: State, hood: Neighbourhood, batch: Batch, lr: float) -> Stepped:
        """One local step, and the averaging if it is due."""
        x_AD, start_AD, c_AD, rates_A = state
        g_AD, loss_A = hood.gradient(x_AD, batch)
        x_AD = x_AD - lr * (g_AD + self.weight_decay * x_AD + c_AD)
        rates_A = rates_A + lr
        if (batch.step + 1) % self.local_steps:
            return Stepped(State(x_AD, start_AD, c_AD, rates_A), loss_A)
        z_AD = (start_AD - x_AD) / rates_A[:, None]
        c_AD = c_AD - z_AD + hood.mix(z_AD, self.gamma, kind="cross_gradients")
        x_AD = hood.mix(torch.lerp(start_AD, x_AD, self.outer_lr), self.gamma)
        return Stepped(State(x_AD, x_AD, c_AD, torch.zeros_like(rates_A)), loss_A)
