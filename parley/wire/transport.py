"""Moving messages along edges: the only thing that differs between placements.

Axes: A agents hosted here, E some edges, R rows that hold messages, B bytes of a message.

`Local` (in `local`) is for all agents in one process, `Spread` (in `spread`) for agents spread over
the members of a fabric. Both count what every hosted agent hands to the wire, header included,
whether its neighbour lives in this process or not.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Literal, Protocol, Self

import numpy as np
import torch
from torch import Tensor

from parley.compute.sums import in_order
from parley.graphs import Edge, Topology
from parley.wire.clock import Clock
from parley.wire.codec import Codec
from parley.wire.edges import Edges, Round, index
from parley.wire.guard import Guard
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


class Transfer(Protocol):
    """Messages in transit between workers, while this one does something else."""

    def wait(self) -> Tensor:
        """What arrived, ``uint8[R, B]``, once everything has arrived and been sent."""
        ...


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

    alone_on_host = False
    """Whether this worker has its host's cores to itself."""
    trusted = False
    """Whether one command started all workers, so that there is nobody to be guarded against."""

    def __init__(
        self,
        placement: Placement,
        clock: Clock | None = None,
        guard: Guard | None = None,
        sent: dict[Kind, Tensor] | None = None,
    ) -> None:
        """`sent` goes on counting what another transport of these agents has counted."""
        self.placement = placement
        self.guard = guard
        """Checks what other workers send, if anyone does."""
        self.topology = placement.topology
        self.clock = clock
        """The clock of the simulated network, if there is one."""
        agents = len(placement.agents)
        self.sent = sent or {kind: torch.zeros(agents, dtype=torch.int64) for kind in KINDS}
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
        """The same with a guard that checks messages of other workers as they arrive."""
        return self._like(self.placement, self.clock, guard)

    def worker_name(self, worker: int) -> str:
        """What a worker is called in messages."""
        return f"worker {worker}"

    def _like(self, placement: Placement, clock: Clock | None, guard: Guard | None) -> Self:
        return type(self)(placement, clock, guard, self.sent)

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

    def count_from(self, sent: Mapping[Kind, Tensor]) -> None:
        """Goes on counting where another transport of these agents has ended."""
        for kind, value in sent.items():
            self.sent[kind].copy_(value)

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

    def total(self, values_AD: Tensor, kind: Kind, step: int) -> Tensor:
        """The sum over all agents, added up in their order wherever they live, [D].

        All agents' rows are gathered for it, a few columns at a time.
        """
        each = self.topology.agents * values_AD.element_size()
        parts = values_AD.split(max(1, GATHERED_BYTES // each), 1)
        return torch.cat([in_order(self._gathered(part, kind, step)) for part in parts])

    def _gathered(self, values_AD: Tensor, kind: Kind, step: int) -> Tensor:
        """The rows of all agents, once the guard has seen those of other workers."""
        rows_ND = self.gather(values_AD)
        if self.guard is not None:
            self.guard.inspect_rows(kind, step, rows_ND, self.placement)
        return rows_ND

    @abstractmethod
    def each(self, values: Tensor) -> list[Tensor]:
        """Every worker's values, in the order of their numbers, on every worker."""

    def sum(self, values: Tensor) -> Tensor:
        """The sum over workers, on every worker, in the order of their numbers: for what does not
        affect training."""
        total = torch.zeros_like(values)
        for said in self.each(values):
            total += said
        return total

    @abstractmethod
    def broadcast(self, values: Tensor, agent: int) -> Tensor:
        """The values of the worker that hosts this agent, on every worker."""


def select(wire_RB: Tensor, rows: Tensor) -> Tensor:
    """Some messages, copied; for bytes many times as fast as ``wire_RB[rows]``."""
    return wire_RB.index_select(0, rows.to(wire_RB.device))
