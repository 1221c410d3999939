"""Graphs by name, as a config or the command line writes them: ``circulant:1,5``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import networkx as nx

from parley.errors import BadValue, unknown_name
from parley.graphs.changing import (
    MATCHINGS,
    base,
    matchings,
    of_phases,
    one_peer_exponential,
    sequence,
)
from parley.graphs.checks import check_agents
from parley.graphs.families import (
    chain,
    circulant,
    directed_exponential,
    directed_ring,
    dyck,
    erdos_renyi,
    exponential,
    from_graph,
    full,
    hypercube,
    petersen,
    random_regular,
    ring,
    spanning_tree,
    star,
    torus,
    tree,
    weighted,
)
from parley.graphs.files import from_file, schedule_from_file
from parley.graphs.topology import Topology
from parley.graphs.weights import Weights, is_auto

NAMED_GRAPHS = {"petersen": 10, "dyck": 32}
"""Graphs that exist for only one number of agents."""


def stated_agents(spec: str) -> int | None:
    """How many agents a spec states by itself, if it does.

    >>> stated_agents("torus:2x5"), stated_agents("spanning-tree:torus:3x3"), stated_agents("ring")
    (10, 9, None)
    >>> stated_agents("dyck")
    32
    """
    name, _, text = spec.strip().partition(":")
    if name == "spanning-tree":
        return stated_agents(_read_inner(text)) if text else None
    if name in ("file", "schedule") or (name == "torus" and text):
        return parse(spec).agents
    return NAMED_GRAPHS.get(name)


@dataclass(frozen=True)
class _Family:
    example: str
    read: Callable[[str], Any]  # parses the text after the colon; ValueError if it cannot
    build: Callable[
        [int, Any, int, Weights], Topology
    ]  # agents, the parsed arguments, seed, weights


def _plain(name: str, build: Callable[..., Topology]) -> _Family:
    def read(text: str) -> None:
        if text:
            raise ValueError("takes no arguments")

    return _Family(name, read, lambda n, _, seed, weights: build(n, weights=weights))


def _read_shape(text: str) -> tuple[int, int] | None:
    if not text:
        return None
    rows, columns = map(int, text.split("x"))
    return rows, columns


def _read_inner(text: str) -> str:
    if not text:
        raise ValueError("of which graph?")
    while text.startswith("spanning-tree:"):  # of a tree: that tree
        text = text.removeprefix("spanning-tree:")
    return text


_FAMILIES: Mapping[str, _Family] = {
    "ring": _plain("ring", ring),
    "directed-ring": _plain("directed-ring", directed_ring),
    "chain": _plain("chain", chain),
    "torus": _Family(
        "torus or torus:2x5",
        _read_shape,
        lambda n, shape, seed, weights: torus(shape or n, weights=weights),
    ),
    "circulant": _Family(
        "circulant:1,5",
        lambda text: [int(offset) for offset in text.split(",")],
        lambda n, offsets, seed, weights: circulant(n, offsets, weights=weights),
    ),
    "exponential": _plain("exponential", exponential),
    "full": _plain("full", full),
    "star": _plain("star", star),
    "hypercube": _plain("hypercube", hypercube),
    "petersen": _plain("petersen", petersen),
    "dyck": _plain("dyck", dyck),
    "tree": _Family(
        "tree:2",
        int,
        lambda n, children, seed, weights: tree(n, children, weights=weights),
    ),
    "spanning-tree": _Family(
        "spanning-tree:torus",
        _read_inner,
        lambda n, spec, seed, weights: spanning_tree(parse(spec, n, seed=seed), weights=weights),
    ),
    "directed-exponential": _plain("directed-exponential", directed_exponential),
    "random-regular": _Family(
        "random-regular:3",
        int,
        lambda n, degree, seed, weights: random_regular(n, degree, seed, weights=weights),
    ),
    "erdos-renyi": _Family(
        "erdos-renyi:0.5",
        float,
        lambda n, p, seed, weights: erdos_renyi(n, p, seed, weights=weights),
    ),
    "one-peer-exponential": _plain("one-peer-exponential", one_peer_exponential),
    "base": _Family(
        "base:1",
        int,
        lambda n, degree, seed, weights: base(n, degree, weights=weights),
    ),
    "matchings": _Family(
        "matchings or matchings:32",
        lambda text: int(text) if text else MATCHINGS,
        lambda n, rounds, seed, weights: matchings(n, rounds, seed, weights=weights),
    ),
}
EXAMPLES: tuple[str, ...] = (
    *(f.example for f in _FAMILIES.values()),
    "file:graph.txt",
    "schedule:rounds.txt",
)
"""How each kind of topology is written in a config."""


def parse(
    spec: str | nx.Graph[Any] | Topology | Sequence[Topology | nx.Graph[Any]],
    agents: int | None = None,
    weights: Weights = "auto",
    seed: int = 0,
) -> Topology:
    """The topology for a spec, a networkx graph, a topology or a list of graphs.

    "auto" keeps the weights that come with a file, graph or topology; anything else replaces them.

    >>> parse("circulant:1,5", 20).degrees[0], parse("torus:2x5").agents
    (4, 10)
    >>> parse("rng", 5)
    Traceback (most recent call last):
    parley.errors.BadValue: topology: 'rng' is not valid (did you mean 'ring'?); valid: ...
    """
    if agents is not None:
        check_agents(agents)
    if isinstance(spec, str):
        topology = _parse_text(spec, agents, weights, seed)
    elif isinstance(spec, Topology):
        topology = spec if is_auto(weights) else _reweighted(spec, weights)
    elif isinstance(spec, nx.Graph):
        topology = from_graph(spec, weights=weights)
    elif isinstance(spec, list | tuple):
        topology = sequence(spec, weights=weights)
    else:
        raise BadValue("topology", spec, "a spec such as 'ring', a networkx graph or a Topology")
    if agents is not None and topology.agents != agents:
        because = f"topology {topology.name!r} has {topology.agents} agents"
        raise BadValue("agents", agents, str(topology.agents), because)
    return topology


def _parse_text(spec: str, agents: int | None, weights: Weights, seed: int) -> Topology:
    name, _, text = spec.strip().partition(":")
    if name == "file":
        return from_file(text, weights=weights)
    if name == "schedule":
        return schedule_from_file(text, weights=weights)
    if name not in _FAMILIES:
        raise unknown_name("topology", name, [*_FAMILIES, "file", "schedule"])
    family = _FAMILIES[name]
    try:
        arguments = family.read(text)
    except ValueError:
        raise BadValue("topology", spec, family.example) from None
    if agents is None:
        if isinstance(arguments, tuple):
            agents = arguments[0] * arguments[1]  # torus:2x5 states it
        elif name in NAMED_GRAPHS:
            agents = NAMED_GRAPHS[name]
        else:
            raise BadValue("agents", None, f"a number of agents for topology {spec!r}")
    return family.build(agents, arguments, seed, weights)


def _reweighted(topology: Topology, weights: Weights) -> Topology:
    """The same graphs with other weights."""
    if not topology.phases:
        return weighted(topology.name, topology.graph, weights)
    made = [weighted(topology.name, p.graph, weights, part=True) for p in topology.phases]
    return of_phases(topology.name, made)
