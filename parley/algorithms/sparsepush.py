"""Sparse-Push: compressed push-sum for directed graphs.

Aketi, Singh, Rabaey, "Sparse-Push: communication- and energy-efficient decentralized distributed
learning over directed and time-varying graphs with non-IID datasets", 2021. DeepSqueeze's
averaging of what push-sum averages, numerator and weight at the same rate:

    v = x - η g(z) + e;   e⁺ = v - C(v);   x⁺ = x - η g(z) + γ Σ_j (w_ij - I_ij) C(v^j)
    w⁺ = w + γ Σ_j (w_ij - I_ij) w^j;      z = x⁺ / w⁺

C `codec`, η `lr`, γ `gamma`.
"""

from parley.algorithms.base import LocalSteps
from parley.algorithms.choco import CompressedOptions
from parley.algorithms.deepsqueeze import CompensatedGossip
from parley.algorithms.parts import SGDOptions
from parley.algorithms.recipe import Combination
from parley.algorithms.sgp import PushSum


class SparsePush(CompressedOptions, SGDOptions, Combination):
    """DeepSqueeze for directed graphs: compressed models, and weights that undo the bias."""

    name = "sparse-push"
    title = "Sparse-Push"
    made_of = (CompensatedGossip, PushSum)

    local_steps: LocalSteps = 1
