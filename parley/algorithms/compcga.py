"""CompCGA: CGA whose second round is one bit per entry.

Esfandiari et al., "Cross-Gradient Aggregation for Decentralized Learning from Non-IID Data",
ICML 2021, with the error feedback of Karimireddy et al., ICML 2019, on self- and cross-gradients:

    p = g + e;   δ = (‖p‖₁ / d) sgn(p);   e⁺ = p - δ;   g* = CGA's projection of the δ

η `lr`, β `momentum`, γ `gamma`. Axes: A agents hosted here, I their incoming edges, O their
outgoing edges, D flat parameters.
"""

from torch import Tensor

from parley.algorithms.base import GradientAt, Rate
from parley.algorithms.cga import ProjectionOptions, ProjectionRule
from parley.algorithms.compngc import Errors, OneBitRule
from parley.algorithms.parts import Found, SGDOptions
from parley.algorithms.recipe import Combination
from parley.data import Batch
from parley.neighbourhood import Neighbourhood, OnEdges


class CompressedProjection(ProjectionRule, OneBitRule):
    """CompCGA's gradient rule."""

    word = "compcga"
    title = "CompCGA"

    def apply(
        self, state: Errors, at_AD: Tensor, x_I: OnEdges, hood: Neighbourhood, batch: Batch
    ) -> Found:
        """g* of compressed gradients."""
        δ_AD, loss_A, e_AD, δ_I = self.one_bit(state, at_AD, x_I, hood, batch)
        g_AD = self.project(δ_AD, hood.send_back(δ_I), hood)
        return Found(g_AD, loss_A, Errors(e_AD, δ_I.errors))


class CompCGA(ProjectionOptions, SGDOptions, Combination):
    """CGA with error-compensated 1-bit self- and cross-gradients.

    scope is what is projected at once and also what shares one scale.
    """

    name = "compcga"
    title = "CompCGA"
    made_of = (CompressedProjection,)

    gamma: Rate = 1.0
    gradient_at: GradientAt = "own"
