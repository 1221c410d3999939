"""Checks on a graph: enough agents, connected, symmetric."""

from __future__ import annotations

from collections.abc import Iterable

import networkx as nx
import numpy as np
import scipy

from parley.errors import BadValue
from parley.graphs.matrices import Edge, look_up, pattern_of_graph, row_of_each


def on_cycles(graph: nx.DiGraph[int]) -> bool:
    """Whether every edge lies on a cycle: only then can weights be doubly stochastic."""
    _, part_of = scipy.sparse.csgraph.connected_components(
        pattern_of_graph(graph), connection="strong"
    )
    return all(part_of[j] == part_of[i] for j, i in graph.edges)


def digraph(agents: int, edges: Iterable[Edge]) -> nx.DiGraph[int]:
    """A directed graph of `agents` nodes with these edges."""
    graph: nx.DiGraph[int] = nx.DiGraph()
    graph.add_nodes_from(range(agents))
    graph.add_edges_from((j, i) for j, i in edges if i != j)
    return graph


def one_way_edge(graph: nx.DiGraph[int]) -> Edge | None:
    """The first edge without its reverse, if there is one."""
    pattern = pattern_of_graph(graph)
    turned = pattern.indices * np.int64(len(graph)) + row_of_each(pattern)
    alone = turned[~look_up(turned, pattern)[0]]
    return divmod(int(alone.min()), len(graph)) if len(alone) else None


MOST_AGENTS = 100_000
"""Agents of the largest graph."""
MOST_EDGES = 4_000_000
"""Edges of the largest graph: a full one of 2,000 agents has as many."""


def check_agents(agents: int) -> None:
    """Refuses fewer than one agent, and more than can be handled."""
    if not 1 <= agents <= MOST_AGENTS:
        raise BadValue("agents", agents, f"a whole number from 1 to {MOST_AGENTS}")


def check_edges(name: str, edges: float) -> None:
    """Refuses a graph with too many edges before any of them is made."""
    if not edges <= MOST_EDGES:
        because = f"it would have about {edges:.2g} edges"
        raise BadValue("topology", name, f"a graph of at most {MOST_EDGES:,} edges", because)


def check_connected(name: str, graph: nx.DiGraph[int]) -> None:
    """Refuses a graph in which some agent cannot be reached."""
    count, part_of = scipy.sparse.csgraph.connected_components(
        pattern_of_graph(graph), connection="strong"
    )
    if count == 1:
        return
    _, first, sizes = np.unique(part_of, return_index=True, return_counts=True)
    order = np.lexsort((first, sizes))
    alone, crowd = int(first[order[0]]), int(first[order[-1]])
    if one_way_edge(graph) is None:
        because = f"agent {alone} is cut off from agent {crowd}"
    elif nx.has_path(graph, crowd, alone):
        because = f"nothing that agent {alone} sends reaches agent {crowd}"
    else:
        because = f"nothing that agent {crowd} sends reaches agent {alone}"
    raise BadValue("topology", name, "a graph in which every agent can reach every other", because)
