"""Parley: peers with different, private data train one model together, with no server."""

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

# Torch reports a lost connection with its own call stack before Parley says in words what it means.
# The setting is read when torch is imported.
os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")

from parley.version import __version__

if TYPE_CHECKING:
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

# Imported when they are first asked for: the command line's help and the dashboard need no torch.
_HOMES = {
    "CGA": "parley.algorithms",
    "DPSGD": "parley.algorithms",
    "NGC": "parley.algorithms",
    "Algorithm": "parley.algorithms",
    "CompCGA": "parley.algorithms",
    "CompNGC": "parley.algorithms",
    "compose": "parley.algorithms",
    "Result": "parley.api",
    "train": "parley.api",
    "BadValue": "parley.errors",
    "ParleyError": "parley.errors",
    "Experiment": "parley.experiment",
    "Topology": "parley.graphs",
    "base": "parley.graphs",
    "chain": "parley.graphs",
    "circulant": "parley.graphs",
    "directed_exponential": "parley.graphs",
    "directed_ring": "parley.graphs",
    "erdos_renyi": "parley.graphs",
    "exponential": "parley.graphs",
    "from_file": "parley.graphs",
    "from_graph": "parley.graphs",
    "full": "parley.graphs",
    "hypercube": "parley.graphs",
    "matchings": "parley.graphs",
    "one_peer_exponential": "parley.graphs",
    "random_regular": "parley.graphs",
    "ring": "parley.graphs",
    "sequence": "parley.graphs",
    "spanning_tree": "parley.graphs",
    "star": "parley.graphs",
    "torus": "parley.graphs",
    "tree": "parley.graphs",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'parley' has no attribute {name!r}")
    found = getattr(import_module(_HOMES[name]), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


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
