"""Which worker hosts which agents, and the index lists that follow from it.

Axes: A agents hosted here, I their incoming edges, O their outgoing edges.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from parley.errors import BadValue
from parley.topology import Topology


@dataclass(frozen=True)
class Placement:
    """The seat of every agent: ``worker_of[i]`` hosts agent i; this process is worker `here`."""

    topology: Topology
    worker_of: tuple[int, ...]
    here: int = 0

    def __post_init__(self) -> None:
        if len(self.worker_of) != self.topology.agents:
            raise BadValue(
                "placement",
                self.worker_of,
                f"a worker for each of the {self.topology.agents} agents",
            )
        if min(self.worker_of) < 0:
            raise BadValue("placement", self.worker_of, "workers numbered from 0")
        empty = set(range(self.workers)) - set(self.worker_of)
        if empty:
            raise BadValue("placement", self.worker_of, f"an agent for worker {min(empty)} too")
        if self.here not in range(self.workers):
            raise BadValue("here", self.here, f"0 to {self.workers - 1}")

    @property
    def workers(self) -> int:
        """How many processes take part."""
        return max(self.worker_of) + 1

    @cached_property
    def agents(self) -> tuple[int, ...]:
        """Agents hosted here: axis A."""
        return tuple(i for i, w in enumerate(self.worker_of) if w == self.here)

    @cached_property
    def row(self) -> dict[int, int]:
        """Agent to its row on axis A."""
        return {agent: row for row, agent in enumerate(self.agents)}

    @cached_property
    def incoming(self) -> tuple[int, ...]:
        """Edges (numbers in ``topology.edges``) that end here: axis I."""
        return tuple(e for e, (_, dst) in enumerate(self.topology.edges) if dst in self.row)

    @cached_property
    def outgoing(self) -> tuple[int, ...]:
        """Edges that start here: axis O."""
        return tuple(e for e, (src, _) in enumerate(self.topology.edges) if src in self.row)


def spread(topology: Topology, workers: int, here: int = 0) -> Placement:
    """Agents in consecutive blocks, as even as their number allows.

    >>> from parley.topology import ring
    >>> spread(ring(5), 2).worker_of
    (0, 0, 0, 1, 1)
    """
    if not 1 <= workers <= topology.agents:
        raise BadValue("workers", workers, f"1 to {topology.agents}", "every worker hosts an agent")
    blocks: Sequence[np.ndarray] = np.array_split(np.arange(topology.agents), workers)
    return Placement(topology, tuple(w for w, b in enumerate(blocks) for _ in b), here)
