"""Parley: peers with different, private data train one model together, with no server."""

import os

# Torch reports a lost connection with its own call stack before Parley says in words what it means.
# The setting is read when torch is imported.
os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")

from parley.algorithms import CGA, DPSGD, NGC, Algorithm, CompCGA, CompNGC, compose
from parley.api import Result, train
from parley.errors import BadValue, ParleyError
from parley.experiment import Experiment
from parley.graphs import (
    Topology,
    base,
    chain,
    circulant,
    directed_exponential,
    directed_ring,
    erdos_renyi,
    exponential,
    from_file,
    from_graph,
    full,
    hypercube,
    matchings,
    one_peer_exponential,
    random_regular,
    ring,
    sequence,
    spanning_tree,
    star,
    torus,
    tree,
)

__all__ = [
    "CGA",
    "DPSGD",
    "NGC",
    "Algorithm",
    "BadValue",
    "CompCGA",
    "CompNGC",
    "Experiment",
    "ParleyError",
    "Result",
    "Topology",
    "__version__",
    "base",
    "chain",
    "circulant",
    "compose",
    "directed_exponential",
    "directed_ring",
    "erdos_renyi",
    "exponential",
    "from_file",
    "from_graph",
    "full",
    "hypercube",
    "matchings",
    "one_peer_exponential",
    "random_regular",
    "ring",
    "sequence",
    "spanning_tree",
    "star",
    "torus",
    "train",
    "tree",
]
