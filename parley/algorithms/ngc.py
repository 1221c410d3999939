"""NGC: Neighborhood Gradient Clustering.

Aketi, Kodge, Roy, "Neighborhood Gradient Clustering: An Efficient Decentralized Learning Method
for Non-IID Data Distributions". The line numbers are those of its Algorithm 1.

    g̃^i = Σ_j [(1 - α) w_ji g^ji + α w_ij g^ij]

g^ii  own model, own data: self-gradient
g^ji  neighbour's model, own data: model-variant cross-gradient, computed here
g^ij  own model, neighbour's data: data-variant cross-gradient, computed there and sent back

    line 5          `Gossip.send`: the models go to the neighbours
    lines 4, 6-12   `Clustering.apply`: g̃, below
    line 13         `SGD.apply`: v = βv - ηg̃
    lines 14-15     `Gossip.mix`: x⁺ = x + v + γ Σ_j (w_ij - I_ij) x^j

in the order of `Recipe.step`. α `alpha`, η `lr`, β `momentum`, γ `gamma`. Axes: A agents hosted
here, I their incoming edges, D flat parameters.
"""

from typing import Annotated, Any, ClassVar

from pydantic import Field
from torch import Tensor

from parley.algorithms.parts import SGD, Found, Gossip, GradientRule
from parley.algorithms.recipe import Named, Recipe
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


class Clustering(GradientRule):
    """NGC's gradient rule."""

    word = "ngc"
    title = "NGC"
    looks_around: ClassVar[bool] = True
    alpha: Alpha = 1.0

    @property
    def suffix(self) -> str:
        """α is part of the label unless it is 1."""
        return suffix(self.alpha)

    def apply(
        self, state: Any, at_AD: Tensor, x_I: OnEdges | None, hood: Neighbourhood, batch: Batch
    ) -> Found:
        """g̃^i, with self-gradients at `at_AD` and cross-gradients at the neighbours' models."""
        assert x_I is not None
        g_AD, loss_A = hood.gradient(at_AD, batch)  # line 4
        g_I = hood.cross_gradient(x_I, batch)  # lines 6-7
        g_AD = hood.cluster(g_AD, g_I, self.alpha)  # lines 8-12
        return Found(g_AD, loss_A, state)


def suffix(alpha: float) -> str:
    """What α adds to a label."""
    return "" if alpha == 1 else f" α={alpha:g}"


NGC = Named(
    "ngc",
    "NGC",
    Recipe(gradient=Clustering(), update=SGD(), averaging=Gossip()),
    "Replaces each agent's gradient by the mean of those seen in its neighbourhood. At alpha=0 the "
    "cross-gradients are used where they are computed, and only models are sent. The "
    "cross-gradients are added up as they arrive; they are never all in memory at once.",
    without=("codec",),
)
