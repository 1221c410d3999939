"""Agents spread over workers, with messages between them by `torch.distributed`.

Messages go in one canonical order, each behind a header that is checked on arrival.

Axes: A agents hosted here, E some edges, R rows in which messages lie, B bytes of a message.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from parley.errors import ParleyError
from parley.graphs import Edge
from parley.wire import direct
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
    WorkerLost,
    select,
)


class _Transfer:
    """Messages in transit between workers, while this one does something else."""

    def __init__(
        self,
        requests: Sequence[direct.Request],
        inbox: Tensor,
        expected: Tensor,
        sent: Tensor,
        order: Tensor | None = None,
        inspect: Callable[[Tensor], None] | None = None,
    ) -> None:
        """`inspect` sees the messages once they have arrived, before anyone uses them."""
        self._requests = list(requests)
        self._inbox_RB = inbox
        self._expected = expected
        self._sent = sent  # has to stay until it is sent
        self._order = order
        self._inspect = inspect

    @property
    def done(self) -> bool:
        """Whether nothing is in transit any more."""
        return not self._requests

    def wait(self) -> Tensor:
        """What arrived, ``uint8[R, B]``, once everything has arrived and been sent."""
        if self._requests:
            _finish(self._requests)
            self._requests = []
            _check(self._inbox_RB[:, : HEADER.itemsize].cpu(), self._expected)
            if self._inspect is not None and len(self._inbox_RB):
                self._inspect(self._inbox_RB[:, HEADER.itemsize :])
        wire_RB = self._inbox_RB[:, HEADER.itemsize :]
        return wire_RB if self._order is None else select(wire_RB, self._order)


class Processes(Transport):
    """Agents spread over the processes of a `torch.distributed` group."""

    overlap = True
    """Whether to do something else while messages are in transit; otherwise each is waited for
    where it is sent."""

    def __init__(
        self, placement: Placement, clock: Clock | None = None, guard: Guard | None = None
    ) -> None:
        super().__init__(placement, clock, guard)
        if placement.workers != dist.get_world_size():
            raise ParleyError(
                f"workers: {placement.workers} are needed, {dist.get_world_size()} were started"
            )
        if placement.here != dist.get_rank():
            raise ParleyError(
                f"placement: this is process {dist.get_rank()}, not worker {placement.here}"
            )
        # Gloo moves memory of the CPU; NCCL that of the GPU.
        self._wire_device = torch.device("cuda" if dist.get_backend() == "nccl" else "cpu")
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
        outbox = torch.cat(
            [stamp(parcels.leaving).to(device), select(wire, route.rows).to(device)], 1
        )
        inbox = outbox.new_empty(len(route.arriving), outbox.shape[1])
        peers = [peer for peer, _ in (*route.of, *route.to)]
        with _reaching(*dict.fromkeys(peers)):
            sends = [dist.P2POp(dist.isend, outbox[part], peer) for peer, part in route.to]
            receipts = [dist.P2POp(dist.irecv, inbox[part], peer) for peer, part in route.of]
            # Gloo tells a sender that its message is awaited on the connection that also carries
            # this worker's message, behind which it would queue: the directions would take turns.
            requests = direct.started(receipts + sends)
        seen = None
        if self.guard is not None:
            seen = partial(self._inspect, self.guard, parcels, wire, kind, codec, step)
        expected = stamp(parcels.arriving).clone()
        transfer = _Transfer(requests, inbox, expected, outbox, order, seen)
        if not self.overlap:
            transfer.wait()
        self._under_way = [t for t in self._under_way if not t.done] + [transfer]
        return transfer

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
        self._settle()
        worker_of, workers = self.placement.worker_of, self.placement.workers
        hosts = [[a for a, w in enumerate(worker_of) if w == worker] for worker in range(workers)]
        every = self._from_each(values_A, list(map(len, hosts)))
        all_rows = values_A.new_empty(len(worker_of), *values_A.shape[1:])
        for agents, rows in zip(hosts, every, strict=True):
            all_rows[agents] = rows.to(values_A.device)
        return all_rows

    def _from_each(self, values: Tensor, rows: Sequence[int]) -> list[Tensor]:
        own = values.to(self._wire_device).contiguous()
        with _reaching():
            every, requests = direct.from_each(own, rows, self.placement.here)
        _finish(requests)
        return every

    def sum(self, values: Tensor) -> Tensor:
        """The sum over workers, on every worker, in the order of their numbers."""
        self._settle()
        every = self._from_each(values[None], [1] * self.placement.workers)
        return torch.cat(every).sum(0, dtype=values.dtype).to(values.device)

    def broadcast(self, values: Tensor, agent: int) -> Tensor:
        """The values of the worker that hosts this agent, on every worker."""
        self._settle()
        sent = values.to(self._wire_device, copy=True).contiguous()
        source, here = self.placement.worker_of[agent], self.placement.here
        with _reaching(source):
            requests = direct.from_one(sent, source, self.placement.workers, here)
        _finish(requests)
        return sent.to(values.device)


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


def _finish(requests: Sequence[direct.Request]) -> None:
    for workers, request in requests:
        with _reaching(*workers):
            request.wait()


@contextmanager
def _reaching(*workers: int) -> Iterator[None]:
    """Turns a connection error into one saying that a worker (of these, or any) was lost."""
    try:
        yield
    except RuntimeError as error:
        # Gloo's message is for its developers: file, line, and debugging settings.
        timed_out = "imed out" in str(error) or "imeout" in str(error)
        why = "it did not answer in time" if timed_out else "it closed its connection"
        who = f"worker {' or '.join(map(str, workers))}" if workers else "another worker"
        raise WorkerLost(f"workers: lost {who} ({why})", workers, timed_out) from None


def _check(got: Tensor, expected: Tensor) -> None:
    """Refuses messages whose headers are not the expected ones."""
    wrong = (got != expected).any(1).nonzero()
    if len(wrong):
        row = int(wrong[0])
        raise ParleyError(
            f"unexpected message: expected {_words(expected[row])}; got {_words(got[row])}"
        )


def _words(header: Tensor) -> str:
    h = header.contiguous().numpy().view(HEADER)[0]
    kind = KINDS[h["kind"]] if h["kind"] < len(KINDS) else f"kind {h['kind']}"
    return (
        f"{bytes(h['magic'])!r} version {h['version']}, {kind}, codec {h['codec']}, "
        f"step {h['step']}, agent {h['sender']} to {h['receiver']}, {h['length']} bytes"
    )
