"""CompCGA: CGA whose second round is one bit an entry.

Esfandiari et al., "Cross-Gradient Aggregation for Decentralized Learning from Non-IID Data",
ICML 2021, with the error feedback of Karimireddy et al., ICML 2019, on self- and cross-gradients:

    p = g + e;   δ = (‖p‖₁ / d) sgn(p);   e⁺ = p - δ;   g* = CGA's projection of the δ

η `lr`, β `momentum`, γ `gamma`. Axes: A agents hosted here, I their incoming edges, O their
outgoing edges, D flat parameters.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from parley.algorithms.base import Memory
from parley.algorithms.cga import CGA, Projection
from parley.data import Batch
from parley.neighbourhood.verbs import Flow, Neighbourhood
from parley.wire.codec import ScaledSign


class State(NamedTuple):
    """Models, momentum, and what compression has held back so far."""

    x_AD: Tensor
    v_AD: Tensor
    e_AD: Tensor
    """Of the self-gradients."""
    e_ID: Tensor
    """Of the cross-gradients."""


class CompressedProjection(Projection):
    """CompCGA's gradient rule."""

    def start(self, x_AD: Tensor, hood: Neighbourhood) -> Memory:
        """Errors start at zero."""
        return {"e_AD": torch.zeros_like(x_AD), "e_ID": hood.zeros_I()}

    def gradient(
        self, at_AD: Tensor, x_I: Flow, hood: Neighbourhood, batch: Batch, memory: Memory
    ) -> Tensor:
        """g* of compressed gradients; what compression holds back is kept in `memory`."""
        codec = ScaledSign(hood.sizes if self.scope == "tensor" else (sum(hood.sizes),))
        p_AD = hood.gradient(at_AD, batch) + memory["e_AD"]
        δ_AD = codec.round_trip(p_AD)
        memory["e_AD"] = p_AD - δ_AD
        δ_I = hood.compress(hood.cross_gradient(x_I, batch), memory["e_ID"], codec)
        return self.project(δ_AD, hood.send_back(δ_I), hood)


class CompCGA(CompressedProjection, CGA):
    """CGA with error-compensated 1-bit self- and cross-gradients.

    `scope` is what is projected at once and also what shares one scale.
    """

    name = "compcga"
    title = "CompCGA"

    def init(self, x_AD: Tensor, hood: Neighbourhood) -> State:  # type: ignore[override]
        """Momentum and errors start at zero."""
        return State(x_AD, torch.zeros_like(x_AD), torch.zeros_like(x_AD), hood.zeros_I())

    def step(self, state: State, hood: Neighbourhood, batch: Batch, lr: float) -> State:  # type: ignore[override]
        """One iteration."""
        x_AD, v_AD, e_AD, e_ID = state
        x_I = hood.exchange(x_AD)
        at_AD = x_AD if self.gradient_at == "own" else self.mixed(x_AD, x_I, hood)
        memory = {"e_AD": e_AD, "e_ID": e_ID}
        g_AD = self.gradient(at_AD, x_I, hood, batch, memory)
        d_AD, v_AD = self.descend(g_AD, at_AD, v_AD, lr)
        mixed_AD = self.mixed(x_AD, x_I, hood) if self.gradient_at == "own" else at_AD
        return State(mixed_AD + d_AD, v_AD, **memory)
