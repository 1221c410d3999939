"""Messages between agents over the links of peers: the third transport.

Axes: A agents hosted here, R rows in which messages lie, H bytes of a header, B of a message.
"""

import numpy as np
import torch
from torch import Tensor

from parley.errors import ParleyError
from parley.peers.group import Group
from parley.wire.clock import Clock
from parley.wire.edges import Route
from parley.wire.guard import Guard
from parley.wire.placement import Placement
from parley.wire.spread import Request, Spread


class _Parcel:
    """A parcel that is awaited from one peer."""

    def __init__(self, name: str, group: Group, worker: int, inbox_RB: Tensor) -> None:
        self._name = name
        self._inbox = _bytes(inbox_RB)
        self._take = group.expect(worker, self._inbox)

    def wait(self) -> None:
        """Puts it where it belongs, unless it is there already."""
        body, inbox = self._take(), self._inbox
        if len(body) != len(inbox):
            raise ParleyError(
                f"peers: {self._name} sent {len(body)} bytes of messages, "
                f"{len(inbox)} were expected"
            )
        if body is not inbox:
            inbox[:] = body


class PeerTransport(Spread):
    """Agents spread over peers."""

    alone_on_host = True

    def __init__(
        self,
        placement: Placement,
        clock: Clock | None,
        group: Group,
        guard: Guard | None = None,
    ) -> None:
        super().__init__(placement, clock, guard)
        self.group = group
        if (placement.workers, placement.here) != (len(group.names), group.here):
            raise ParleyError(f"peers: {placement.workers} are needed, {len(group.names)} are here")

    def _like(
        self, placement: Placement, clock: Clock | None, guard: Guard | None
    ) -> "PeerTransport":
        other = PeerTransport(placement, clock, self.group, guard)
        other.sent = self.sent
        return other

    def worker_name(self, worker: int) -> str:
        """A peer's own name."""
        return self.group.names[worker]

    def _move(
        self, route: Route, headers_RH: Tensor, wire_RB: Tensor, inbox_RB: Tensor
    ) -> list[Request]:
        headers = headers_RH.numpy()
        for worker, part in route.to:
            rows = zip(headers[part], wire_RB[part], strict=True)
            self.group.send(
                worker, [b for head, row in rows for b in (head.tobytes(), _bytes(row))]
            )
        return [
            _Parcel(self.worker_name(worker), self.group, worker, inbox_RB[part])
            for worker, part in route.of
        ]

    def gather(self, values_A: Tensor) -> Tensor:
        """The rows of all agents, in agent order, on every worker."""
        self._settle()
        worker_of = self.placement.worker_of
        all_rows = values_A.new_empty(len(worker_of), *values_A.shape[1:])
        for worker, said in enumerate(self.group.gather(_copied(values_A))):
            agents = [a for a, w in enumerate(worker_of) if w == worker]
            rows = self._read(worker, said, all_rows[: len(agents)])
            all_rows[agents] = rows.to(values_A.device)
        return all_rows

    def each(self, values: Tensor) -> list[Tensor]:
        """Every worker's values, in the order of their numbers, on every worker."""
        self._settle()
        every = enumerate(self.group.gather(_copied(values)))
        return [self._read(worker, said, values).to(values.device) for worker, said in every]

    def broadcast(self, values: Tensor, agent: int) -> Tensor:
        """The values of the worker that hosts this agent, on every worker."""
        self._settle()
        source = self.placement.worker_of[agent]
        own = _copied(values) if source == self.placement.here else None
        said = self.group.broadcast(own, source)
        return self._read(source, said, values).to(values.device)

    def _read(self, worker: int, said: memoryview, like: Tensor) -> Tensor:
        """Numbers of another peer, of the kind and number that this one has as well."""
        if len(said) != like.numel() * like.element_size():
            raise ParleyError(
                f"peers: {self.worker_name(worker)} sent {len(said)} bytes of numbers, "
                f"{like.numel() * like.element_size()} were expected"
            )
        raw = torch.from_numpy(np.frombuffer(said, np.uint8).copy())
        return raw.view(like.dtype).reshape(like.shape)


def _copied(values: Tensor) -> memoryview:
    """For what may be sent, or sent again, when the values have already changed."""
    return _bytes(values.clone())


def _bytes(values: Tensor) -> memoryview:
    whole = values.detach().cpu().contiguous().reshape(-1)
    return whole.view(torch.uint8).numpy().data.cast("B")
