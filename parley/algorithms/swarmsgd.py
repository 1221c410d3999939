"""SwarmSGD: neighbours meet in random pairs.

Nadiradze et al., "Asynchronous decentralized SGD with quantized and local updates", NeurIPS 2021.

    a random edge (i, j);   τ times: x^i ← x^i - η g^i and x^j ← x^j - η g^j;
    x^i, x^j ← (x^i + x^j) / 2;   the others rest

Here a meeting takes τ steps of the clock that all agents share. The edge is drawn from the seed and
the meeting's number. τ `local_steps`, η `lr`. Axes: A agents hosted here, D flat parameters.
"""

from typing import Literal

import torch
from pydantic import Field

from parley.algorithms.base import MOST, MomentumSGD, Moving, Stepped
from parley.data import Batch
from parley.neighbourhood import Neighbourhood


class SwarmSGD(MomentumSGD):
    """The two ends of a random edge take local steps and average; the others rest."""

    name = "swarmsgd"
    title = "SwarmSGD"
    needs = "symmetric"

    local_steps: int = Field(1, ge=1, le=MOST)
    """τ, the number of local steps between averagings."""
    pairs: Literal["one", "many"] = "one"
    """How many pairs meet at a time: one as printed, or a random maximal set of edges that share no
    agent."""

    def averages(self, seed: int, step: int) -> bool:
        """After τ steps; records do not wait for it."""
        return (step + 1) % self.local_steps == 0

    def rounds_before(self, step: int) -> int:
        """A pair stays together for τ steps."""
        return step // self.local_steps

    def step(self, state: Moving, hood: Neighbourhood, batch: Batch, lr: float) -> Stepped:
        """One local step for the agents that meet, and their averaging if it is due."""
        x_AD, v_AD = state
        most = 1 if self.pairs == "one" else None
        pairs = hood.random_pairs(self.rounds_before(batch.step), most)
        busy = {agent for pair in pairs for agent in pair}
        alone = len(hood.everyone) == 1  # no one to meet, but it can still train
        active_A = torch.tensor([alone or a in busy for a in hood.agents], device=x_AD.device)
        g_AD, loss_A = hood.gradient(x_AD, batch, active_A)
        d_AD, new_v_AD = self.descend(g_AD, x_AD, v_AD, lr)
        x_AD = torch.where(active_A[:, None], x_AD + d_AD, x_AD)
        v_AD = torch.where(active_A[:, None], new_v_AD, v_AD)
        if self.averages(hood.seed, batch.step):
            x_AD = hood.meet(x_AD, pairs)
        return Stepped(Moving(x_AD, v_AD), loss_A, active_A)
