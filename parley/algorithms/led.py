"""LED: local exact diffusion.

Alghunaim, "Local exact-diffusion for decentralized optimization and learning", IEEE Transactions on
Automatic Control 2024.

    τ times: x ← x - η g(x) - y / τ
    x⁺ = W x;   y⁺ = y + x - x⁺

y sums to zero over all agents and takes the differences between their data out of the local steps.
With one local step it is exact diffusion. W is made lazy, (1 - γ) I + γ W, as in D². τ
`local_steps`, η `lr`, γ `gamma`. Axes: A agents hosted here, D flat parameters.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from parley.algorithms.base import LocalSteps, Stepped
from parley.algorithms.lazy import LazyGossip
from parley.data import Batch
from parley.neighbourhood import Neighbourhood


class State(NamedTuple):
    """Models, and what is taken out of their steps."""

    x_AD: Tensor
    y_AD: Tensor


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
        """Nothing is taken out yet."""
        return State(x_AD, torch.zeros_like(x_AD))

    def step(self, state: State, hood: Neighbourhood, batch: Batch, lr: float) -> Stepped:
        """One local step, and the averaging if it is due."""
        x_AD, y_AD = state
        g_AD, loss_A = hood.gradient(x_AD, batch)
        x_AD = x_AD - lr * (g_AD + self.weight_decay * x_AD) - y_AD / self.local_steps
        if (batch.step + 1) % self.local_steps == 0:
            mixed_AD = hood.mix(x_AD, self.gamma)
            x_AD, y_AD = mixed_AD, y_AD + (x_AD - mixed_AD)
        return Stepped(State(x_AD, y_AD), loss_A)
