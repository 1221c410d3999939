"""The table of algorithms: one file each, one row each."""

from typing import Any

from pydantic import ValidationError

from parley.algorithms.base import AS_RUN, Algorithm
from parley.algorithms.cga import CGA
from parley.algorithms.compcga import CompCGA
from parley.algorithms.compngc import CompNGC
from parley.algorithms.dpsgd import DPSGD
from parley.algorithms.ngc import NGC
from parley.errors import BadValue, first_error, unknown_name

__all__ = [
    "ALGORITHMS",
    "AS_RUN",
    "CGA",
    "DPSGD",
    "NGC",
    "Algorithm",
    "CompCGA",
    "CompNGC",
    "build",
]

ALGORITHMS: dict[str, type[Algorithm]] = {
    algorithm.name: algorithm for algorithm in (DPSGD, NGC, CompNGC, CGA, CompCGA)
}


def build(name: str, options: dict[str, Any]) -> Algorithm:
    """The algorithm of that name with those hyper-parameters.

    >>> build("ngc", {"alpha": 0.5}).label
    'NGC α=0.5'
    """
    if name not in ALGORITHMS:
        raise unknown_name("algorithm", name, ALGORITHMS)
    algorithm = ALGORITHMS[name]
    for option in options.keys() - algorithm.model_fields.keys():
        having = [a for a, c in ALGORITHMS.items() if option in c.model_fields]
        because = f"{name} has no such option" + (f", {', '.join(having)} have" if having else "")
        raise BadValue(option, options[option], ", ".join(algorithm.model_fields), because)
    try:
        return algorithm(**options)
    except ValidationError as error:
        raise first_error(error, algorithm.model_fields) from None
