"""Who talks to whom, with which weights, and when."""

from parley.graphs.changing import MATCHINGS, base, matchings, one_peer_exponential, sequence
from parley.graphs.checks import MOST_AGENTS
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
    torus_shape,
    tree,
)
from parley.graphs.files import from_file, to_text
from parley.graphs.matrices import Edge
from parley.graphs.names import EXAMPLES, parse, stated_agents
from parley.graphs.topology import DENSE, Property, Topology, describe

__all__ = [
    "DENSE",
    "EXAMPLES",
    "MATCHINGS",
    "MOST_AGENTS",
    "Edge",
    "Property",
    "Topology",
    "base",
    "chain",
    "circulant",
    "describe",
    "directed_exponential",
    "directed_ring",
    "dyck",
    "erdos_renyi",
    "exponential",
    "from_file",
    "from_graph",
    "full",
    "hypercube",
    "matchings",
    "one_peer_exponential",
    "parse",
    "petersen",
    "random_regular",
    "ring",
    "sequence",
    "spanning_tree",
    "star",
    "stated_agents",
    "to_text",
    "torus",
    "torus_shape",
    "tree",
]
