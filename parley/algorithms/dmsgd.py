"""DMSGD: decentralized momentum SGD.

Balu et al., "Decentralized deep learning using momentum-accelerated consensus", ICASSP 2021; Yu,
Jin, Yang, ICML 2019. D-PSGD in the order "average, then step", with Nesterov momentum:

    m = β m + g(x);   x⁺ = W x - η (g + β m)

β `momentum`, η `lr`, γ `gamma`. Axes: A agents hosted here, D flat parameters.
"""

from parley.algorithms.base import GradientAt, Momentum, MomentumSGD, Moving, Rate, Stepped
from parley.data import Batch
from parley.neighbourhood import Neighbourhood


class DMSGD(MomentumSGD):
    """Averages the models, then steps along the momentum of gradients taken beforehand."""

    name = "dmsgd"
    title = "DMSGD"
    no_local_steps = "it averages before it steps; dpsgd with nesterov momentum takes local steps"

    momentum: Momentum = 0.9
    nesterov: bool = True
    """True: v = βv + g, the step is -η(g + βv). False: v = βv - ηg, the step is v."""
    gamma: Rate = 1.0
    gradient_at: GradientAt = "own"

    def step(self, state: Moving, hood: Neighbourhood, batch: Batch, lr: float) -> Stepped:
        """One iteration."""
        x_AD, v_AD = state
        mixed_AD = hood.mix(x_AD, self.gamma)
        at_AD = mixed_AD if self.gradient_at == "mixed" else x_AD
        g_AD, loss_A = hood.gradient(at_AD, batch)
        d_AD, v_AD = self.descend(g_AD, at_AD, v_AD, lr)
        return Stepped(Moving(mixed_AD + d_AD, v_AD), loss_A)
