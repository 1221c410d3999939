"""RelaySGD: sums relayed along a tree.

Vogels et al., "RelaySum for decentralized deep learning on heterogeneous data", NeurIPS 2021. An
agent passes on what it hears from one neighbour to the others, so that every agent has the sum over
all agents, the distant ones a little late:

    x^i ← x^i + d;   m(i → j) = x^i + Σ_{k ≠ j} m_old(k → i);   x⁺ = (x^i + Σ_k m(k → i)) / n

All agents start from the same model, so the messages from before the start are known: m(k → i)
starts as that model times the number of agents behind k. η `lr` in d. Axes: A agents hosted here,
I their incoming and O their outgoing edges, D flat parameters.
"""

from collections.abc import Sequence
from typing import NamedTuple

import networkx as nx
import torch
from torch import Tensor

from parley.algorithms.base import MomentumSGD, Stepped
from parley.data import Batch
from parley.errors import BadValue
from parley.graphs import Edge, Topology
from parley.neighbourhood import Neighbourhood


class State(NamedTuple):
    """Models, momentum, and what was last heard."""

    x_AD: Tensor
    v_AD: Tensor
    m_OD: Tensor
    """At i -> j: m(j → i), the message that came back along that edge."""


class RelaySGD(MomentumSGD):
    """Relays sums of models along a tree: an exact average over all agents, only a little late."""

    name = "relaysgd"
    title = "RelaySGD"
    needs = "row-stochastic"
    no_local_steps = "its sums are passed on in every step"

    def check(self, topology: Topology) -> None:
        """Refuses graphs that are not trees; weights are not used."""
        if topology.phases or topology.directed or len(topology.edges) != 2 * (topology.agents - 1):
            raise BadValue(
                "topology",
                topology.name,
                "a tree: chain, star, tree",
                "relaysgd only works on trees",
            )

    def init(self, x_AD: Tensor, hood: Neighbourhood, apart: bool = False) -> State:
        """As if the common start had been relayed forever."""
        count = behind(hood.edges)
        count_O1 = x_AD.new_tensor([[count[edge]] for edge in hood.edges_O]).reshape(-1, 1)
        return State(x_AD, torch.zeros_like(x_AD), count_O1 * x_AD[hood.sender_O])

    def step(self, state: State, hood: Neighbourhood, batch: Batch, lr: float) -> Stepped:
        """One iteration."""
        x_AD, v_AD, m_OD = state
        g_AD, loss_A = hood.gradient(x_AD, batch)
        d_AD, v_AD = self.descend(g_AD, x_AD, v_AD, lr)
        x_AD = x_AD + d_AD
        sum_AD = x_AD.index_add(0, hood.sender_O, m_OD)
        m_ID = sum_AD[hood.receiver_I] - m_OD[hood.opposite_I()]
        m_OD = hood.send_back(hood.stored(m_ID), kind="models")
        sum_AD = x_AD.index_add(0, hood.sender_O, m_OD)
        return Stepped(State(sum_AD / len(hood.everyone), v_AD, m_OD), loss_A)


def behind(edges: Sequence[Edge]) -> dict[Edge, int]:
    """For each edge i -> j of a tree, the number of agents on j's side of it.

    >>> from parley.graphs import chain
    >>> behind(chain(4).edges)[1, 2], behind(chain(4).edges)[2, 1]
    (2, 2)
    """
    tree = nx.Graph(edges)
    found = {}
    for i, j in edges:
        tree.remove_edge(i, j)
        found[i, j] = len(nx.node_connected_component(tree, j))
        tree.add_edge(i, j)
    return found
