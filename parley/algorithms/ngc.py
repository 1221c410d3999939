"""NGC: Neighborhood Gradient Clustering.

Aketi, Kodge, Roy, "Neighborhood Gradient Clustering: An Efficient Decentralized Learning Method
for Non-IID Data Distributions". `NGC.step` is its Algorithm 1, with its line numbers:

    g^ii  own model, own data: self-gradient
    g^ji  neighbour's model, own data: model-variant cross-gradient, computed here
    g^ij  own model, neighbour's data: data-variant cross-gradient, computed there and sent back

    line 12      g̃^i = Σ_j [(1 - α) w_ji g^ji + α w_ij g^ij]
    line 13      v = βv - ηg̃
    lines 14-15  x⁺ = x + v + γ Σ_j (w_ij - I_ij) x^j

α `alpha`, η `lr`, β `momentum`, γ `gamma`. Axes: A agents hosted here, I their incoming edges, D
flat parameters.
"""

from abc import ABC
from typing import Annotated, Any

from pydantic import Field
from torch import Tensor

from parley.algorithms.base import GradientAt, Rate, Stepped
from parley.algorithms.parts import CrossGradientRule, Found, SGDOptions
from parley.algorithms.recipe import Combination, State
from parley.data import Batch
from parley.neighbourhood import Neighbourhood, OnEdges

Alpha = Annotated[
    float,
    Field(
        ge=0,
        le=1,
        description="α, the share of the data-variant cluster, which needs a second round of "
        "messages; the model-variant cluster gets the rest.",
    ),
]


class ClusterRule(CrossGradientRule, ABC):
    """A gradient rule with NGC's clusters."""

    alpha: Alpha = 1.0

    @property
    def suffix(self) -> str:
        """α is part of the label unless it is 1."""
        return "" if self.alpha == 1 else f" α={self.alpha:g}"


class Clustering(ClusterRule):
    """NGC's gradient rule, for combinations such as ``ngc+qgm``: lines 4 and 6 to 12."""

    word = "ngc"
    title = "NGC"

    def apply(
        self, state: Any, at_AD: Tensor, x_I: OnEdges, hood: Neighbourhood, batch: Batch
    ) -> Found:
        """g̃^i, with self-gradients at `at_AD` and cross-gradients at the neighbours' models."""
        g_AD, loss_A = hood.gradient(at_AD, batch)
        g_I = hood.cross_gradient(x_I, batch)
        return Found(hood.cluster(g_AD, g_I, self.alpha), loss_A, state)


class NGC(SGDOptions, Combination):
    """Replaces each agent's gradient by the mean of those seen in its neighbourhood.

    At alpha=0 the cross-gradients are used where they are computed, and only models are sent. The
    cross-gradients are added up as they arrive; they are never all in memory at once.
    """

    name = "ngc"
    title = "NGC"
    made_of = (Clustering,)

    gamma: Rate = 1.0
    gradient_at: GradientAt = "own"
    alpha: Alpha = 1.0

    def step(self, state: State, hood: Neighbourhood, batch: Batch, lr: float) -> Stepped:
        """One iteration, on line 3's batch."""
        if self.gradient_at == "mixed":  # the order of the authors' code
            return super().step(state, hood, batch, lr)
        x_AD, v = state.x_AD, state.update
        x_I = hood.exchange(x_AD)  # line 5: x^j
        g_AD, loss_A = hood.gradient(x_AD, batch)  # line 4: g^ii
        g_I = hood.cross_gradient(x_I, batch)  # lines 6-7: g^ji
        g_AD = hood.cluster(g_AD, g_I, self.alpha)  # lines 8-12: g^ij if α > 0, then g̃
        v_AD, v = self.parts.update.step(v, g_AD, x_AD, lr, hood)  # line 13
        x_AD = hood.gossip(x_AD, x_I, self.gamma, v_AD)  # lines 14-15
        return Stepped(state._replace(x_AD=x_AD, update=v), loss_A)
