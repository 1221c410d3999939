"""LED: local exact diffusion.

Alghunaim, "Local exact-diffusion for decentralized optimization and learning", IEEE Transactions on
Automatic Control 2024.

    τ times: x ← x - η (g(x) + c)
    x⁺ = W x;   c⁺ = c + (x - x⁺) / (τ η)

c sums to zero over all agents and takes the differences between their data out of the local steps.
The paper has y = τ η c, which would be wrong after a change of η; c is in units of gradients. Where
the rate changes within a round, τη is the sum of its rates. With one local step it is exact
diffusion. W is made lazy, (1 - γ) I + γ W, as in D². τ `local_steps`, η `lr`, γ `gamma`. Axes: A
agents hosted here, D flat parameters.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from parley.algorithms.base import LocalSteps, Stepped
from parley.algorithms.lazy import LazyGossip
from parley.data import Batch
from parley.neighbourhood import Neighbourhood


class State(NamedTuple):
    """Models, what corrects their gradients, and the round so far."""

    x_AD: Tensor
    c_AD: Tensor
    rates_A: Tensor
    """The sum of the round's learning rates."""


class LED(LazyGossip):
    """Exact diffusion with local steps, at the cost of D-PSGD with local steps."""

    name = "led"
    title = "LED"

    local_steps: LocalSteps = 4

    @property
    def round_steps(self) -> int:
        """Models are one round's after τ steps."""
        return self.local_steps

    def init(self, x_AD: Tensor, hood: Neighbourhood, apart: bool = False) -> State:
        """Nothing is corrected yet."""
        return State(x_AD, torch.zeros_like(x_AD), x_AD.new_zeros(len(x_AD)))

    def step(self, state: State, hood: Neighbourhood, batch: Batch, lr: float) -> Stepped:
        """One local step, and the averaging if it is due."""
        x_AD, c_AD, rates_A = state
        g_AD, loss_A = hood.gradient(x_AD, batch)
        x_AD = x_AD - lr * (g_AD + self.weight_decay * x_AD + c_AD)
        rates_A = rates_A + lr
        if (batch.step + 1) % self.local_steps:
            return Stepped(State(x_AD, c_AD, rates_A), loss_A)
        mixed_AD = hood.mix(x_AD, self.gamma)
        c_AD = c_AD + (x_AD - mixed_AD) / rates_A[:, None]
        return Stepped(State(mixed_AD, c_AD, torch.zeros_like(rates_A)), loss_A)
