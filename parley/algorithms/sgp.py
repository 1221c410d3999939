"""SGP: stochastic gradient push.

Assran et al., "Stochastic gradient push for distributed deep learning", ICML 2019, on the push-sum
protocol of Kempe, Dobra, Gehrke, FOCS 2003. On a directed graph an agent can share out what it has,
so that nothing is lost (columns of W sum to 1), but not see to it that all receive the same. So it
shares out a weight as well, and divides by what it receives:

    x ← W (x - η g(z));   w ← W w;   z = x / w

z is the model; x and w start at z and 1. η `lr`, γ `gamma`. Axes: A agents hosted here, D flat
parameters.
"""

from typing import ClassVar

import torch
from torch import Tensor

from parley.algorithms.base import Memory, Part
from parley.algorithms.composed import SGD, Composed, Gossip, Own
from parley.graphs import Property
from parley.neighbourhood.verbs import Flow, Neighbourhood


class PushSum(Part):
    """De-biasing: the averaging rule is applied to w z, and w is averaged along with it."""

    needs: ClassVar[Property] = "column-stochastic"

    def start(self, x_AD: Tensor, hood: Neighbourhood) -> Memory:
        """Everyone has a weight of 1."""
        return {"w_A1": x_AD.new_ones(len(x_AD), 1)}

    def weigh(self, x_AD: Tensor, hood: Neighbourhood, memory: Memory) -> Tensor:
        """w z; and w is averaged, at the same rate as that will be."""
        w_A1 = memory["w_A1"]
        _, w_I = hood.publish(w_A1)
        memory["w_A1"] = torch.lerp(w_A1, hood.average(w_A1, w_I), self.gamma)  # type: ignore[attr-defined]
        if self.looks_around:  # type: ignore[attr-defined]
            memory["w_I1"] = torch.cat([w_A1[:0], *w_I])
        return w_A1 * x_AD

    def unweigh(self, n_AD: Tensor, memory: Memory) -> Tensor:
        """z = x / w."""
        return n_AD / memory["w_A1"]

    def unweigh_flow(self, n_I: Flow, hood: Neighbourhood, memory: Memory) -> Flow:
        """The neighbours' z."""
        return hood.divided(n_I, memory["w_I1"])


class SGP(PushSum, SGD, Gossip, Own, Composed):
    """D-PSGD for directed graphs: weights that travel along with the models undo the bias."""

    name = "sgp"
    title = "SGP"
    needs = "column-stochastic"
