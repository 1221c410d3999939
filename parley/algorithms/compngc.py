"""CompNGC: NGC whose second round is one bit an entry.

Aketi, Kodge, Roy, "Neighborhood Gradient Clustering", the algorithm "Compressed Neighborhood
Gradient Clustering" in its appendix, whose line numbers are given; error feedback after
Karimireddy et al., ICML 2019.

    p = g + e;   δ = (‖p‖₁ / d) sgn(p);   e⁺ = p - δ;   g̃^i = Σ_j [(1 - α) w_ji δ^ji + α w_ij δ^ij]

α `alpha`, η `lr`, β `momentum`, γ `gamma`. Axes: A agents hosted here, I their incoming edges,
D flat parameters.
"""

from typing import Literal, NamedTuple

import torch
from torch import Tensor

from parley.algorithms.ngc import NGC
from parley.codec import ScaledSign
from parley.data import Batch
from parley.neighbourhood import Neighbourhood


class State(NamedTuple):
    """Models, momentum, and what compression has held back so far."""

    x_AD: Tensor
    v_AD: Tensor
    e_AD: Tensor
    """Of the self-gradients, e^ii."""
    e_ID: Tensor
    """Of the cross-gradients, e^ji."""


class CompNGC(NGC):
    """NGC with error-compensated 1-bit self- and cross-gradients."""

    name = "compngc"
    title = "CompNGC"

    scope: Literal["whole", "tensor"] = "whole"
    """What is handled at once: the whole gradient as printed, or as run each parameter tensor (with
    a compression scale of its own, and for CGA a projection of its own)."""

    def init(self, x_AD: Tensor, hood: Neighbourhood) -> State:  # type: ignore[override]
        """Momentum and errors start at zero."""
        return State(x_AD, torch.zeros_like(x_AD), torch.zeros_like(x_AD), hood.zeros_I())

    def step(self, state: State, hood: Neighbourhood, batch: Batch, lr: float) -> State:  # type: ignore[override]
        """Lines 3 to 21."""
        x_AD, v_AD, e_AD, e_ID = state
        codec = ScaledSign(hood.sizes if self.scope == "tensor" else (sum(hood.sizes),))
        x_I = hood.exchange(x_AD)  # line 8
        mixed_AD = torch.lerp(x_AD, hood.average(x_AD, x_I), self.gamma)
        at_AD = mixed_AD if self.gradient_at == "mixed" else x_AD
        p_AD = hood.gradient(at_AD, batch) + e_AD  # lines 4-5
        δ_AD = codec.round_trip(p_AD)  # line 6
        e_AD = p_AD - δ_AD  # line 7
        g_I = hood.cross_gradient(x_I, batch)  # lines 9-10
        δ_I = hood.compress(g_I, e_ID, codec)  # lines 11-13
        g_AD = hood.cluster(δ_AD, δ_I, self.alpha)  # lines 14-18
        d_AD, v_AD = self.descend(g_AD, at_AD, v_AD, lr)  # line 19
        return State(mixed_AD + d_AD, v_AD, e_AD, e_ID)  # lines 20-21
