"""CompNGC: NGC whose second round is one bit per entry.

Aketi, Kodge, Roy, "Neighborhood Gradient Clustering", the algorithm "Compressed Neighborhood
Gradient Clustering" in its appendix, whose line numbers are given; error feedback after
Karimireddy et al., ICML 2019.

    p = g + e;   δ = (‖p‖₁ / d) sgn(p);   e⁺ = p - δ;   g̃^i = Σ_j [(1 - α) w_ji δ^ji + α w_ij δ^ij]

The rest is NGC's, in the order of `average_then_step`: line 8 is `Gossip.send`, line 19
`SGD.apply`, lines 20-21 `Gossip.mix_and_move`. α `alpha`, η `lr`, β `momentum`, γ `gamma`. Axes: A
agents hosted here, I their incoming edges, D flat parameters.
"""

from abc import ABC
from typing import NamedTuple

import torch
from torch import Tensor

from parley.algorithms.base import GradientAt, Rate, Scope
from parley.algorithms.ngc import Alpha, ClusterRule
from parley.algorithms.parts import CrossGradientRule, Found, SGDOptions
from parley.algorithms.recipe import Combination
from parley.data import Batch
from parley.neighbourhood import Compressed, Neighbourhood, OnEdges
from parley.wire.codec import ScaledSign


class Errors(NamedTuple):
    """What compression has left out so far."""

    e_AD: Tensor
    """Of the self-gradients, e^ii."""
    e_ID: Tensor
    """Of the cross-gradients, e^ji."""


class OneBit(NamedTuple):
    """Gradients of one bit per entry."""

    δ_AD: Tensor
    loss_A: Tensor
    e_AD: Tensor
    """The new errors of the self-gradients."""
    δ_I: Compressed
    """The cross-gradients; has their new errors once it has been read."""


class OneBitRule(CrossGradientRule, ABC):
    """A gradient rule whose gradients are compressed, with errors carried from step to step."""

    scope: Scope = "whole"

    def init(self, x_AD: Tensor, hood: Neighbourhood) -> Errors:
        """Errors start at zero."""
        return Errors(torch.zeros_like(x_AD), hood.zeros_I())

    def one_bit(
        self, errors: Errors, at_AD: Tensor, x_I: OnEdges, hood: Neighbourhood, batch: Batch
    ) -> OneBit:
        """Compressed self- and cross-gradients."""
        codec = ScaledSign(hood.sizes if self.scope == "tensor" else (sum(hood.sizes),))
        g_AD, loss_A = hood.gradient(at_AD, batch)  # line 4
        p_AD = g_AD + errors.e_AD  # line 5
        δ_AD = codec.round_trip(p_AD)  # line 6
        g_I = hood.cross_gradient(x_I, batch)  # lines 9-10
        δ_I = hood.compress(g_I, errors.e_ID, codec)  # lines 11-13
        return OneBit(δ_AD, loss_A, p_AD - δ_AD, δ_I)  # line 7


class CompressedClustering(ClusterRule, OneBitRule):
    """CompNGC's gradient rule."""

    word = "compngc"
    title = "CompNGC"

    def apply(
        self, state: Errors, at_AD: Tensor, x_I: OnEdges, hood: Neighbourhood, batch: Batch
    ) -> Found:
        """g̃^i of compressed gradients."""
        δ_AD, loss_A, e_AD, δ_I = self.one_bit(state, at_AD, x_I, hood, batch)  # lines 4-13
        g_AD = hood.cluster(δ_AD, δ_I, self.alpha)  # lines 14-18
        return Found(g_AD, loss_A, Errors(e_AD, δ_I.errors))


class CompNGC(SGDOptions, Combination):
    """NGC with error-compensated 1-bit self- and cross-gradients."""

    name = "compngc"
    title = "CompNGC"
    made_of = (CompressedClustering,)

    gamma: Rate = 1.0
    gradient_at: GradientAt = "own"
    alpha: Alpha = 1.0
    scope: Scope = "whole"
