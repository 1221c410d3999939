"""Low-precision messages: D-PSGD whose models are rounded before they are sent.

Aketi, Kodge, Roy, "Low precision decentralized distributed training over IID and non-IID data",
2021, for the messages; with the unbiased rounding of Alistarh et al., "QSGD", NeurIPS 2017.

    x′ = x - η g;   x⁺ = x′ + γ Σ_j (w_ij - I_ij) C(x′^j)

An agent uses what it sent in place of its own value, so the mean over agents is preserved.
C `codec`, η `lr`, γ `gamma`.
"""

from parley.algorithms.base import CodecSpec, LocalSteps
from parley.algorithms.parts import GossipOptions, SGDOptions
from parley.algorithms.recipe import Combination


class Quantized(GossipOptions, SGDOptions, Combination):
    """D-PSGD with messages of 8 bits per entry, or as set by codec."""

    name = "quantized"
    title = "Quantized D-PSGD"

    codec: CodecSpec = "qsgd:8"
    """C, how values are encoded."""
    local_steps: LocalSteps = 1
