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

from parley.algorithms.base import Memory
from parley.algorithms.ngc import NGC, Clustering
from parley.data import Batch
from parley.neighbourhood.verbs import Flow, Neighbourhood
from parley.wire.codec import ScaledSign


class State(NamedTuple):
    """Models, momentum, and what compression has held back so far."""

    x_AD: Tensor
    v_AD: Tensor
    e_AD: Tensor
    """Of the self-gradients, e^ii."""
    e_ID: Tensor
    """Of the cross-gradients, e^ji."""


class CompressedClustering(Clustering):
    """CompNGC's gradient rule."""

    scope: Literal["whole", "tensor"] = "whole"
    """What is handled at once: the whole gradient as printed, or as run each parameter tensor (with
    a compression scale of its own, and for CGA a projection of its own)."""

    def start(self, x_AD: Tensor, hood: Neighbourhood) -> Memory:
        """Errors start at zero."""
        return {"e_AD": torch.zeros_like(x_AD), "e_ID": hood.zeros_I()}

    def gradient(
        self, at_AD: Tensor, x_I: Flow, hood: Neighbourhood, batch: Batch, memory: Memory
    ) -> Tensor:
        """g̃^i of compressed gradients; what compression holds back is kept in `memory`."""
        codec = ScaledSign(hood.sizes if self.scope == "tensor" else (sum(hood.sizes),))
        p_AD = hood.gradient(at_AD, batch) + memory["e_AD"]  # lines 4-5
        δ_AD = codec.round_trip(p_AD)  # line 6
        memory["e_AD"] = p_AD - δ_AD  # line 7
        g_I = hood.cross_gradient(x_I, batch)  # lines 9-10
        δ_I = hood.compress(g_I, memory["e_ID"], codec)  # lines 11-13
        return hood.cluster(δ_AD, δ_I, self.alpha)  # lines 14-18


class CompNGC(CompressedClustering, NGC):
    """NGC with error-compensated 1-bit self- and cross-gradients."""

    name = "compngc"
    title = "CompNGC"

    def init(self, x_AD: Tensor, hood: Neighbourhood) -> State:  # type: ignore[override]
        """Momentum and errors start at zero."""
        return State(x_AD, torch.zeros_like(x_AD), torch.zeros_like(x_AD), hood.zeros_I())

    def step(self, state: State, hood: Neighbourhood, batch: Batch, lr: float) -> State:  # type: ignore[override]
        """Lines 3 to 21."""
        x_AD, v_AD, e_AD, e_ID = state
        x_I = hood.exchange(x_AD)  # line 8
        at_AD = x_AD if self.gradient_at == "own" else self.mixed(x_AD, x_I, hood)
        memory = {"e_AD": e_AD, "e_ID": e_ID}
        g_AD = self.gradient(at_AD, x_I, hood, batch, memory)  # lines 4-7 and 9-18
        d_AD, v_AD = self.descend(g_AD, at_AD, v_AD, lr)  # line 19
        mixed_AD = self.mixed(x_AD, x_I, hood) if self.gradient_at == "own" else at_AD
        return State(mixed_AD + d_AD, v_AD, **memory)  # lines 20-21
