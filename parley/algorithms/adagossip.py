"""AdaGossip: a separate averaging rate for every parameter.

Aketi, Hashemi, Roy, "AdaGossip: adaptive consensus step-size for decentralized deep learning with
communication compression", 2024. As CHOCO, with the rate from the size of the disagreement:

    x̂ ← x̂ + C(x + d - x̂);   r = Σ_j w_ij (x̂^j - x̂^i);   v ← β₂ v + (1 - β₂) r²
    x⁺ = x + d + min(1, γ / (√v̂ + 10⁻⁸)) r,   v̂ = v / (1 - β₂ᵗ)

C `codec`, η `lr` in d, γ `gamma`, β₂ `smoothing`. Axes: A agents hosted here, D flat parameters.
"""

from typing import NamedTuple

import torch
from pydantic import Field
from torch import Tensor

from parley.algorithms.base import MOST, LocalSteps
from parley.algorithms.choco import CompressedOptions, Copies, all_known, copies_of, told
from parley.algorithms.parts import Channel, Sent, SGDOptions, TellingRule
from parley.algorithms.recipe import Combination
from parley.neighbourhood import Neighbourhood, OnEdges


class Disagreement(NamedTuple):
    """CHOCO's copies, and how much they have differed."""

    copies: Copies
    square_AD: Tensor
    """v."""
    weight_A: Tensor
    """1 - β₂ᵗ."""


class AdaptiveGossipOptions(CompressedOptions):
    """The hyper-parameters of the rule."""

    gamma: float = Field(0.001, gt=0, le=MOST)
    """γ, the averaging rate; it is divided by the root mean square of the disagreement."""
    smoothing: float = Field(0.999, ge=0, lt=1)
    """β₂, how slowly the mean square of the disagreement follows."""


class AdaptiveGossip(AdaptiveGossipOptions, TellingRule):
    """AdaGossip's averaging rule."""

    word = "adagossip"
    title = "AdaGossip"
    static = True

    def init(self, x_AD: Tensor, hood: Neighbourhood, apart: bool, edges: bool) -> Disagreement:
        """All values are known; the mean square starts at zero."""
        copies = all_known(x_AD, hood, apart, edges)
        return Disagreement(copies, torch.zeros_like(x_AD), x_AD.new_zeros(len(x_AD)))

    def send(
        self, state: Disagreement, x_AD: Tensor, hood: Neighbourhood, channel: Channel
    ) -> tuple[Sent, Disagreement]:
        """x̂ ← x̂ + C(x - x̂), here and at the neighbours."""
        copies = told(state.copies, x_AD, hood, self.codec, channel)
        return Sent(x_AD, None), state._replace(copies=copies)

    def known(self, state: Disagreement, sent: Sent, hood: Neighbourhood) -> OnEdges:
        """x̂^j."""
        return copies_of(state.copies, hood)

    def mix(
        self, state: Disagreement, x_AD: Tensor, sent: Sent, hood: Neighbourhood
    ) -> tuple[Tensor, Disagreement]:
        """x + min(1, γ / (√v̂ + 10⁻⁸)) r."""
        copies, square_AD, weight_A = state
        r_AD = copies.heard_AD - copies.known_AD
        square_AD = torch.lerp(r_AD.square(), square_AD, self.smoothing)
        weight_A = self.smoothing * weight_A + (1 - self.smoothing)
        root_AD = (square_AD / weight_A[:, None]).sqrt()
        mixed_AD = x_AD + (self.gamma / (root_AD + 1e-8)).clamp(max=1) * r_AD
        return mixed_AD, Disagreement(copies, square_AD, weight_A)


class AdaGossip(AdaptiveGossipOptions, SGDOptions, Combination):
    """CHOCO whose averaging rate follows the disagreement, parameter by parameter."""

    name = "adagossip"
    title = "AdaGossip"
    made_of = (AdaptiveGossip,)

    local_steps: LocalSteps = 1
