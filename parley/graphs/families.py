"""Families of graphs for use from Python: rings, tori, trees and so on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import networkx as nx
import numpy as np
import scipy

from parley.errors import BadValue, unknown_name
from parley.graphs.checks import (
    check_agents,
    check_connected,
    check_edges,
    digraph,
    on_cycles,
    one_way_edge,
)
from parley.graphs.matrices import Edge, pattern_of_edges
from parley.graphs.topology import Topology
from parley.graphs.weights import (
    SCHEMES,
    Weights,
    as_mixing,
    is_auto,
)

DRAWS = 100  # attempts at drawing a connected random graph before giving up


def ring(agents: int, *, weights: Weights = "auto") -> Topology:
    """Every agent talks to the ones before and after it; two agents form one pair."""
    return _undirected("ring", agents, ((i, (i + 1) % agents) for i in range(agents)), weights)


def directed_ring(agents: int, *, weights: Weights = "auto") -> Topology:
    """Every agent sends only to the next one."""
    return _directed(
        "directed-ring", agents, ((i, (i + 1) % agents) for i in range(agents)), weights
    )


def chain(agents: int, *, weights: Weights = "auto") -> Topology:
    """A ring that is open between the last agent and the first."""
    return _undirected("chain", agents, ((i, i + 1) for i in range(agents - 1)), weights)


def torus(agents: int | tuple[int, int], *, weights: Weights = "auto") -> Topology:
    """A grid that wraps around, numbered row by row; a plain number gets the squarest grid.

    >>> torus(20).neighbours(0), torus((2, 10)).neighbours(0)
    ((1, 4, 5, 15), (1, 9, 10))
    """
    if isinstance(agents, tuple):
        rows, columns = agents
        name = f"torus:{rows}x{columns}"
        if min(agents) < 2:
            raise BadValue("topology", name, "torus:RxC with R and C at least 2, or ring")
    else:
        name = "torus"
        rows, columns = torus_shape(agents)
    n = rows * columns
    check_agents(n)
    right = ((i, i - i % columns + (i + 1) % columns) for i in range(n))
    below = ((i, (i + columns) % n) for i in range(n))
    return _undirected(name, n, [*right, *below], weights)


def torus_shape(agents: int) -> tuple[int, int]:
    """The squarest rows x columns, at least 2 each.

    >>> torus_shape(20), torus_shape(10)
    ((4, 5), (2, 5))
    """
    check_agents(agents)
    for rows in range(int(agents**0.5), 1, -1):
        if agents % rows == 0:
            return rows, agents // rows
    raise BadValue(
        "topology",
        "torus",
        f"a number of agents that is not prime, such as {max(4, agents + agents % 2)}, "
        "or topology=ring",
        f"{agents} agents do not form a grid with at least 2 rows and columns",
    )


def circulant(agents: int, offsets: Sequence[int], *, weights: Weights = "auto") -> Topology:
    """Every agent talks to those `offset` places before and after it, for each offset.

    >>> circulant(10, [1, 5]).neighbours(0)
    (1, 5, 9)
    """
    name = "circulant:" + ",".join(map(str, offsets))
    if not offsets or not all(0 < offset < agents for offset in offsets):
        raise BadValue("topology", name, f"offsets from 1 to {agents - 1} for {agents} agents")
    check_edges(name, 2 * agents * len(offsets))
    return _undirected(name, agents, _steps(agents, offsets), weights)


def exponential(agents: int, *, weights: Weights = "auto") -> Topology:
    """Every agent talks to those 1, 2, 4, ... places before and after, up to halfway round.

    >>> exponential(16).neighbours(0)
    (1, 2, 4, 8, 12, 14, 15)
    """
    offsets = [2**k for k in range(max(agents, 0).bit_length()) if 2 ** (k + 1) <= agents]
    return _undirected("exponential", agents, _steps(agents, offsets), weights)


def directed_exponential(agents: int, *, weights: Weights = "auto") -> Topology:
    """Every agent sends to those 1, 2, 4, … places ahead.

    >>> directed_exponential(8).neighbours(0)  # whom agent 0 hears
    (4, 6, 7)
    """
    offsets = [2**k for k in range(max(agents, 0).bit_length()) if 2**k < agents]
    return _directed("directed-exponential", agents, _steps(agents, offsets), weights)


def full(agents: int, *, weights: Weights = "auto") -> Topology:
    """Every agent talks to every other: one gossip step computes the exact mean."""
    check_edges("full", agents * (agents - 1))
    return _undirected("full", agents, ((i, j) for i in range(agents) for j in range(i)), weights)


def star(agents: int, *, weights: Weights = "auto") -> Topology:
    """Agent 0 talks to every other agent; the others talk only to agent 0."""
    return _undirected("star", agents, ((0, i) for i in range(1, agents)), weights)


def tree(agents: int, children: int = 2, *, weights: Weights = "auto") -> Topology:
    """A tree rooted at agent 0 in which every agent has `children` children while agents last.

    >>> tree(7).neighbours(1)
    (0, 3, 4)
    """
    name = f"tree:{children}"
    if children < 1:
        raise BadValue("topology", name, "tree:c with c children, 1 or more")
    pairs = ((i, (i - 1) // children) for i in range(1, agents))
    return _undirected(name, agents, pairs, weights)


def spanning_tree(topology: Topology, *, weights: Weights = "auto") -> Topology:
    """A tree of shortest paths from agent 0, along edges that go both ways.

    >>> spanning_tree(ring(5)).edges
    ((1, 0), (4, 0), (0, 1), (2, 1), (1, 2), (4, 3), (0, 4), (3, 4))
    """
    name = f"spanning-tree:{topology.name}"
    both_ways = topology.graph.to_undirected(reciprocal=True)
    pairs = sorted(nx.bfs_edges(both_ways, 0, sort_neighbors=sorted))
    if len(pairs) < topology.agents - 1:
        because = "two-way edges do not reach every agent"
        raise BadValue("topology", name, "an undirected graph", because)
    return _undirected(name, topology.agents, pairs, weights)


def hypercube(agents: int, *, weights: Weights = "auto") -> Topology:
    """Every agent talks to those whose number differs from its own in one bit.

    >>> hypercube(8).neighbours(5)
    (1, 4, 7)
    """
    check_agents(agents)
    if agents & (agents - 1):
        below = 1 << (agents.bit_length() - 1)
        raise BadValue(
            "topology",
            "hypercube",
            f"a power of two, such as {below} or {2 * below}; or topology=exponential",
            f"{agents} is not a power of two",
        )
    bits = [1 << k for k in range(agents.bit_length() - 1)]
    return _undirected(
        "hypercube", agents, ((i, i ^ b) for i in range(agents) for b in bits), weights
    )


def petersen(agents: int = 10, *, weights: Weights = "auto") -> Topology:
    """The Petersen graph: ten agents, three neighbours each, at most two steps apart.

    >>> petersen().degrees[0], nx.diameter(petersen().graph)
    (3, 2)
    """
    return _named("petersen", nx.petersen_graph(), agents, weights)


def dyck(agents: int = 32, *, weights: Weights = "auto") -> Topology:
    """The Dyck graph: 32 agents, three neighbours each, at most five steps apart.

    >>> dyck().degrees[0], nx.diameter(dyck().graph)
    (3, 5)
    """
    return _named("dyck", nx.LCF_graph(32, [5, -5, 13, -13], 8), agents, weights)


def _named(name: str, graph: nx.Graph[int], agents: int, weights: Weights) -> Topology:
    if agents != len(graph):
        because = f"the graph {name!r} has exactly {len(graph)} agents"
        raise BadValue("agents", agents, f"{len(graph)}, or another topology", because)
    return _undirected(name, agents, graph.edges, weights)


def random_regular(
    agents: int, degree: int, seed: int = 0, *, weights: Weights = "auto"
) -> Topology:
    """A random connected graph in which every agent has `degree` neighbours."""
    check_agents(agents)
    name = f"random-regular:{degree}"
    if not 0 <= degree < agents or agents * degree % 2:
        raise BadValue("topology", name, f"a degree below {agents} with agents x degree even")
    check_edges(name, agents * degree)

    def draw(source: int) -> list[Edge]:
        return list(nx.random_regular_graph(degree, agents, seed=source).edges)

    edges = first_connected(name, agents, draw, seed, "a degree of 2 or more")
    return _undirected(name, agents, edges, weights)


def erdos_renyi(agents: int, p: float, seed: int = 0, *, weights: Weights = "auto") -> Topology:
    """A random connected graph with an edge between each pair with probability `p`."""
    check_agents(agents)
    name = f"erdos-renyi:{p}"
    if not 0 < p <= 1:
        raise BadValue("topology", name, "a probability above 0 and at most 1")
    check_edges(name, p * agents * (agents - 1))

    def draw(source: int) -> list[Edge]:
        # The upper triangle of a random matrix, of which only one row is in memory at a time.
        bits = np.random.PCG64(source)
        numbers = np.random.Generator(bits)
        edges: list[Edge] = []
        for i in range(agents):
            bits.advance(i + 1)
            drawn = np.flatnonzero(numbers.random(agents - i - 1) < p) + i + 1
            edges += [(i, j) for j in drawn.tolist()]
        return edges

    threshold = min(1.0, np.log(max(agents, 2)) / agents)
    edges = first_connected(name, agents, draw, seed, f"a probability above {threshold:.2g}")
    return _undirected(name, agents, edges, weights)


def from_graph(graph: nx.Graph[Any], *, weights: Weights = "auto", name: str = "graph") -> Topology:
    """Your own networkx graph; its nodes become 0..N-1, sorted if they can be.

    If every edge has a "weight", "auto" uses those: edge (j, i) holds the weight that i gives to
    j, and a self-loop an agent's weight for itself, which is otherwise 1 minus the others.

    >>> from_graph(nx.path_graph(["b", "c", "a"])).neighbours(0)  # a hears c
    (2,)
    """
    if graph.is_multigraph():
        raise BadValue("topology", name, "a networkx Graph or DiGraph", "it has parallel edges")
    try:
        nodes = sorted(graph)
    except TypeError:
        nodes = list(graph)
    number = {node: i for i, node in enumerate(nodes)}
    both_ways: nx.DiGraph[Any] = nx.DiGraph(graph)
    given: dict[Edge, float | None] = {
        (number[j], number[i]): data.get("weight") for j, i, data in both_ways.edges(data=True)
    }
    return from_edges(name, len(nodes), given, weights)


def _undirected(name: str, agents: int, pairs: Iterable[Edge], weights: Weights) -> Topology:
    both_ways = (way for i, j in pairs for way in ((i, j), (j, i)))
    return _directed(name, agents, both_ways, weights)


def _directed(name: str, agents: int, edges: Iterable[Edge], weights: Weights) -> Topology:
    check_agents(agents)
    return weighted(name, digraph(agents, edges), weights)


def from_edges(
    name: str,
    agents: int,
    given: Mapping[Edge, float | None],
    weights: Weights,
    part: bool = False,
) -> Topology:
    """A topology from edges that may carry weights, which "auto" then uses."""
    graph = digraph(agents, given)
    complete = graph.size() and all(given[edge] is not None for edge in graph.edges)
    if complete and is_auto(weights):
        known = {edge: float(weight) for edge, weight in given.items() if weight is not None}
        sums = np.zeros(agents)
        for (_, i), weight in known.items():
            sums[i] += weight
        known = {(i, i): 1 - sums[i] for i in range(agents)} | known
        columns, rows = np.array(list(known)).T
        weights = scipy.sparse.csr_array(
            (list(known.values()), (rows, columns)), shape=(agents, agents)
        )
    return weighted(name, graph, weights, part)


def weighted(name: str, graph: nx.DiGraph[int], weights: Weights, part: bool = False) -> Topology:
    """The graph with weights from that scheme, or with the given matrix."""
    if not isinstance(weights, str):
        return Topology(name, graph, as_mixing(weights, graph), part=part)
    check_agents(len(graph))
    if not part:
        check_connected(name, graph)  # before sinkhorn, which would not converge
    if weights == "auto":
        weights = "metropolis" if one_way_edge(graph) is None else "sinkhorn"
        if weights == "sinkhorn" and not on_cycles(graph):
            weights = "push"  # no doubly stochastic matrix has these edges
    if weights not in SCHEMES:
        raise unknown_name("weights", weights, [*SCHEMES, "auto"])
    if weights == "sinkhorn" and not on_cycles(graph):
        because = "a round has an edge that is not on any cycle"
        raise BadValue("weights", weights, "push or uniform", because)
    return Topology(name, graph, SCHEMES[weights](graph), weights, part=part)


def _steps(agents: int, offsets: Iterable[int]) -> list[Edge]:
    return [(i, (i + offset) % agents) for i in range(agents) for offset in offsets]


def first_connected(
    name: str, agents: int, draw: Callable[[int], list[Edge]], seed: int, remedy: str
) -> list[Edge]:
    """The first connected graph among several random draws."""
    for attempt in range(DRAWS):
        source = int(np.random.SeedSequence([seed, attempt]).generate_state(1)[0])
        edges = draw(source)
        if (
            scipy.sparse.csgraph.connected_components(
                pattern_of_edges(agents, edges), directed=False
            )[0]
            == 1
        ):
            return edges
    because = f"none of {DRAWS} draws for {agents} agents was connected"
    raise BadValue("topology", name, f"{remedy}, or another seed", because)
