"""Moving messages along edges: the only thing that differs between placements.

Axes: A agents hosted here, E some edges, R rows that hold messages, B bytes of a message.

`Local` (in `local`) is for all agents in one process, `Processes` (in `processes`) for agents
spread over workers. Both count what every hosted agent hands to the wire, header included, whether
its neighbour lives in this process or not.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import groupby
from typing import Any, Literal, Self

import numpy as np
import torch
from torch import Tensor

from parley.compute.sums import in_order
from parley.errors import ParleyError
from parley.graphs import Edge, Topology
from parley.wire import direct
from parley.wire.clock import Clock
from parley.wire.codec import Codec
from parley.wire.guard import Arrived, Guard
from parley.wire.placement import Placement

Kind = Literal["models", "cross_gradients", "evaluation"]
"""What a message is about; bytes are counted separately for each."""

KINDS: tuple[Kind, ...] = ("models", "cross_gradients", "evaluation")

HEADER = np.dtype(
    [
        ("magic", "S4"),
        ("version", "<u2"),
        ("kind", "u1"),
        ("codec", "u1"),
        ("step", "<u8"),
        ("sender", "<u4"),
        ("receiver", "<u4"),
        ("length", "<u8"),
    ]
)
"""The header of every message: 32 bytes."""
MAGIC, VERSION = b"PRLY", 1

GATHERED_BYTES = 1 << 26
"""How many numbers, over all agents, are gathered at a time to be added up."""

UNDER_WAY = 4
"""Rounds whose replies may be in transit at once: more need memory, fewer mean waiting."""


class WorkerLost(ParleyError):
    """Another worker can no longer be reached; it may have reported the reason elsewhere."""

    def __init__(self, message: str, workers: Sequence[int] = (), timed_out: bool = False) -> None:
        super().__init__(message)
        self.workers = tuple(workers)
        """The workers that may be lost; empty if unknown."""
        self.timed_out = timed_out
        """Whether it timed out rather than closing its connection."""


class Transfer:
    """Messages on their way between workers, while this one goes on with something else."""

    def __init__(
        self,
        requests: Sequence[direct.Request],
        inbox: Tensor,
        expected: Tensor,
        sent: Tensor,
        order: Tensor | None = None,
        inspect: Callable[[Tensor], None] | None = None,
    ) -> None:
        """`inspect` is shown the messages once they have arrived, before anybody else is."""
        self._requests = list(requests)
        self._inbox_RB = inbox
        self._expected = expected
        self._sent = sent  # has to stay until it is sent
        self._order = order
        self._inspect = inspect

    @property
    def done(self) -> bool:
        """Whether nothing is under way any more."""
        return not self._requests

    def wait(self) -> Tensor:
        """What has arrived, ``uint8[R, B]``, once all of it has and all has been sent."""
        if self._requests:
            _finish(self._requests)
            self._requests = []
            _check(self._inbox_RB[:, : HEADER.itemsize].cpu(), self._expected)
            if self._inspect is not None and len(self._inbox_RB):
                self._inspect(self._inbox_RB[:, HEADER.itemsize :])
        wire_RB = self._inbox_RB[:, HEADER.itemsize :]
        return wire_RB if self._order is None else _rows(wire_RB, self._order)


class Arrivals:
    """Messages that arrive on the incoming edges, to be taken one round at a time.

    Those of other workers are waited for when they are first needed.
    """

    def __init__(
        self, own_RB: Tensor, rows_of: Mapping[Round, Tensor], others: Transfer | None
    ) -> None:
        self._own_RB = own_RB
        self._rows_of = rows_of
        self._others = others
        self._wire_RB: Tensor | None = None if others else own_RB

    def of(self, edges: Round) -> Tensor:
        """The messages on the edges of one round, ``uint8[E, B]``."""
        if self._wire_RB is None:
            assert self._others is not None
            arrived_RB = self._others.wait().to(self._own_RB.device)
            self._wire_RB = torch.cat([self._own_RB, arrived_RB])
        return select(self._wire_RB, self._rows_of[edges])

    def of_others(self, edges: Round) -> Tensor:
        """The same for edges that all start in other workers; leaves this one's messages alone."""
        return select(self.others(), self._rows_of[edges] - len(self._own_RB))

    def others(self) -> Tensor:
        """All messages of other workers; in `Edges.row_of` they follow this worker's own."""
        arrived_RB = self._own_RB[:0] if self._others is None else self._others.wait()
        return arrived_RB.to(self._own_RB.device)


