"""Theorem 1's step sizes and constants.

Theorem 1 needs a step size η with

    (1 - β)² / (βL)  <  η  ≤  [√(4s² + 6s(1 - β)²) - 2s] / (6L),    s = 1 - √ρ,

and there is none: the upper end is at most (1 - β)² / (4L), because √(a² + b) ≤ a + b/(2a), while
the lower end is at least (1 - β)² / L, four times that. The lower end comes from requiring C1 > 0,
by which the bound is divided.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

from parley.errors import BadValue
from parley.graphs import Topology

WHY_EMPTY = (
    "empty for every graph, L and β: the upper end is at most (1-β)²/(4L), "
    "the lower end at least (1-β)²/L"
)


def root_rho(topology: Topology) -> float:
    """√ρ: the second largest modulus of an eigenvalue of the weights.

    >>> from parley.graphs import full, ring
    >>> round(root_rho(ring(5)), 4), root_rho(full(4))
    (0.5393, 0.0)
    """
    return 1 - topology.spectral_gap


@dataclass(frozen=True)
class StepSizes:
    """The interval of Theorem 1.

    >>> from parley.graphs import ring
    >>> sizes = StepSizes.of(ring(10), smoothness=1.0, momentum=0.9)
    >>> print(f"{sizes.lower:.5f} {sizes.upper:.5f} {sizes.empty}")
    0.01111 0.00243 True
    """

    lower: float
    """η must be larger."""
    upper: float
    """η must not be larger."""
    cap: float
    """A limit on the upper end for any graph: (1 - β)² / (4L)."""

    @classmethod
    def of(cls, topology: Topology, smoothness: float, momentum: float) -> "StepSizes":
        """For a graph, L and β."""
        _check(smoothness, momentum)
        square, s = (1 - momentum) ** 2, 1 - root_rho(topology)
        upper = (math.sqrt(4 * s * s + 6 * s * square) - 2 * s) / (6 * smoothness)
        lower = square / (momentum * smoothness) if momentum else math.inf
        return cls(lower, upper, square / (4 * smoothness))

    @property
    def empty(self) -> bool:
        """Whether no step size satisfies it."""
        return self.lower >= self.upper


class Constants(NamedTuple):
    """C1 to C5 of Theorem 1. C2 to C5 are divided by C1, which has to be positive."""

    c1: float
    c2: float
    c3: float
    c4: float
    c5: float

    @classmethod
    def of(cls, lr: float, smoothness: float, momentum: float) -> "Constants":
        """For η, L and β (above 0: C1 and C3 divide by it).

        >>> Constants.of(lr=0.1, smoothness=1.0, momentum=0.9).c1 > 0  # above the upper end, too
        True
        """
        _check(smoothness, momentum)
        if not lr > 0:
            raise BadValue("lr", lr, "a number above 0")
        if not momentum:
            raise BadValue("momentum", momentum, "a number above 0", "the constants divide by it")
        η, L, β = lr, smoothness, momentum
        rest = 1 - β
        c1 = (η / rest - rest / (β * L)) / 2
        if not c1:
            return cls(0.0, math.inf, math.inf, math.inf, math.inf)
        return cls(
            c1,
            (β * L * η**2 / (2 * rest**3) + η**2 * L / rest**2) / c1,
            rest * L / (2 * β) / c1,
            η**2 * β * L / (2 * rest**3) / c1,
            η * L**2 / (2 * rest) / c1,
        )


def _check(smoothness: float, momentum: float) -> None:
    if not 0 < smoothness < math.inf:
        raise BadValue("smoothness", smoothness, "a number above 0")
    if not 0 <= momentum < 1:
        raise BadValue("momentum", momentum, "a number from 0 to below 1")
