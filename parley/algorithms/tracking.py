"""Gradient tracking: every agent follows the mean of all agents' gradients.

Di Lorenzo, Scutari, "NEXT: in-network nonconvex optimization", 2016; Nedić, Olshevsky, Shi,
"Achieving geometric convergence for distributed optimization over time-varying graphs", 2017; with
stochastic gradients Pu, Nedić, 2021.

    y = W y_old + g - g_old;   x⁺ = W (x - η y)

y starts at zero, so that the first one is the first gradient, and the mean of all y is that of all
g in every step. η `lr`, γ `gamma`. Axes: A agents hosted here, D flat parameters.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from parley.algorithms.parts import TRACKED, AveragingRule, Correction, GossipOptions, SGDOptions
from parley.algorithms.recipe import Combination
from parley.neighbourhood import Neighbourhood


class Tracked(NamedTuple):
    """The estimate, and what the next one needs."""

    y_AD: Tensor
    g_AD: Tensor
    """The gradient of the previous step."""
    averaging: Any
    """The state of the averaging rule for y, separate from that for the models."""


class Tracking(Correction):
    """A correction of gradients; y is averaged by the same rule as the models."""

    word = "tracking"
    title = "Tracking"

    def init(self, x_AD: Tensor, hood: Neighbourhood, averaging: AveragingRule) -> Tracked:
        """Nothing is tracked yet."""
        zeros_AD = torch.zeros_like(x_AD)
        kept = averaging.init(zeros_AD, hood, apart=False, edges=False)
        return Tracked(zeros_AD, zeros_AD, kept)

    def apply(
        self, state: Tracked, g_AD: Tensor, hood: Neighbourhood, averaging: AveragingRule
    ) -> tuple[Tensor, Tracked]:
        """y = W y_old + g - g_old."""
        y_AD, g_old_AD, kept = state
        sent, kept = averaging.send(kept, y_AD, hood, TRACKED)
        mixed_AD, kept = averaging.mix(kept, y_AD, sent, hood)
        y_AD = mixed_AD + g_AD - g_old_AD
        kept = averaging.share(kept, y_AD, hood, TRACKED)
        return y_AD, Tracked(y_AD, g_AD, kept)


class GradientTracking(GossipOptions, SGDOptions, Combination):
    """Steps along an estimate of all agents' mean gradient, which is sent along with the models."""

    name = "tracking"
    title = "Gradient tracking"
    made_of = (Tracking,)
