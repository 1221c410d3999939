"""AdaGossip: an averaging rate of its own for every parameter.

Aketi, Hashemi, Roy, "AdaGossip: adaptive consensus step-size for decentralized deep learning with
communication compression", 2024. As CHOCO, with the rate from the size of the disagreement:

    x̂ ← x̂ + C(x + d - x̂);   r = Σ_j w_ij (x̂^j - x̂^i);   v ← β₂ v + (1 - β₂) r²
    x⁺ = x + d + min(1, γ / (√v̂ + 10⁻⁸)) r,   v̂ = v / (1 - β₂ᵗ)

C `codec`, η `lr` in d, γ `gamma`, β₂ `smoothing`. Axes: A agents hosted here, D flat parameters.
"""

import torch
from pydantic import Field
from torch import Tensor

from parley.algorithms.base import Memory
from parley.algorithms.choco import DifferenceGossip
from parley.algorithms.composed import SGD, Composed, Own, Slot
from parley.neighbourhood.verbs import Flow, Neighbourhood


class AdaptiveGossip(DifferenceGossip):
    """AdaGossip's averaging rule."""

    gamma: float = Field(0.001, gt=0)
    """γ, the averaging rate, to be divided by the root mean square of the disagreement."""
    smoothing: float = Field(0.999, ge=0, lt=1)
    """β₂, how slowly the mean square of the disagreement follows."""

    def start(self, x_AD: Tensor, hood: Neighbourhood) -> Memory:
        """A mean square of nothing, beside what CHOCO's rule keeps."""
        memory = {}
        for slot in self.slots:  # type: ignore[attr-defined]
            memory[f"{slot}_square_AD"] = torch.zeros_like(x_AD)
            memory[f"{slot}_weight_A"] = x_AD.new_zeros(len(x_AD))
        return memory

    def average(
        self, x_AD: Tensor, hood: Neighbourhood, memory: Memory, slot: Slot
    ) -> tuple[Tensor, Flow | None]:
        """x + min(1, γ / (√v̂ + 10⁻⁸)) r."""
        super().share(x_AD, hood, memory, slot)
        r_AD = memory[f"{slot}_heard_AD"] - memory[f"{slot}_known_AD"]
        square, weight = f"{slot}_square_AD", f"{slot}_weight_A"
        memory[square] = torch.lerp(r_AD.square(), memory[square], self.smoothing)
        memory[weight] = self.smoothing * memory[weight] + (1 - self.smoothing)  # 1 - β₂ᵗ
        root_AD = (memory[square] / memory[weight][:, None]).sqrt()
        return x_AD + (self.gamma / (root_AD + 1e-8)).clamp(max=1) * r_AD, self._known(
            hood, memory, slot
        )

    def share(self, x_AD: Tensor, hood: Neighbourhood, memory: Memory, slot: Slot) -> None:
        """It has been, before the averaging."""


class AdaGossip(AdaptiveGossip, SGD, Own, Composed):
    """CHOCO whose averaging rate follows the disagreement, parameter by parameter."""

    name = "adagossip"
    title = "AdaGossip"
