"""ProxSkip, also known as Scaffnew, on a graph: averaging that is skipped at random.

Mishchenko, Malinovsky, Stich, Richtárik, "ProxSkip: Yes! Local gradient steps provably lead to
communication acceleration! Finally!", ICML 2022, in its decentralized form.

    x̂ = x - η (g(x) - h)
    with probability p = 1 / τ:   x⁺ = W x̂;   h⁺ = h + (p / η) (x⁺ - x̂)
    otherwise:                    x⁺ = x̂;    h⁺ = h

h sums to zero over all agents and takes the place of what an agent's gradient differs from the mean
by. All agents toss the same coin, drawn from the seed and the step. W is made lazy,
(1 - γ) I + γ W. With p = 1 it is exact diffusion. τ `local_steps`, η `lr`, γ `gamma`. Axes: A
agents hosted here, D flat parameters.
"""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from parley.algorithms.base import LocalSteps, Stepped
from parley.algorithms.lazy import LazyGossip
from parley.data import Batch
from parley.neighbourhood import Neighbourhood


class State(NamedTuple):
    """Models, and what takes the differences between agents out of their gradients."""

    x_AD: Tensor
    h_AD: Tensor


class ProxSkip(LazyGossip):
    """Exact local steps, with an averaging after each of them only now and then."""

    name = "proxskip"
    title = "ProxSkip"

    local_steps: LocalSteps = 4

    def init(self, x_AD: Tensor, hood: Neighbourhood, apart: bool = False) -> State:
        """Nothing is taken out yet."""
        return State(x_AD, torch.zeros_like(x_AD))

    def step(self, state: State, hood: Neighbourhood, batch: Batch, lr: float) -> Stepped:
        """One local step, and the averaging if the coin says so."""
        x_AD, h_AD = state
        g_AD, loss_A = hood.gradient(x_AD, batch)
        x_AD = x_AD - lr * (g_AD + self.weight_decay * x_AD - h_AD)
        if self.averages(hood.seed, batch.step):
            mixed_AD = hood.mix(x_AD, self.gamma)
            h_AD = h_AD + (mixed_AD - x_AD) / (self.local_steps * lr)
            x_AD = mixed_AD
        return Stepped(State(x_AD, h_AD), loss_A)

    def averages(self, seed: int, step: int) -> bool:
        """Whether all agents average after this step.

        >>> [step for step in range(12) if ProxSkip(local_steps=3).averages(0, step)]
        [0, 1, 6, 7, 9]
        """
        coin = np.random.default_rng(np.random.SeedSequence([seed, 7, step]))
        return bool(coin.random() < 1 / self.local_steps)
