"""Agents spread over several workers, whatever fabric carries the bytes between them.

Messages go in one canonical order, each behind a header that is checked on arrival.

Axes: A agents hosted here, E some edges, R rows in which messages lie, H bytes of a header, B bytes
of a message.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from parley.errors import ParleyError
from parley.fabric.base import Fabric, Pending, tensor, view
from parley.graphs import Edge
from parley.wire.clock import Clock
from parley.wire.codec import Codec
from parley.wire.edges import Route, index
from parley.wire.guard import Arrived, Guard
from parley.wire.local import Local
from parley.wire.placement import Placement
from parley.wire.transport import (
    HEADER,
    KINDS,
    MAGIC,
    VERSION,
    Arrivals,
    Kind,
    Transfer,
    Transport,
    select,
)


class _Transfer:
    """Messages in transit between workers, while this one does something else."""

    def __init__(
        self,
        requests: Sequence[Pending],
        inbox: Tensor,
        expected: Tensor,
        sender: Callable[[int], str],
        order: Tensor | None = None,
        inspect: Callable[[Tensor], None] | None = None,
    ) -> None:
        """`sender` names whose message a row is; `inspect` sees the messages once they have
        arrived, before anyone uses them."""
        self._requests = list(requests)
        self._inbox_RB = inbox
        self._expected = expected
        self._sender = sender
        self._order = order
        self._inspect = inspect

    @property
    def done(self) -> bool:
        """Whether nothing is in transit any more."""
        return not self._requests

    def wait(self) -> Tensor:
        """What arrived, ``uint8[R, B]``, once everything has arrived and been sent."""
        if self._requests:
            for request in self._requests:
                request.wait()
            self._requests = []
            _check(self._inbox_RB[:, : HEADER.itemsize].cpu(), self._expected, self._sender)
            if self._inspect is not None and len(self._inbox_RB):
                self._inspect(self._inbox_RB[:, HEADER.itemsize :])
        wire_RB = self._inbox_RB[:, HEADER.itemsize :]
        return wire_RB if self._order is None else select(wire_RB, self._order)


class Spread(Transport):
    """Agents spread over the members of a fabric."""

    overlap = True
    """Whether to do something else while messages are in transit; otherwise each is waited for
    where it is sent."""

    def __init__(
        self,
        placement: Placement,
        fabric: Fabric,
        clock: Clock | None = None,
        guard: Guard | None = None,
        sent: dict[Kind, Tensor] | None = None,
    ) -> None:
        super().__init__(placement, clock, guard, sent)
        self.fabric = fabric
        self.alone_on_host = fabric.alone_on_host
        self.trusted = fabric.local
        members = len(fabric.members)
        if placement.workers != members:
            raise ParleyError(f"workers: {placement.workers} are needed, {members} were started")
        if placement.here != fabric.me:
            raise ParleyError(
                f"placement: this is process {fabric.me}, not worker {placement.here}"
            )
        self._out = _Parcels(self.edges.out)
        self._back_of = [_Parcels(route, reply=True) for route in self.edges.back_of]
        self._back_to_others_of = [
            _Parcels(route, reply=True) for route in self.edges.back_to_others_of
        ]
        self._under_way: list[_Transfer] = []

    def _like(self, placement: Placement, clock: Clock | None, guard: Guard | None) -> "Spread":
        return type(self)(placement, self.fabric, clock, guard, self.sent)

    def worker_name(self, worker: int) -> str:
        """What a worker is called in messages."""
        return self.fabric.members[worker].name

    def _forward(self, wire_AB: Tensor, kind: Kind, codec: Codec, step: int) -> Arrivals:
        self._settle()
        transfer = self._start(self._out, wire_AB, kind, codec, step)
        return Arrivals(wire_AB, self.edges.arrived, transfer)

    def _backward(
        self, wire_EB: Tensor, round_: int, kind: Kind, codec: Codec, step: int
    ) -> Callable[[], Tensor]:
        parcels = self._back_of[round_]
        everything = self._swap(parcels, wire_EB, kind, codec, step)
        return lambda: select(everything(), parcels.route.order)

    def _along(
        self, edges: Sequence[int], wire_AB: Tensor, kind: Kind, codec: Codec, step: int
    ) -> Tensor:
        route = self.edges.along(edges)
        wire_RB = self._swap(_Parcels(route), wire_AB, kind, codec, step)()
        return select(wire_RB, route.order)

    def _swap(
        self, parcels: "_Parcels", wire: Tensor, kind: Kind, codec: Codec, step: int
    ) -> Callable[[], Tensor]:
        """Sends messages to the other workers; the result, when called, waits for theirs and
        returns this worker's own messages followed by those that arrived."""
        transfer = self._start(parcels, wire, kind, codec, step)
        if transfer is None:
            return lambda: wire
        return lambda: torch.cat([wire, transfer.wait().to(wire.device)])

    def backward_to_others(
        self, wire_EB: Tensor, round_: int, kind: Kind, codec: Codec, step: int
    ) -> Transfer | None:
        """Replies to other workers only, while this one continues."""
        parcels = self._back_to_others_of[round_]
        return self._start(parcels, wire_EB, kind, codec, step, parcels.route.order)

    def _start(
        self,
        parcels: "_Parcels",
        wire: Tensor,
        kind: Kind,
        codec: Codec,
        step: int,
        order: Tensor | None = None,
    ) -> _Transfer | None:
        """Starts sending messages to the other workers and receiving theirs."""
        route = parcels.route
        if not (route.to or route.of):
            return None

        def stamp(headers: Any) -> Tensor:
            headers["kind"], headers["codec"] = KINDS.index(kind), codec.number
            headers["step"], headers["length"] = step, wire.shape[1]
            return torch.from_numpy(headers.view(np.uint8).reshape(len(headers), HEADER.itemsize))

        leaving = select(wire, route.rows).to(self.fabric.device)
        inbox = leaving.new_empty(len(route.arriving), HEADER.itemsize + leaving.shape[1])
        outbox = torch.cat([stamp(parcels.leaving).to(leaving.device), leaving], 1)
        requests = self.fabric.exchange(
            [(worker, outbox[part]) for worker, part in route.to],
            [(worker, inbox[part]) for worker, part in route.of],
        )
        seen = None
        if self.guard is not None:
            seen = partial(self._inspect, self.guard, parcels, wire, kind, codec, step)
        expected = stamp(parcels.arriving).clone()
        transfer = _Transfer(requests, inbox, expected, partial(self._sender, route), order, seen)
        if not self.overlap:
            transfer.wait()
        self._under_way = [t for t in self._under_way if not t.done] + [transfer]
        return transfer

    def _sender(self, route: Route, row: int) -> str:
        return self.worker_name(self.placement.worker_of[route.arriving[row][0]])

    def _inspect(
        self,
        guard: Guard,
        parcels: "_Parcels",
        wire: Tensor,
        kind: Kind,
        codec: Codec,
        step: int,
        arrived_RB: Tensor,
    ) -> None:
        """Shows the guard what has arrived, and what the receivers sent in the same exchange."""
        number, worker_of = self.placement.number, self.placement.worker_of
        ends = parcels.route.arriving
        rows = None if parcels.reply else index(self.placement.row[to] for _, to in ends)
        guard.inspect(
            Arrived(
                kind,
                step,
                codec,
                arrived_RB,
                [number(sender) for sender, _ in ends],
                [worker_of[sender] for sender, _ in ends],
                None if rows is None else select(wire, rows),
                wire,
            )
        )

    def _settle(self) -> None:
        """Waits for transfers that were never read: their memory must outlive them."""
        for transfer in self._under_way:
            transfer.wait()
        self._under_way = []

    def gather(self, values_A: Tensor) -> Tensor:
        """The rows of all agents, in agent order, on every worker."""
        worker_of, workers = self.placement.worker_of, self.placement.workers
        hosts = [[a for a, w in enumerate(worker_of) if w == worker] for worker in range(workers)]
        every = self._from_each(values_A, list(map(len, hosts)))
        all_rows = values_A.new_empty(len(worker_of), *values_A.shape[1:])
        for agents, rows in zip(hosts, every, strict=True):
            all_rows[agents] = rows
        return all_rows

    def each(self, values: Tensor) -> list[Tensor]:
        """Every worker's values, in the order of their numbers, on every worker."""
        every = self._from_each(values[None], [1] * self.placement.workers)
        return [said[0] for said in every]

    def _from_each(self, values: Tensor, rows: Sequence[int]) -> list[Tensor]:
        self._settle()
        shape = values.shape[1:]
        size = shape.numel() * values.element_size()
        said = self.fabric.gather(view(values), [count * size for count in rows])
        return [
            self._read(worker, bytes_, values.new_empty(rows[worker], *shape))
            for worker, bytes_ in enumerate(said)
        ]

    def broadcast(self, values: Tensor, agent: int) -> Tensor:
        """The values of the worker that hosts this agent, on every worker."""
        self._settle()
        source = self.placement.worker_of[agent]
        own = view(values) if source == self.placement.here else None
        said = self.fabric.broadcast(own, source, values.numel() * values.element_size())
        return self._read(source, said, values)

    def _read(self, worker: int, said: memoryview, like: Tensor) -> Tensor:
        """Numbers of another worker, of the kind and number that this one has as well."""
        expected = like.numel() * like.element_size()
        if len(said) != expected:
            raise ParleyError(
                f"{self.fabric.called}: {self.worker_name(worker)} sent {len(said)} bytes of "
                f"numbers, {expected} were expected"
            )
        return tensor(said).clone().view(like.dtype).reshape(like.shape).to(like.device)


