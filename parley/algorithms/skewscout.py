"""SkewScout: communicates as rarely as the skew of the data allows.

Hsieh et al., "The non-IID data quagmire of decentralized machine learning", ICML 2020. Models
travel: when they are exchanged, the neighbours also test them on their own data and reply with the
accuracy. If the models lose little accuracy there, the agents go longer without averaging:

    ℓ = mean over agents of [accuracy at home - mean accuracy at the neighbours]
    h ← min(2 h, longest) if ℓ ≤ tolerance, else max(h / 2, 1)

Every h-th step of D-PSGD is followed by an averaging, the others are local. The paper tunes several
base algorithms in this way; here it is the interval of D-PSGD. η `lr`, γ `gamma`. Axes: A agents
hosted here, O their outgoing edges, D flat parameters.
"""

from typing import NamedTuple

import torch
from pydantic import Field
from torch import Tensor

from parley.algorithms.base import MOST, MomentumSGD, Rate, Stepped
from parley.data import Batch
from parley.neighbourhood import Neighbourhood, OnEdges


class State(NamedTuple):
    """Models, momentum, and the controller, which is the same for all agents."""

    x_AD: Tensor
    v_AD: Tensor
    interval_A: Tensor
    """h, the number of steps between averagings."""
    waited_A: Tensor
    """Steps since the last averaging."""
    lost_A: Tensor
    """ℓ, summed over the averagings since the interval was last adjusted."""
    met_A: Tensor
    """The number of those averagings."""
    rounds_A: Tensor
    """The number of all averagings."""


class SkewScout(MomentumSGD):
    """D-PSGD that averages as rarely as it can while models still do well on neighbours' data."""

    name = "skewscout"
    title = "SkewScout"
    needs_accuracy = True
    no_local_steps = "it chooses by itself how many steps to take from one averaging to the next"

    gamma: Rate = 1.0
    tolerance: float = Field(0.05, ge=0, le=1)
    """How much accuracy a model may lose on its neighbours' data."""
    longest: int = Field(16, ge=1, le=MOST)
    """The largest number of steps without averaging."""
    travels: int = Field(4, ge=1, le=MOST)
    """The number of exchanges between adjustments of the interval."""

    def init(self, x_AD: Tensor, hood: Neighbourhood, apart: bool = False) -> State:
        """At first, agents average in every step."""
        zeros_A = x_AD.new_zeros(len(x_AD))
        return State(x_AD, torch.zeros_like(x_AD), zeros_A + 1, *(4 * [zeros_A]))

    def step(self, state: State, hood: Neighbourhood, batch: Batch, lr: float) -> Stepped:
        """One local step, and averaging, travel and control if they are due."""
        x_AD, v_AD, interval_A, waited_A, lost_A, met_A, rounds_A = state
        g_AD, loss_A = hood.gradient(x_AD, batch)
        d_AD, v_AD = self.descend(g_AD, x_AD, v_AD, lr)
        x_AD, waited_A = x_AD + d_AD, waited_A + 1
        if float(waited_A[0]) >= float(interval_A[0]):
            hood = hood.on_graph(int(rounds_A[0]))  # of those that take turns, none is left out
            x_I = hood.exchange(x_AD)
            lost_A = lost_A + lost_on_travels(x_AD, x_I, hood, batch)
            x_AD = hood.gossip(x_AD, x_I, self.gamma)
            waited_A, met_A, rounds_A = torch.zeros_like(waited_A), met_A + 1, rounds_A + 1
            if float(met_A[0]) >= self.travels:
                interval_A = self.control(interval_A, hood.mean((lost_A / met_A)[:, None])[:, 0])
                lost_A, met_A = torch.zeros_like(lost_A), torch.zeros_like(met_A)
        return Stepped(State(x_AD, v_AD, interval_A, waited_A, lost_A, met_A, rounds_A), loss_A)

    def control(self, interval_A: Tensor, lost_A: Tensor) -> Tensor:
        """The next interval."""
        # Sums over workers may be rounded differently: rounding must not decide a tie.
        longer_A = lost_A <= self.tolerance + 1e-6
        return torch.where(longer_A, 2 * interval_A, interval_A / 2).clamp(1, self.longest)


def lost_on_travels(x_AD: Tensor, x_I: OnEdges, hood: Neighbourhood, batch: Batch) -> Tensor:
    """Accuracy at home minus the mean accuracy at the neighbours, for each hosted agent."""
    home_A = hood.accuracy(x_AD, batch)[:, 0]
    away_O = hood.send_back(hood.cross_accuracy(x_I, batch), kind="models")[:, 0]
    count_A = torch.bincount(hood.sender_O, minlength=len(x_AD)).clamp(min=1)
    return home_A - torch.zeros_like(home_A).index_add_(0, hood.sender_O, away_O) / count_A
