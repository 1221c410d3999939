"""SGP: stochastic gradient push.

Assran et al., "Stochastic gradient push for distributed deep learning", ICML 2019, on the push-sum
protocol of Kempe, Dobra, Gehrke, FOCS 2003. On a directed graph an agent can split what it has so
that nothing is lost (columns of W sum to 1), but cannot ensure that all agents receive the same
total. So it splits a weight as well, and divides by the weight it receives:

    x ← W (x - η g(z));   w ← W w;   z = x / w

z is the model; x and w start at z and 1. η `lr`, γ `gamma`. Axes: A agents hosted here, I their
incoming edges, D flat parameters.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from parley.algorithms.base import LocalSteps
from parley.algorithms.parts import Debias, GossipOptions, SGDOptions, Weighted
from parley.algorithms.recipe import Combination
from parley.neighbourhood import Neighbourhood


class Weights(NamedTuple):
    """The weight by which each agent's value is divided."""

    w_A1: Tensor


class PushSum(Debias):
    """De-biasing: the averaging rule is applied to w z, and w is averaged along with it."""

    word = "push-sum"
    title = "Push-sum"
    needs = "column-stochastic"

    def init(self, x_AD: Tensor) -> Weights:
        """Every agent has weight 1."""
        return Weights(x_AD.new_ones(len(x_AD), 1))

    def weigh(
        self, state: Weights, x_AD: Tensor, hood: Neighbourhood, rate: float, edges: bool
    ) -> Weighted:
        """w z; w itself is averaged at the same rate."""
        w_A1 = state.w_A1
        w_I = hood.exchange(w_A1)
        new_A1 = torch.lerp(w_A1, hood.average(w_A1, w_I), rate)
        return Weighted(w_A1 * x_AD, hood.collect(w_I) if edges else None, Weights(new_A1))

    def unweigh(self, state: Weights, n_AD: Tensor) -> Tensor:
        """z = x / w."""
        return n_AD / state.w_A1

    def local(self, state: Weights, x_AD: Tensor, d_AD: Tensor) -> Tensor:
        """The step is of w z; w stays as it is."""
        return x_AD + d_AD / state.w_A1


class SGP(GossipOptions, SGDOptions, Combination):
    """D-PSGD for directed graphs: weights that travel along with the models undo the bias."""

    name = "sgp"
    title = "SGP"
    made_of = (PushSum,)

    local_steps: LocalSteps = 1
