"""SAM: sharpness-aware minimization.

Foret et al., "Sharpness-aware minimization for efficiently improving generalization", ICLR 2021.

    g = ∇f(x + ρ ∇f(x) / ‖∇f(x)‖)

The gradient is taken where the loss is higher, a distance ρ uphill, on the same batch. A second
gradient, and no message. ρ `rho`. Axes: A agents hosted here, I their incoming edges, D flat
parameters.
"""

from typing import Any

from pydantic import Field
from torch import Tensor

from parley.algorithms.base import MOST
from parley.algorithms.parts import Found, OwnGradientRule
from parley.data import Batch
from parley.neighbourhood import Neighbourhood


class SharpnessAware(OwnGradientRule):
    """SAM's gradient rule."""

    word = "sam"
    title = "SAM"
    alone = False
    rho: float = Field(0.05, gt=0, le=MOST)
    """ρ, how far uphill the second gradient is taken."""

    def apply(self, state: Any, at_AD: Tensor, hood: Neighbourhood, batch: Batch) -> Found:
        """The loss is that of the model itself."""
        g_AD, loss_A = hood.gradient(at_AD, batch)
        size_A1 = g_AD.norm(dim=1, keepdim=True).clamp(min=1e-12)
        g_AD, _ = hood.gradient(at_AD + self.rho * (g_AD / size_A1), batch)
        return Found(g_AD, loss_A, state)
