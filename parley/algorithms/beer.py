"""BEER: gradient tracking in which both rounds are compressed.

Zhao et al., "BEER: fast O(1/T) rate for decentralized nonconvex optimization with communication
compression", NeurIPS 2022.

    X⁺ = X + γ (W - I) H - η V;        H⁺ = H + C(X⁺ - H)
    V⁺ = V + γ (W - I) G + ∇⁺ - ∇;     G⁺ = G + C(V⁺ - G)

That is gradient tracking whose models and whose tracked gradients are both averaged by CHOCO's
rule: H and G are what the neighbours know. C `codec`, η `lr`, γ `gamma`. Axes: A agents hosted
here, D flat parameters.
"""

from parley.algorithms.choco import DifferenceGossip
from parley.algorithms.composed import SGD, Composed, Own
from parley.algorithms.tracking import Tracking


class BEER(Tracking, DifferenceGossip, SGD, Own, Composed):
    """Gradient tracking with compressed differences in both rounds."""

    name = "beer"
    title = "BEER"
