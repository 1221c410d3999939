"""GUT: global update tracking.

Aketi, Hashemi, Roy, "Global update tracking: a decentralized learning algorithm for heterogeneous
data", NeurIPS 2023. The whole update of an agent, averaging included, is tracked, and the
neighbours' last updates are read off their models, so nothing but models is sent:

    δ = g - (γ / η) Σ_j (w_ij - I_ij) x^j
    y = δ - (μ / η_old) [Σ_j w_ij (x^j - x_old^j) + b Σ_j (w_ij - I_ij) x_old^j] - μ δ_old
    x⁺ = x - η (momentum of y);   b = 1 + β, and + β² with Nesterov momentum

β `momentum`, μ `mu`, η `lr`, γ `gamma`. Axes: A agents hosted here, D flat parameters.

The mean of all models has the momentum β + μ, because y follows whole updates, momentum included:
on average over agents, the step s = y + βv becomes (1 + β) μ s + β² v + ..., and v becomes μ s + βv
(with Nesterov momentum; without, s = v = (β + μ) v + ...). Both are stable for β + μ < 1 alone.
"""

from typing import NamedTuple, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor

from parley.algorithms.base import GradientAt, MomentumSGD, Rate, Stepped
from parley.data import Batch
from parley.errors import BadValue
from parley.neighbourhood import Neighbourhood


class State(NamedTuple):
    """Models, momentum, and the previous step."""

    x_AD: Tensor
    v_AD: Tensor
    δ_AD: Tensor
    """δ of the previous step."""
    old_AD: Tensor
    """x of the previous step."""
    heard_AD: Tensor
    """Σ_j w_ij x^j of the previous step."""
    lr_A: Tensor
    """η of the previous step."""


class GUT(MomentumSGD):
    """Tracks the mean of all agents' updates, at the cost of D-PSGD."""

    name = "gut"
    title = "GUT"
    static = True
    no_local_steps = "what it tracks are whole steps, averaging included"

    gamma: Rate = 1.0
    gradient_at: GradientAt = "own"
    mu: float = Field(0.1, ge=0, lt=1)
    """μ, the weight of the tracked part, below 1 - β. If it is not given, 0.1 · (1 - β)."""

    @model_validator(mode="after")
    def _mean_is_stable(self) -> Self:
        """Refuses a momentum of the mean, β + μ, of 1 or more."""
        if "mu" not in self.model_fields_set:  # stays a default, to follow β if that is replaced
            self.__dict__["mu"] = round(0.1 * (1 - self.momentum), 12)
        if self.mu + self.momentum >= 1:
            because = f"with a momentum of {self.momentum:g} the mean of all models runs away"
            raise BadValue("mu", self.mu, f"a number below {1 - self.momentum:g}", because)
        return self

    def init(self, x_AD: Tensor, hood: Neighbourhood, apart: bool = False) -> State:
        """As if all agents had been at rest: they start from the same model."""
        zeros_AD, ones_A = torch.zeros_like(x_AD), x_AD.new_ones(len(x_AD))
        return State(x_AD, zeros_AD, zeros_AD, x_AD, x_AD, ones_A)

    def step(self, state: State, hood: Neighbourhood, batch: Batch, lr: float) -> Stepped:
        """One iteration."""
        x_AD, v_AD, δ_old_AD, old_AD, heard_old_AD, lr_A = state
        heard_AD = hood.average(x_AD, hood.exchange(x_AD))
        gossip_AD = self.gamma * (heard_AD - x_AD)
        at_AD = x_AD + gossip_AD if self.gradient_at == "mixed" else x_AD
        g_AD, loss_A = hood.gradient(at_AD, batch)
        δ_AD = g_AD - gossip_AD / lr
        b = 1 + self.momentum + self.momentum**2 * self.nesterov
        moved_AD = heard_AD - heard_old_AD + b * (heard_old_AD - old_AD)
        y_AD = δ_AD - self.mu * (moved_AD / lr_A[:, None] + δ_old_AD)
        d_AD, v_AD = self.descend(y_AD, at_AD, v_AD, lr)
        new = State(x_AD + d_AD, v_AD, δ_AD, x_AD, heard_AD, torch.full_like(lr_A, lr))
        return Stepped(new, loss_A)
