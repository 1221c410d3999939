"""Gradient tracking: every agent follows the mean of all agents' gradients.

Di Lorenzo, Scutari, "NEXT: in-network nonconvex optimization", 2016; Nedić, Olshevsky, Shi,
"Achieving geometric convergence for distributed optimization over time-varying graphs", 2017; with
stochastic gradients Pu, Nedić, 2021.

    y = W y_old + g - g_old;   x⁺ = W (x - η y)

y starts at zero, so that the first one is the first gradient, and the mean of all y is that of all
g in every step. η `lr`, γ `gamma`. Axes: A agents hosted here, D flat parameters.
"""

from typing import ClassVar

import torch
from torch import Tensor

from parley.algorithms.base import Memory, Part
from parley.algorithms.composed import SGD, Composed, Gossip, Own, Slot
from parley.neighbourhood.verbs import Neighbourhood


class Tracking(Part):
    """A correction of gradients; y is averaged by the same rule as the models."""

    slots: ClassVar[tuple[Slot, ...]] = ("x", "y")

    def start(self, x_AD: Tensor, hood: Neighbourhood) -> Memory:
        """Nothing is tracked yet."""
        return {"y_AD": torch.zeros_like(x_AD), "g_AD": torch.zeros_like(x_AD)}

    def track(self, g_AD: Tensor, hood: Neighbourhood, memory: Memory) -> Tensor:
        """y = W y_old + g - g_old."""
        mixed_AD, _ = self.average(memory["y_AD"], hood, memory, "y")  # type: ignore[attr-defined]
        y_AD: Tensor = mixed_AD + g_AD - memory["g_AD"]
        self.share(y_AD, hood, memory, "y")  # type: ignore[attr-defined]
        memory["y_AD"], memory["g_AD"] = y_AD, g_AD
        return y_AD


class GradientTracking(Tracking, SGD, Gossip, Own, Composed):
    """Steps along an estimate of all agents' mean gradient, which is sent beside the models."""

    name = "tracking"
    title = "Gradient tracking"
