"""DMSGD: decentralized momentum SGD.

Balu et al., "Decentralized deep learning using momentum-accelerated consensus", ICASSP 2021; Yu,
Jin, Yang, ICML 2019. D-PSGD in the order "average, then step", with Nesterov momentum:

    m = β m + g(x);   x⁺ = W x - η (g + β m)

β `momentum`, η `lr`, γ `gamma`. Axes: A agents hosted here, D flat parameters.
"""

from typing import NamedTuple

import torch
from pydantic import Field
from torch import Tensor

from parley.algorithms.base import MomentumSGD
from parley.data import Batch
from parley.neighbourhood.verbs import Neighbourhood


class State(NamedTuple):
    """Models and momentum."""

    x_AD: Tensor
    v_AD: Tensor


class DMSGD(MomentumSGD):
    """Averages the models, then steps along the momentum of gradients taken before."""

    name = "dmsgd"
    title = "DMSGD"

    momentum: float = Field(0.9, ge=0, lt=1)
    """β, the momentum coefficient."""
    nesterov: bool = True
    """True: v = βv + g, the step is -η(g + βv). False: v = βv - ηg, the step is v."""

    def init(self, x_AD: Tensor, hood: Neighbourhood) -> State:
        """Momentum starts at zero."""
        return State(x_AD, torch.zeros_like(x_AD))

    def step(self, state: State, hood: Neighbourhood, batch: Batch, lr: float) -> State:
        """One iteration."""
        x_AD, v_AD = state
        mixed_AD = hood.mix(x_AD, self.gamma)
        at_AD = mixed_AD if self.gradient_at == "mixed" else x_AD
        d_AD, v_AD = self.descend(hood.gradient(at_AD, batch), at_AD, v_AD, lr)
        return State(mixed_AD + d_AD, v_AD)
