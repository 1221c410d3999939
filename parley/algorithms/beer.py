"""BEER: gradient tracking in which both rounds are compressed.

Zhao et al., "BEER: fast O(1/T) rate for decentralized nonconvex optimization with communication
compression", NeurIPS 2022.

    X⁺ = X + γ (W - I) H - η V;        H⁺ = H + C(X⁺ - H)
    V⁺ = V + γ (W - I) G + ∇⁺ - ∇;     G⁺ = G + C(V⁺ - G)

That is gradient tracking whose models and whose tracked gradients are both averaged by CHOCO's
rule. In terms of the parts:

    V   y_AD of `Tracking`, which starts from V = 0, ∇ = 0
    H   known_AD of `DifferenceGossip`, for the models; (W - I) H is heard_AD - known_AD
    G   the same for the tracked gradients
    ∇   g_AD of `Tracking`; ∇⁺ is the gradient of this step

`step_then_average` computes the second line first, since V⁺ needs only ∇⁺ at the current X; then
the step -η V⁺ and the first line. C `codec`, η `lr`, γ `gamma`.
"""

from parley.algorithms.choco import CompressedOptions, DifferenceGossip
from parley.algorithms.parts import SGDOptions
from parley.algorithms.recipe import Combination
from parley.algorithms.tracking import Tracking


class BEER(CompressedOptions, SGDOptions, Combination):
    """Gradient tracking with compressed differences in both rounds."""

    name = "beer"
    title = "BEER"
    made_of = (Tracking, DifferenceGossip)
