"""The table of algorithms: one file each, one row each."""

from typing import Any

from pydantic import ValidationError

from parley.algorithms.adagossip import AdaGossip
from parley.algorithms.base import AS_RUN, Algorithm
from parley.algorithms.beer import BEER
from parley.algorithms.central import Central
from parley.algorithms.cga import CGA
from parley.algorithms.choco import CHOCO
from parley.algorithms.compcga import CompCGA
from parley.algorithms.compngc import CompNGC
from parley.algorithms.compose import PARTS, compose
from parley.algorithms.d2 import D2
from parley.algorithms.decentlam import DecentLaM
from parley.algorithms.deepsqueeze import DeepSqueeze
from parley.algorithms.dmsgd import DMSGD
from parley.algorithms.dpsgd import DPSGD
from parley.algorithms.fedavg import FedAvg
from parley.algorithms.gut import GUT
from parley.algorithms.momentumtracking import MomentumTracking
from parley.algorithms.ngc import NGC
from parley.algorithms.qgm import QGM
from parley.algorithms.quantized import Quantized
from parley.algorithms.relaysgd import RelaySGD
from parley.algorithms.sgp import SGP
from parley.algorithms.skewscout import SkewScout
from parley.algorithms.sparsepush import SparsePush
from parley.algorithms.swarmsgd import SwarmSGD
from parley.algorithms.tracking import GradientTracking
from parley.errors import BadValue, first_error, unknown_name

__all__ = [
    "ALGORITHMS",
    "AS_RUN",
    "BEER",
    "CGA",
    "CHOCO",
    "D2",
    "DMSGD",
    "DPSGD",
    "GUT",
    "NGC",
    "PARTS",
    "QGM",
    "SGP",
    "AdaGossip",
    "Algorithm",
    "Central",
    "CompCGA",
    "CompNGC",
    "DecentLaM",
    "DeepSqueeze",
    "FedAvg",
    "GradientTracking",
    "MomentumTracking",
    "Quantized",
    "RelaySGD",
    "SkewScout",
    "SparsePush",
    "SwarmSGD",
    "build",
    "compose",
    "find",
]

ALGORITHMS: dict[str, type[Algorithm]] = {
    algorithm.name: algorithm
    for algorithm in (
        *(DPSGD, NGC, CompNGC, CGA, CompCGA),
        *(DMSGD, QGM, DecentLaM, D2, GUT),
        *(GradientTracking, MomentumTracking, RelaySGD),
        *(Quantized, CHOCO, DeepSqueeze, AdaGossip, BEER),
        *(SGP, SparsePush),
        *(SwarmSGD, SkewScout, FedAvg, Central),
    )
}


def find(name: str) -> type[Algorithm]:
    """The algorithm of that name, or that is put together from the parts joined by ``+`` in it.

    >>> find("ngc").title, find("ngc+qgm").title
    ('NGC', 'NGC + QGM')
    """
    if name in ALGORITHMS:
        return ALGORITHMS[name]
    if "+" in name:
        return compose(name)
    raise unknown_name("algorithm", name, ALGORITHMS)


def build(name: str, options: dict[str, Any]) -> Algorithm:
    """The algorithm of that name with those hyper-parameters.

    >>> build("ngc", {"alpha": 0.5}).label
    'NGC α=0.5'
    """
    algorithm = find(name)
    for option in options.keys() - algorithm.model_fields.keys():
        having = [a for a, c in ALGORITHMS.items() if option in c.model_fields]
        few = [*having[:5], "…"] if len(having) > 6 else having
        because = f"{name} has no such option" + (f", {', '.join(few)} have" if few else "")
        raise BadValue(option, options[option], ", ".join(algorithm.model_fields), because)
    try:
        return algorithm(**options)
    except ValidationError as error:
        raise first_error(error, algorithm.model_fields) from None
