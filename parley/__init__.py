"""Parley: peers with different, private data train one model together, with no server.

Names are imported when they are first used: torch takes seconds to load, and not every user of the
package needs it.
"""

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from parley.process import loading, quiet_torch
from parley.version import __version__

quiet_torch()

if TYPE_CHECKING:
    from parley.algorithms import (
        BEER,
        CGA,
        CHOCO,
        D2,
        DMSGD,
        DPSGD,
        GUT,
        KGT,
        LED,
        NGC,
        QGM,
        SGP,
        AdaGossip,
        Algorithm,
        Central,
        CompCGA,
        CompNGC,
        DecentLaM,
        DeepSqueeze,
        DiLoCo,
        ExactDiffusion,
        FedAvg,
        GradientTracking,
        MomentumTracking,
        ProxSkip,
        Quantized,
        RelaySGD,
        SkewScout,
        SparsePush,
        SwarmSGD,
    )
    from parley.algorithms.combinations import compose
    from parley.api.peers import join
    from parley.api.runs import LoadedRun, Result, load, train
    from parley.api.sweeps import Comparison, Tuning, compare, tune
    from parley.errors import (
        BadValue,
        Diverged,
        ParleyError,
    )
    from parley.experiment import Experiment
    from parley.graphs import (
        Topology,
        base,
        chain,
        circulant,
        directed_exponential,
        directed_ring,
        dyck,
        erdos_renyi,
        exponential,
        from_file,
        from_graph,
        full,
        hypercube,
        matchings,
        one_peer_exponential,
        petersen,
        random_regular,
        ring,
        sequence,
        spanning_tree,
        star,
        torus,
        tree,
    )

__all__ = [
    "BEER",
    "CGA",
    "CHOCO",
    "D2",
    "DMSGD",
    "DPSGD",
    "GUT",
    "KGT",
    "LED",
    "NGC",
    "QGM",
    "SGP",
    "AdaGossip",
    "Algorithm",
    "BadValue",
    "Central",
    "CompCGA",
    "CompNGC",
    "Comparison",
    "DecentLaM",
    "DeepSqueeze",
    "DiLoCo",
    "Diverged",
    "ExactDiffusion",
    "Experiment",
    "FedAvg",
    "GradientTracking",
    "LoadedRun",
    "MomentumTracking",
    "ParleyError",
    "ProxSkip",
    "Quantized",
    "RelaySGD",
    "Result",
    "SkewScout",
    "SparsePush",
    "SwarmSGD",
    "Topology",
    "Tuning",
    "__version__",
    "base",
    "chain",
    "circulant",
    "compare",
    "compose",
    "directed_exponential",
    "directed_ring",
    "dyck",
    "erdos_renyi",
    "exponential",
    "from_file",
    "from_graph",
    "full",
    "hypercube",
    "join",
    "load",
    "matchings",
    "one_peer_exponential",
    "petersen",
    "random_regular",
    "ring",
    "sequence",
    "spanning_tree",
    "star",
    "torus",
    "train",
    "tree",
    "tune",
]

_HOMES = {
    "parley.algorithms": (
        "BEER",
        "CGA",
        "CHOCO",
        "D2",
        "DMSGD",
        "DPSGD",
        "GUT",
        "KGT",
        "LED",
        "NGC",
        "QGM",
        "SGP",
        "AdaGossip",
        "Algorithm",
        "Central",
        "CompCGA",
        "CompNGC",
        "DecentLaM",
        "DeepSqueeze",
        "DiLoCo",
        "ExactDiffusion",
        "FedAvg",
        "GradientTracking",
        "MomentumTracking",
        "ProxSkip",
        "Quantized",
        "RelaySGD",
        "SkewScout",
        "SparsePush",
        "SwarmSGD",
        "compose",
    ),
    "parley.api.runs": ("LoadedRun", "Result", "load", "train"),
    "parley.api.sweeps": ("Comparison", "Tuning", "compare", "tune"),
    "parley.api.peers": ("join",),
    "parley.errors": (
        "BadValue",
        "Diverged",
        "ParleyError",
    ),
    "parley.experiment": ("Experiment",),
    "parley.graphs": (
        "Topology",
        "base",
        "chain",
        "circulant",
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
        "petersen",
        "random_regular",
        "ring",
        "sequence",
        "spanning_tree",
        "star",
        "torus",
        "tree",
    ),
}
"""Where each name is defined."""
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name in _HOME_OF:
        with loading():
            found = getattr(import_module(_HOME_OF[name]), name)
        globals()[name] = found
        return found
    if not name.startswith("_") and find_spec(f"{__name__}.{name}"):
        return import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
