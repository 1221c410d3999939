"""D-PSGD: stochastic gradient descent and gossip averaging.

Lian et al., "Can decentralized algorithms outperform centralized algorithms?", NeurIPS 2017; with
momentum it is DMSGD, Balu et al., ICASSP 2021. The line numbers are those of the algorithm
"Decentralized Peer-to-Peer Training" in the NGC paper's appendix.

    x⁺ = W (x - η g)

    line 4       `Own.apply`: g
    line 5       `SGD.apply`: v = βv - ηg
    line 6       x + v
    lines 7-8    `Gossip.send` and `Gossip.mix`

in the order of `step_then_average`. η `lr`, β `momentum`, γ `gamma`.
"""

from parley.algorithms.base import GradientAt, LocalSteps, Rate
from parley.algorithms.parts import SGDOptions
from parley.algorithms.recipe import Combination


class DPSGD(SGDOptions, Combination):
    """Steps on the agent's own data, then averages with the neighbours.

    With gradient_at="mixed" it averages first: the same sequence of operations, cut at another
    point: x⁺ = Wx - η ∇f(Wx).
    """

    name = "dpsgd"
    title = "D-PSGD"

    gamma: Rate = 1.0
    gradient_at: GradientAt = "own"
    local_steps: LocalSteps = 1
