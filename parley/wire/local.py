"""All agents in one process, where a message is an index away."""

from collections.abc import Callable, Sequence

from torch import Tensor

from parley.wire.codec import Codec
from parley.wire.edges import index
from parley.wire.transport import Arrivals, Kind, Transport, select


class Local(Transport):
    """All agents in this process."""

    def _forward(self, wire_AB: Tensor, kind: Kind, codec: Codec, step: int) -> Arrivals:
        return Arrivals(wire_AB, self.edges.arrived, None)

    def _backward(
        self, wire_EB: Tensor, round_: int, kind: Kind, codec: Codec, step: int
    ) -> Callable[[], Tensor]:
        # All edges are both incoming and outgoing here, in the same order.
        return lambda: wire_EB

    def _along(
        self, edges: Sequence[int], wire_AB: Tensor, kind: Kind, codec: Codec, step: int
    ) -> Tensor:
        return select(wire_AB, index(self.topology.edges[e][0] for e in edges))

    def gather(self, values_A: Tensor) -> Tensor:
        """All rows are here."""
        return values_A

    def each(self, values: Tensor) -> list[Tensor]:
        """There is one worker."""
        return [values]

    def broadcast(self, values: Tensor, agent: int) -> Tensor:
        """There is one worker."""
        return values
