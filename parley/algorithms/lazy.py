"""What D² and its relatives share: gossip that is lazy enough for every symmetric W.

They take the differences between agents' data out of their steps by what earlier averagings have
changed, so that W must not change, and (1 - γ) I + γ W must have no eigenvalue of -1/3 or less. γ
`gamma`, λ `weight_decay`.
"""

from abc import ABC

from pydantic import Field

from parley.algorithms.base import MOST, Algorithm
from parley.errors import BadValue
from parley.graphs import Topology


class LazyGossip(Algorithm, ABC):
    """An exact method on a graph that stays the same."""

    needs = "symmetric"
    static = True

    gamma: float = Field(0.5, gt=0, le=1)
    """γ, the averaging rate. 0.5 works with every symmetric W; some graphs allow more."""
    weight_decay: float = Field(0.0, ge=0, le=MOST)
    """λ: adds λx to the gradient."""

    def highest_rate(self, topology: Topology) -> float:
        """A hundredth below the limit."""
        return min(1.0, 0.99 * _limit(topology))

    def check(self, topology: Topology) -> None:
        """Also refuses a γ for which the smallest eigenvalue is not above -1/3."""
        super().check(topology)
        most = _limit(topology)
        if self.gamma >= most - 1e-9:
            least = 1 - self.gamma * (1 - topology.lambda_min)
            because = f"{self.name} needs (1 - γ) I + γ W to have eigenvalues above -1/3, "
            because += f"here {least:.4g}"
            raise BadValue("gamma", self.gamma, f"below {most:.4g} on {topology.name}", because)


def _limit(topology: Topology) -> float:
    """The γ at which the smallest eigenvalue of (1 - γ) I + γ W is -1/3."""
    return (4 / 3) / (1 - topology.lambda_min) if topology.lambda_min < 1 else float("inf")
