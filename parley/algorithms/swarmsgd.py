"""SwarmSGD: neighbours meet in random pairs.

Nadiradze et al., "Asynchronous decentralized SGD with quantized and local updates", NeurIPS 2021.

    a random edge (i, j);   τ times: x^i ← x^i - η g^i and x^j ← x^j - η g^j;
    x^i, x^j ← (x^i + x^j) / 2;   the others rest

Here a meeting takes τ steps of the clock that all agents share. The edge is drawn from the seed and
the meeting's number. τ `local_steps`, η `lr`. Axes: A agents hosted here, D flat parameters.
"""

from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from parley.algorithms.base import MOST, MomentumSGD, Stepped
from parley.data import Batch
from parley.graphs import Edge
from parley.neighbourhood import Neighbourhood


class State(NamedTuple):
    """Models and momentum."""

    x_AD: Tensor
    v_AD: Tensor


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

    def init(self, x_AD: Tensor, hood: Neighbourhood, apart: bool = False) -> State:
        """Momentum starts at zero."""
        return State(x_AD, torch.zeros_like(x_AD))

    def step(self, state: State, hood: Neighbourhood, batch: Batch, lr: float) -> Stepped:
        """One local step for the agents that meet, and their averaging if it is due."""
        x_AD, v_AD = state
        pairs = self.drawn(hood.edges, hood.seed, batch.step // self.local_steps)
        busy = {agent for pair in pairs for agent in pair}
        alone = len(hood.everyone) == 1  # no one to meet, but it can still train
        active_A = torch.tensor([alone or a in busy for a in hood.agents], device=x_AD.device)
        g_AD, loss_A = hood.gradient(x_AD, batch, active_A)
        d_AD, new_v_AD = self.descend(g_AD, x_AD, v_AD, lr)
        x_AD = torch.where(active_A[:, None], x_AD + d_AD, x_AD)
        v_AD = torch.where(active_A[:, None], new_v_AD, v_AD)
        if (batch.step + 1) % self.local_steps == 0:
            x_AD = hood.meet(x_AD, pairs)
        return Stepped(State(x_AD, v_AD), loss_A, active_A)

    def drawn(self, edges: Sequence[Edge], seed: int, meeting: int) -> list[tuple[int, int]]:
        """Who meets, the same on every worker.

        >>> from parley.graphs import ring
        >>> SwarmSGD(pairs="many").drawn(ring(4).edges, seed=0, meeting=7)
        [(0, 3), (1, 2)]
        """
        return matching(edges, seed, meeting, None if self.pairs == "many" else 1)


def matching(
    edges: Sequence[Edge], seed: int, meeting: int, most: int | None = None
) -> list[tuple[int, int]]:
    """Random edges of which no two share an agent, drawn one after the other until no more fit."""
    edges = [(i, j) for j, i in edges if i < j]
    numbers = np.random.default_rng(np.random.SeedSequence([seed, 6, meeting]))
    taken: list[tuple[int, int]] = []
    busy: set[int] = set()
    for e in numbers.permutation(len(edges)).tolist():
        if busy.isdisjoint(edges[e]) and (most is None or len(taken) < most):
            taken.append(edges[e])
            busy.update(edges[e])
    return sorted(taken)