class Transport(ABC):
    """Carries messages forward along edges and replies back along the same edges."""

    def __init__(
        self, placement: Placement, clock: Clock | None = None, guard: Guard | None = None
    ) -> None:
        self.placement = placement
        self.guard = guard
        """Looks at what other workers send, where somebody does."""
        self.topology = placement.topology
        self.clock = clock
        """The clock of the simulated network, if there is one."""
        self.sent = {kind: torch.zeros(len(placement.agents), dtype=torch.int64) for kind in KINDS}
        """The bytes that each hosted agent has sent."""
        self.edges = Edges(placement)
        """Which edges are where."""

    def on(self, topology: Topology) -> Self:
        """The same agents in the same places on another graph; bytes are counted together."""
        return self._like(replace(self.placement, topology=topology), self.clock, self.guard)

    def timed(self, clock: Clock) -> Self:
        """The same with a simulated network; bytes are counted together."""
        return self._like(self.placement, clock, self.guard)

    def guarded(self, guard: Guard) -> Self:
        """The same with somebody who looks at messages of other workers as they arrive."""
        return self._like(self.placement, self.clock, guard)

    def _like(self, placement: Placement, clock: Clock | None, guard: Guard | None) -> Self:
        other = type(self)(placement, clock, guard)
        other.sent = self.sent
        return other

    def forward(self, wire_AB: Tensor, kind: Kind, codec: Codec, step: int) -> Arrivals:
        """Every agent sends its message to all its out-neighbours. The step, here and below, is
        the one that the message belongs to: it goes into the header and is checked on arrival."""
        self._count(kind, self.edges.senders, wire_AB.shape[1])
        self._time(kind, self.topology.edges, wire_AB.shape[1], step)
        return self._forward(wire_AB, kind, codec, step)

    def backward(
        self, wire_EB: Tensor, round_: int, kind: Kind, codec: Codec, step: int
    ) -> Callable[[], Tensor]:
        """Starts to reply to the round's incoming edges; the result, when called, waits for the
        replies on the round's outgoing edges and returns them."""
        self.count_replies(round_, kind, wire_EB.shape[1], step)
        return self._backward(wire_EB, round_, kind, codec, step)

    def backward_to_others(
        self, wire_EB: Tensor, round_: int, kind: Kind, codec: Codec, step: int
    ) -> Transfer | None:
        """Starts to reply to the round's edges in `from_others`; the replies on its edges in
        `to_others` arrive meanwhile. Counts nothing: `count_replies` does, for all edges."""
        return None

    def along(
        self, edges: Sequence[int], wire_AB: Tensor, kind: Kind, codec: Codec, step: int
    ) -> Tensor:
        """Messages along some edges only; returns those that arrive here, in the edges' order."""
        row, ends = self.placement.row, self.topology.edges
        senders = index(row[ends[e][0]] for e in edges if ends[e][0] in row)
        self._count(kind, senders, wire_AB.shape[1])
        self._time(kind, [ends[e] for e in edges], wire_AB.shape[1], step)
        return self._along(edges, wire_AB, kind, codec, step)

    def count_server(self, kind: Kind, length: int) -> None:
        """Counts the bytes if every agent sends this many to agent 0 and gets as many back."""
        size = HEADER.itemsize + length
        others = self.topology.agents - 1
        for row, agent in enumerate(self.placement.agents):
            self.sent[kind][row] += size * (others if agent == 0 else 1)

    def count_replies(self, round_: int, kind: Kind, length: int, step: int) -> None:
        """Counts a reply of this many bytes on each of the round's incoming edges."""
        self._count(kind, self.edges.repliers_of[round_], length)
        if self.clock is not None:
            if round_ % UNDER_WAY == 0:
                self.clock.settle()
            ends = self.topology.edges
            replies = [ends[e][::-1] for e in self.edges.incoming_of[round_]]
            self._time(kind, replies, length, step, later=True)

    def _time(
        self, kind: Kind, edges: Sequence[Edge], length: int, step: int, later: bool = False
    ) -> None:
        """Lets the simulated network carry a message along each of these edges."""
        if self.clock is not None and kind != "evaluation":
            self.clock.send(edges, HEADER.itemsize + length, step, later)

    def _count(self, kind: Kind, senders: Tensor, length: int) -> None:
        size = HEADER.itemsize + length
        self.sent[kind].index_add_(0, senders, torch.full_like(senders, size))

    @abstractmethod
    def _forward(self, wire_AB: Tensor, kind: Kind, codec: Codec, step: int) -> Arrivals: ...

    @abstractmethod
    def _backward(
        self, wire_EB: Tensor, round_: int, kind: Kind, codec: Codec, step: int
    ) -> Callable[[], Tensor]: ...

    @abstractmethod
    def _along(
        self, edges: Sequence[int], wire_AB: Tensor, kind: Kind, codec: Codec, step: int
    ) -> Tensor: ...

    @abstractmethod
    def gather(self, values_A: Tensor) -> Tensor:
        """The rows of all agents, in agent order, on every worker."""

    def total(self, values_AD: Tensor) -> Tensor:
        """The sum over all agents, added up in their order wherever they live, [D].

        All agents' rows are gathered for it, a few columns at a time.
        """
        each = self.topology.agents * values_AD.element_size()
        parts = values_AD.split(max(1, GATHERED_BYTES // each), 1)
        return torch.cat([in_order(self.gather(part)) for part in parts])

    @abstractmethod
    def sum(self, values: Tensor) -> Tensor:
        """The sum over workers, on every worker, added up in any order: for whole numbers, and for
        values that do not affect training."""

    @abstractmethod
    def broadcast(self, values: Tensor, agent: int) -> Tensor:
        """The values of the worker that hosts this agent, on every worker."""


def select(wire_RB: Tensor, rows: Tensor) -> Tensor:
    """Some messages, copied; for bytes many times as fast as ``wire_RB[rows]``."""
    return wire_RB.index_select(0, rows.to(wire_RB.device))


def _index(values: Iterator[int]) -> Tensor:
    return torch.tensor(list(values), dtype=torch.int64)


class Local(Transport):
    """All agents in this process."""

    def __init__(
        self, placement: Placement, clock: Clock | None = None, guard: Guard | None = None
    ) -> None:
        super().__init__(placement, clock, guard)
        self.row_of = {e: source for e, (source, _) in enumerate(self.topology.edges)}
        self._sources = {r: _index(self.row_of[e] for e in r) for r in self.incoming_of}

    def _forward(self, wire_AB: Tensor, kind: Kind, codec: Codec, step: int) -> Arrivals:
        return Arrivals(wire_AB, self._sources, None)

    def _backward(
        self, wire_EB: Tensor, round_: int, kind: Kind, codec: Codec, step: int
    ) -> Callable[[], Tensor]:
        # All edges are both incoming and outgoing here, in the same order.
        return lambda: wire_EB

    def _along(
        self, edges: Sequence[int], wire_AB: Tensor, kind: Kind, codec: Codec, step: int
    ) -> Tensor:
        return _rows(wire_AB, _index(self.topology.edges[e][0] for e in edges))

    def gather(self, values_A: Tensor) -> Tensor:
        """All rows are here."""
        return values_A

    def sum(self, values: Tensor) -> Tensor:
        """There is one worker."""
        return values

    def broadcast(self, values: Tensor, agent: int) -> Tensor:
        """There is one worker."""
        return values


class _Route:
    """One direction of traffic, worked out once: what goes to whom and what comes from whom.

    All messages for one worker go in one transfer, in the order of the edges' numbers, which both
    ends know.
    """

    def __init__(
        self,
        placement: Placement,
        own: Mapping[int, int],
        rows: int,
        expected: Sequence[int],
        reply: bool,
    ) -> None:
        """`own` is the row, of so many, of the message for each edge; `expected` are the edges
        on which messages arrive."""
        edges, worker_of, here = placement.topology.edges, placement.worker_of, placement.here
        self.reply = reply
        near, far = (1, 0) if reply else (0, 1)

        def sorted_by_worker(candidates: Iterator[int] | Sequence[int], end: int) -> list[int]:
            remote = [e for e in candidates if worker_of[edges[e][end]] != here]
            return sorted(remote, key=lambda e: (worker_of[edges[e][end]], e))

        def parts(chosen: list[int], end: int) -> list[tuple[int, slice]]:
            """The rows for each worker."""
            groups = groupby(range(len(chosen)), lambda r: worker_of[edges[chosen[r]][end]])
            bounds = [(worker, list(r)) for worker, r in groups]
            return [(worker, slice(r[0], r[-1] + 1)) for worker, r in bounds]

        def headers(chosen: list[int]) -> Any:
            made = np.zeros(len(chosen), HEADER)
            made["magic"], made["version"] = MAGIC, VERSION
            made["sender"] = [edges[e][near] for e in chosen]
            made["receiver"] = [edges[e][far] for e in chosen]
            return made

        leaving, arriving = sorted_by_worker(iter(own), far), sorted_by_worker(expected, near)
        self.to, self.of = parts(leaving, far), parts(arriving, near)
        self.leaving, self.arriving = headers(leaving), headers(arriving)
        self.rows = _index(own[e] for e in leaving)
        self.row_of = {e: rows + r for r, e in enumerate(arriving)}
        """Where a message lies once the arrived ones stand behind the own ones."""
        self.row_of |= {e: own[e] for e in expected if worker_of[edges[e][near]] == here}


class Processes(Transport):
    """Agents spread over the processes of a `torch.distributed` group."""

    overlap = True
    """Whether there is something else to do while messages are under way; without, each is waited
    for where it is sent."""

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
        edges, row = self.topology.edges, placement.row
        models = {e: row[edges[e][0]] for e in placement.outgoing}
        self._out = _Route(placement, models, len(row), placement.incoming, reply=False)
        self.row_of = self._out.row_of
        rounds = {*self.incoming_of, *self.from_others}
        self._arrived = {r: _index(self.row_of[e] for e in r) for r in rounds}
        self._back = [
            _Route(placement, {e: r for r, e in enumerate(came)}, len(came), went, reply=True)
            for came, went in zip(self.incoming_of, self.outgoing_of, strict=True)
        ]
        self._replied = [
            _index(route.row_of[e] for e in r)
            for route, r in zip(self._back, self.outgoing_of, strict=True)
        ]
        self._back_to_others = [
            _Route(placement, {e: r for r, e in enumerate(came)}, 0, went, reply=True)
            for came, went in zip(self.from_others, self.to_others, strict=True)
        ]
        self._under_way: list[Transfer] = []

    def _forward(self, wire_AB: Tensor, kind: Kind, codec: Codec, step: int) -> Arrivals:
        self._settle()
        return Arrivals(wire_AB, self._arrived, self._start(self._out, wire_AB, kind, codec, step))

    def _backward(
        self, wire_EB: Tensor, round_: int, kind: Kind, codec: Codec, step: int
    ) -> Callable[[], Tensor]:
        everything = self._swap(self._back[round_], wire_EB, kind, codec, step)
        return lambda: _rows(everything(), self._replied[round_])

    def _along(
        self, edges: Sequence[int], wire_AB: Tensor, kind: Kind, codec: Codec, step: int
    ) -> Tensor:
        row, ends = self.placement.row, self.topology.edges
        own = {e: row[ends[e][0]] for e in edges if ends[e][0] in row}
        expected = [e for e in edges if ends[e][1] in row]
        route = _Route(self.placement, own, len(row), expected, reply=False)
        wire_RB = self._swap(route, wire_AB, kind, codec, step)()
        return _rows(wire_RB, _index(route.row_of[e] for e in expected))

    def _swap(
        self, route: _Route, wire: Tensor, kind: Kind, codec: Codec, step: int
    ) -> Callable[[], Tensor]:
        """Sends messages to the other workers; waits, when called, for theirs and gives the own
        ones followed by the arrived."""
        transfer = self._start(route, wire, kind, codec, step)
        if transfer is None:
            return lambda: wire
        return lambda: torch.cat([wire, transfer.wait().to(wire.device)])

    def backward_to_others(
        self, wire_EB: Tensor, round_: int, kind: Kind, codec: Codec, step: int
    ) -> Transfer | None:
        """Replies to other workers only, while this one goes on."""
        route = self._back_to_others[round_]
        order = _index(route.row_of[e] for e in self.to_others[round_])
        return self._start(route, wire_EB, kind, codec, step, order)

    def _start(
        self,
        route: _Route,
        wire: Tensor,
        kind: Kind,
        codec: Codec,
        step: int,
        order: Tensor | None = None,
    ) -> Transfer | None:
        """Sends messages to the other workers and lets theirs come."""
        if not (route.to or route.of):
            return None

        def stamp(headers: Any) -> Tensor:
            headers["kind"], headers["codec"] = KINDS.index(kind), codec.number
            headers["step"], headers["length"] = step, wire.shape[1]
            return torch.from_numpy(headers.view(np.uint8).reshape(len(headers), HEADER.itemsize))

        device = self._wire_device
        parcels = torch.cat(
            [stamp(route.leaving).to(device), _rows(wire, route.rows).to(device)], 1
        )
        inbox = parcels.new_empty(len(route.arriving), parcels.shape[1])
        peers = [peer for peer, _ in (*route.of, *route.to)]
        with _reaching(*dict.fromkeys(peers)):
            sends = [dist.P2POp(dist.isend, parcels[part], peer) for peer, part in route.to]
            receipts = [dist.P2POp(dist.irecv, inbox[part], peer) for peer, part in route.of]
            # Gloo tells a sender that its message is awaited on the connection that also carries
            # the own message, behind which it would wait: the two directions would take turns.
            requests = direct.started(receipts + sends)
        inspect = partial(self._inspect, self.guard, route, wire, kind, codec, step)
        seen = inspect if self.guard is not None else None
        expected = stamp(route.arriving).clone()
        transfer = Transfer(requests, inbox, expected, parcels, order, seen)
        if not self.overlap:
            transfer.wait()
        self._under_way = [t for t in self._under_way if not t.done] + [transfer]
        return transfer

    def _inspect(
        self,
        guard: Guard,
        route: _Route,
        wire: Tensor,
        kind: Kind,
        codec: Codec,
        step: int,
        arrived_RB: Tensor,
    ) -> None:
        """Shows the guard what has arrived beside what the receivers have sent themselves."""
        number, worker_of = self.placement.number, self.placement.worker_of
        senders, receivers = (route.arriving[end].tolist() for end in ("sender", "receiver"))
        rows = None if route.reply else _index(self.placement.row[agent] for agent in receivers)
        guard.inspect(
            Arrived(
                kind,
                step,
                codec,
                arrived_RB,
                [number(agent) for agent in senders],
                [number(agent) for agent in receivers],
                [worker_of[agent] for agent in senders],
                None if rows is None else _rows(wire, rows),
                wire,
            )
        )

    def _settle(self) -> None:
        """Nothing that nobody has asked for stays under way: its memory must not go before it."""
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


def _finish(requests: Sequence[direct.Request]) -> None:
    for workers, request in requests:
        with _reaching(*workers):
            request.wait()


@contextmanager
def _reaching(*workers: int) -> Iterator[None]:
    """Says in words that one of these workers (or of all, if none is named) has gone."""
    try:
        yield
    except RuntimeError as error:
        # What gloo says is for its developers: file, line, and which setting to debug with.
        timed_out = "imed out" in str(error) or "imeout" in str(error)
        why = "it did not answer in time" if timed_out else "it closed its connection"
        who = f"worker {' or '.join(map(str, workers))}" if workers else "another worker"
        raise WorkerLost(f"workers: {who} has gone ({why})", workers, timed_out) from None


def _check(got: Tensor, expected: Tensor) -> None:
    """Refuses messages whose headers are not the expected ones."""
    wrong = (got != expected).any(1).nonzero()
    if len(wrong):
        row = int(wrong[0])
        raise ParleyError(
            f"a message does not fit: expected {_words(expected[row])}; got {_words(got[row])}"
        )


def _words(header: Tensor) -> str:
    h = header.contiguous().numpy().view(HEADER)[0]
    kind = KINDS[h["kind"]] if h["kind"] < len(KINDS) else f"kind {h['kind']}"
    return (
        f"{bytes(h['magic'])!r} version {h['version']}, {kind}, codec {h['codec']}, "
        f"step {h['step']}, agent {h['sender']} to {h['receiver']}, {h['length']} bytes"
    )
