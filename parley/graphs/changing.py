"""Graphs that change from step to step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain as joined
from typing import Any

import networkx as nx

from parley.errors import BadValue
from parley.graphs import sequences
from parley.graphs.checks import MOST_AGENTS, check_agents, check_edges, digraph
from parley.graphs.families import first_connected, from_edges
from parley.graphs.matrices import Edge
from parley.graphs.topology import Topology
from parley.graphs.weights import Weights, is_auto

MATCHINGS = 32
"""Rounds of random matchings before the sequence repeats, unless the spec gives a number."""


def one_peer_exponential(agents: int, *, weights: Weights = "auto") -> Topology:
    """Every agent sends to one other per step: 1, 2, 4, … places ahead, in turn.

    If the number of agents is a power of two, one period computes the exact mean.
    """
    check_agents(agents)
    made = sequences.one_peer_exponential(agents)
    return _sequence("one-peer-exponential", agents, made, weights)


def base(agents: int, degree: int = 1, *, weights: Weights = "auto") -> Topology:
    """The Base-(k+1) graph: at most `degree` = k neighbours per step, and one period computes the
    exact mean for any number of agents."""
    check_agents(agents)
    name = f"base:{degree}"
    if not 1 <= degree <= MOST_AGENTS:
        valid = f"base:k with k neighbours, 1 to {MOST_AGENTS}"
        raise BadValue("topology", name, valid)
    check_edges(name, agents * min(degree, agents))
    return _sequence(name, agents, sequences.base(agents, degree), weights)


def matchings(
    agents: int, rounds: int = MATCHINGS, seed: int = 0, *, weights: Weights = "auto"
) -> Topology:
    """Every agent talks to one randomly drawn agent per step; after `rounds` steps the sequence
    repeats."""
    check_agents(agents)
    name = "matchings" if rounds == MATCHINGS else f"matchings:{rounds}"
    if rounds < 1:
        raise BadValue("topology", name, "matchings:n with n rounds, 1 or more")
    check_edges(name, rounds * agents)
    drawn: list[sequences.Round] = []

    def draw(source: int) -> list[Edge]:
        drawn[:] = sequences.matchings(agents, rounds, source)
        return [edge for pairs in drawn for edge in pairs]

    first_connected(name, agents, draw, seed, "more rounds")
    return _sequence(name, agents, drawn, weights)


def sequence(
    graphs: Sequence[Topology | nx.Graph[Any]], *, weights: Weights = "auto", name: str = "sequence"
) -> Topology:
    """Your own graphs, used in turn for one step each, starting over after the last one.

    Their nodes are 0..N-1; a graph may leave some out. A single round need not be connected, but
    all rounds together must be.

    >>> t = sequence([nx.Graph([(0, 1)]), nx.Graph([(1, 2)])])
    >>> t.agents, t.period, t.at(1).neighbours(1), t.doubly_stochastic
    (3, 2, (2,), True)
    """
    if not graphs:
        raise BadValue("topology", name, "at least one graph")
    bare = [g.graph if isinstance(g, Topology) else g for g in graphs]
    agents = len({node for graph in bare for node in graph})
    if any(node not in range(agents) for graph in bare for node in graph):
        raise BadValue("topology", name, "graphs whose nodes are 0..N-1")
    rounds: list[Topology] = []
    for given, graph in zip(graphs, bare, strict=True):
        if isinstance(given, Topology) and given.agents == agents and is_auto(weights):
            rounds.append(replace(given, part=True))
            continue
        edges = {(j, i): data.get("weight") for j, i, data in nx.DiGraph(graph).edges(data=True)}
        rounds.append(from_edges(name, agents, edges, weights, part=True))
    return of_phases(name, rounds)


def _sequence(
    name: str, agents: int, rounds: Sequence[sequences.Round], weights: Weights
) -> Topology:
    given: list[Mapping[Edge, float | None]] = [dict(edges) for edges in rounds]
    return of_phases(name, [from_edges(name, agents, edges, weights, True) for edges in given])


def of_phases(name: str, phases: Sequence[Topology]) -> Topology:
    """The union of all edges, with the rounds as phases."""
    graph = digraph(phases[0].agents, joined.from_iterable(p.graph.edges for p in phases))
    if len(phases) == 1:
        return replace(phases[0], name=name, part=False)
    mixing: Any = sum((p.mixing for p in phases[1:]), start=phases[0].mixing)
    schemes = {phase.scheme for phase in phases}
    scheme = schemes.pop() if len(schemes) == 1 else "explicit"
    return Topology(name, graph, mixing / len(phases), scheme, tuple(phases))
