"""Which worker hosts which agents, and the index lists that follow from it.

Axes: A agents hosted here, I their incoming edges, O their outgoing edges.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from parley.errors import BadValue
from parley.graphs import Topology


@dataclass(frozen=True)
class Placement:
    """Where every agent lives: ``worker_of[i]`` hosts agent i; this process is worker `here`."""

    topology: Topology
    worker_of: tuple[int, ...]
    here: int = 0
    numbers: tuple[int, ...] = ()
    """The experiment's number of each agent on the graph, if some agents are absent."""

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
        """The number of processes that take part."""
        return max(self.worker_of) + 1

    @cached_property
    def agents(self) -> tuple[int, ...]:
        """Agents hosted here: axis A."""
        return tuple(i for i, w in enumerate(self.worker_of) if w == self.here)

    @cached_property
    def hosted(self) -> tuple[int, ...]:
        """The experiment's numbers of the agents hosted here, from which random choices follow."""
        return tuple(self.number(agent) for agent in self.agents)

    def number(self, agent: int) -> int:
        """The experiment's number of an agent on the graph."""
        return self.numbers[agent] if self.numbers else agent

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

    >>> from parley.graphs import ring
    >>> spread(ring(5), 2).worker_of
    (0, 0, 0, 1, 1)
    """
    if not 1 <= workers <= topology.agents:
        raise BadValue(
            "workers", workers, f"1 to {topology.agents}", "every worker must host an agent"
        )
    return Placement(topology, blocks(topology.agents, workers), here)


def blocks(agents: int, workers: int) -> tuple[int, ...]:
    """The worker of each agent, in consecutive blocks."""
    parts: Sequence[np.ndarray] = np.array_split(np.arange(agents), workers)
    return tuple(w for w, b in enumerate(parts) for _ in b)
