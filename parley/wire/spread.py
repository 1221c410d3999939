"""Agents spread over several workers, whatever carries the bytes between them.

Messages go in one canonical order, each behind a header that is checked on arrival.

Axes: A agents hosted here, E some edges, R rows in which messages lie, H bytes of a header, B bytes
of a message.
"""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from parley.errors import ParleyError
from parley.graphs import Edge
from parley.wire.clock import Clock
from parley.wire.codec import Codec
from parley.wire.edges import Route, index
from parley.wire.guard import Arrived, Guard
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


class Request(Protocol):
    """A part of a transfer."""

    def wait(self) -> object:
        """Returns once it has arrived, or been sent."""
        ...


class _Transfer:
    """Messages in transit between workers, while this one does something else."""

    def __init__(
        self,
        requests: Sequence[Request],
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
    """Agents spread over several workers: everything but how bytes get from one to another."""

    overlap = True
    """Whether to do something else while messages are in transit; otherwise each is waited for
    where it is sent."""

    def __init__(
        self, placement: Placement, clock: Clock | None = None, guard: Guard | None = None
    ) -> None:
        super().__init__(placement, clock, guard)
        self._wire_device = torch.device("cpu")
        self._out = _Parcels(self.edges.out)
        self._back_of = [_Parcels(route, reply=True) for route in self.edges.back_of]
        self._back_to_others_of = [
            _Parcels(route, reply=True) for route in self.edges.back_to_others_of
        ]
        self._under_way: list[_Transfer] = []

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

        device = self._wire_device
        leaving = select(wire, route.rows).to(device)
        inbox = leaving.new_empty(len(route.arriving), HEADER.itemsize + leaving.shape[1])
        requests = self._move(route, stamp(parcels.leaving), leaving, inbox)
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

    @abstractmethod
    def _move(
        self, route: Route, headers_RH: Tensor, wire_RB: Tensor, inbox_RB: Tensor
    ) -> Sequence[Request]:
        """Sends every other worker its rows, each behind its header, and receives theirs."""


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