def over(fabric: Fabric, placement: Placement) -> Transport:
    """What carries messages between agents that are placed so."""
    return Spread(placement, fabric) if len(fabric.members) > 1 else Local(placement)


class _Parcels:
    """A route with its messages' headers, in which only kind, codec, step and length change."""

    def __init__(self, route: Route, reply: bool = False) -> None:
        self.route = route
        self.reply = reply
        self.leaving = _headers(route.leaving)
        self.arriving = _headers(route.arriving)


def _headers(messages: Sequence[Edge]) -> Any:
    made = np.zeros(len(messages), HEADER)
    made["magic"], made["version"] = MAGIC, VERSION
    made["sender"] = [sender for sender, _ in messages]
    made["receiver"] = [receiver for _, receiver in messages]
    return made


def _check(got: Tensor, expected: Tensor, sender: Callable[[int], str]) -> None:
    """Refuses messages whose headers are not the expected ones, and names who sent them."""
    wrong = (got != expected).any(1).nonzero()
    if len(wrong):
        row = int(wrong[0])
        raise ParleyError(
            f"unexpected message from {sender(row)}: "
            f"expected {_words(expected[row])}; got {_words(got[row])}"
        )


def _words(header: Tensor) -> str:
    h = header.contiguous().numpy().view(HEADER)[0]
    kind = KINDS[h["kind"]] if h["kind"] < len(KINDS) else f"kind {h['kind']}"
    return (
        f"{bytes(h['magic'])!r} version {h['version']}, {kind}, codec {h['codec']}, "
        f"step {h['step']}, agent {h['sender']} to {h['receiver']}, {h['length']} bytes"
    )
