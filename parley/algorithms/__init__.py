"""The table of algorithms: one file each, one row each."""

from typing import Any

from pydantic import ValidationError

from parley.algorithms.adagossip import AdaGossip, AdaptiveGossip
from parley.algorithms.adam import Adam, AdamW
from parley.algorithms.base import AS_RUN, Algorithm, CodecSpec, Stepped
from parley.algorithms.beer import BEER
from parley.algorithms.central import Central
from parley.algorithms.cga import CGA, Projection
from parley.algorithms.choco import CHOCO, DifferenceGossip
from parley.algorithms.clip import Clip
from parley.algorithms.combinations import PARTS, PLAIN, Recipe, compose, part_kind
from parley.algorithms.compcga import CompCGA, CompressedProjection
from parley.algorithms.compngc import CompNGC, CompressedClustering
from parley.algorithms.d2 import D2
from parley.algorithms.decentlam import DecentLaM
from parley.algorithms.deepsqueeze import CompensatedGossip, DeepSqueeze
from parley.algorithms.diloco import DiLoCo
from parley.algorithms.dmsgd import DMSGD
from parley.algorithms.dpsgd import DPSGD
from parley.algorithms.exactdiffusion import ExactDiffusion
from parley.algorithms.fedavg import FedAvg
from parley.algorithms.gut import GUT
from parley.algorithms.kgt import KGT
from parley.algorithms.led import LED
from parley.algorithms.lion import Lion
from parley.algorithms.momentumtracking import MomentumTracking
from parley.algorithms.ngc import NGC, Clustering
from parley.algorithms.parts import SGD, Gossip, Own, Part
from parley.algorithms.proxskip import ProxSkip
from parley.algorithms.qgm import QGM, QuasiGlobal
from parley.algorithms.quantized import Quantized
from parley.algorithms.recipe import Combination
from parley.algorithms.relaysgd import RelaySGD
from parley.algorithms.sam import SharpnessAware
from parley.algorithms.sgp import SGP, PushSum
from parley.algorithms.skewscout import SkewScout
from parley.algorithms.sparsepush import SparsePush
from parley.algorithms.swarmsgd import SwarmSGD
from parley.algorithms.tracking import GradientTracking, Tracking
from parley.errors import BadValue, unknown_name
from parley.user_code import is_code, module_of
from parley.validation import first_error

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
    "KGT",
    "LED",
    "NGC",
    "PARTS",
    "QGM",
    "SGD",
    "SGP",
    "WITH_OPTIONS",
    "AdaGossip",
    "Adam",
    "AdamW",
    "AdaptiveGossip",
    "Algorithm",
    "AlgorithmKind",
    "Central",
    "Clip",
    "Clustering",
    "CodecSpec",
    "Combination",
    "CompCGA",
    "CompNGC",
    "CompensatedGossip",
    "CompressedClustering",
    "CompressedProjection",
    "DecentLaM",
    "DeepSqueeze",
    "DiLoCo",
    "DifferenceGossip",
    "ExactDiffusion",
    "FedAvg",
    "Gossip",
    "GradientTracking",
    "Lion",
    "MomentumTracking",
    "Own",
    "Part",
    "Projection",
    "ProxSkip",
    "PushSum",
    "Quantized",
    "QuasiGlobal",
    "Recipe",
    "RelaySGD",
    "SharpnessAware",
    "SkewScout",
    "SparsePush",
    "Stepped",
    "SwarmSGD",
    "Tracking",
    "build",
    "compose",
    "find",
    "is_own",
    "make",
    "part_kind",
]

AlgorithmKind = type[Algorithm]
"""The class of the algorithms of one name."""

ALGORITHMS: dict[str, AlgorithmKind] = {
    algorithm.name: algorithm
    for algorithm in (
        *(DPSGD, NGC, CompNGC, CGA, CompCGA),
        *(DMSGD, QGM, DecentLaM, D2, GUT),
        *(GradientTracking, MomentumTracking, RelaySGD),
        *(Quantized, CHOCO, DeepSqueeze, AdaGossip, BEER),
        *(SGP, SparsePush),
        *(KGT, ExactDiffusion, LED, ProxSkip, DiLoCo),
        *(SwarmSGD, SkewScout, FedAvg, Central),
    )
}


WITH_OPTIONS: dict[str, AlgorithmKind | type[Part]] = ALGORITHMS | {
    word: part for word, part in PARTS.items() if word not in ALGORITHMS
}
"""All that has hyper-parameters: the algorithms, and the parts that are in none of them."""


def find(name: str) -> AlgorithmKind:
    """The algorithm with that name, or the combination of its parts, joined by ``+``.

    >>> find("ngc").title, find("ngc+qgm").title
    ('NGC', 'NGC + QGM')
    """
    if name in ALGORITHMS:
        return ALGORITHMS[name]
    if "+" in name or name in PARTS or is_own(name):
        _check_parts([word.strip() for word in name.split("+")])
        return compose(name)
    raise unknown_name("algorithm", name, ALGORITHMS)


def is_own(word: str) -> bool:
    """Whether a word in a name refers to a class of the user's own.

    >>> is_own("mine:Trimmed"), is_own("ngc:alpha")
    (True, False)
    """
    return is_code(word) and module_of(word) not in WITH_OPTIONS


def _check_parts(words: list[str]) -> None:
    """Refuses algorithms that are not parts of others."""
    for word in words:
        kind = ALGORITHMS.get(word)
        if kind is None or word in (*PARTS, PLAIN):
            continue
        because = f"{word} is an algorithm of its own, not a part"
        valid = f"{word} alone, or a combination of {', '.join(PARTS)}"
        if issubclass(kind, Combination):
            same = "+".join(part.word for part in kind.made_of)
            because = f"{word} is the name of a whole recipe, {same}"
            valid = "+".join(same if w == word else w for w in words)
        raise BadValue("algorithm", "+".join(words), valid, because)


def build(name: str, options: dict[str, Any]) -> Algorithm:
    """The algorithm with that name and those hyper-parameters.

    >>> build("ngc", {"alpha": 0.5}).label
    'NGC α=0.5'
    """
    return make(find(name), options)


def make(kind: AlgorithmKind, options: dict[str, Any]) -> Algorithm:
    """The algorithm of that kind with those hyper-parameters, which are checked."""
    try:
        return kind(**options)
    except ValidationError as error:
        raise first_error(error, kind.options()) from None
