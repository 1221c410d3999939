"""DeepSqueeze: gossip of compressed models with error compensation.

Tang et al., "DeepSqueeze: decentralization meets error-compensated compression", 2019.

    v = x + d + e;   e⁺ = v - C(v);   x⁺ = x + d + γ Σ_j (w_ij - I_ij) C(v^j)

C `codec`, η `lr` in d, γ `gamma`. Axes: A agents hosted here, D flat parameters.
"""

import torch
from pydantic import Field
from torch import Tensor

from parley.algorithms.base import Memory, Part
from parley.algorithms.composed import SGD, CodecSpec, Composed, Own, Slot, publish
from parley.neighbourhood.verbs import Flow, Neighbourhood


class CompensatedGossip(Part):
    """DeepSqueeze's averaging rule."""

    gamma: float = Field(0.2, gt=0, le=1)
    """γ, the averaging rate; the coarser the codec, the smaller it has to be."""
    codec: CodecSpec = "sign"
    """C, how models are written on the wire."""

    @property
    def gossip_rate(self) -> float:
        """Models are tested after gossip in full, for which γ need not be small."""
        return 1.0

    def start(self, x_AD: Tensor, hood: Neighbourhood) -> Memory:
        """Errors start at zero."""
        return {f"{slot}_error_AD": torch.zeros_like(x_AD) for slot in self.slots}  # type: ignore[attr-defined]

    def average(
        self, x_AD: Tensor, hood: Neighbourhood, memory: Memory, slot: Slot
    ) -> tuple[Tensor, Flow | None]:
        """x + γ Σ_j (w_ij - I_ij) C(v^j)."""
        v_AD = x_AD + memory[f"{slot}_error_AD"]
        q_AD, q_I = publish(v_AD, hood, self.codec, slot)
        memory[f"{slot}_error_AD"] = v_AD - q_AD
        return x_AD + self.gamma * (hood.average(q_AD, q_I) - q_AD), None


class DeepSqueeze(CompensatedGossip, SGD, Own, Composed):
    """Step on the own data, then average compressed models; what is cut off is sent next time."""

    name = "deepsqueeze"
    title = "DeepSqueeze"
