"""Moving messages along edges: the only thing that differs between placements.

Axes: A agents hosted here, I their incoming edges, O their outgoing edges, B bytes of a message.

`Local` is for all agents in one process, where a message is an index away. `Processes` is for
agents spread over workers: point-to-point messages of `torch.distributed`, in one canonical order,
each behind a header that is checked on arrival. Both count what every hosted agent hands to the
wire, header included, whether its neighbour lives in this process or not.
"""

import struct
from abc import ABC, abstractmethod
from collections import defaultdict
from typing import Literal

import torch
import torch.distributed as dist
from torch import Tensor

from parley.codec import Codec
from parley.errors import ParleyError
from parley.placement import Placement

Kind = Literal["models", "cross_gradients", "evaluation"]
"""What a message is about; bytes are counted apart for each."""

KINDS: tuple[Kind, ...] = ("models", "cross_gradients", "evaluation")

HEADER = struct.Struct("<4sHBBQIIQ")
"""Magic, version, kind, codec, step, sender, receiver, payload length."""
MAGIC, VERSION = b"PRLY", 1


class Arrivals:
    """Messages that have arrived on the incoming edges, one round of edges at a time."""

    def __init__(self, wire_RB: Tensor, row_of_edge: dict[int, int]) -> None:
        self.wire_RB = wire_RB
        self.row_of_edge = row_of_edge

    def of(self, edges: tuple[int, ...]) -> Tensor:
        """The messages of these edges, ``uint8[len(edges), B]``."""
        return self.wire_RB[[self.row_of_edge[e] for e in edges]]


class Transport(ABC):
    """Carries messages forward along edges and replies back along the same edges."""

    def __init__(self, placement: Placement) -> None:
        self.placement = placement
        self.topology = placement.topology
        self.step = 0
        """Goes into headers; set by the training loop."""
        self.sent = {kind: torch.zeros(len(placement.agents), dtype=torch.int64) for kind in KINDS}
        """Bytes that each hosted agent has handed to the wire."""
        edges, row = self.topology.edges, placement.row
        self._senders = torch.tensor([row[edges[e][0]] for e in placement.outgoing]).long()
        self.incoming_of = [
            tuple(e for e in edges_ if edges[e][1] in row) for edges_ in self.topology.rounds
        ]
        """The incoming edges of each round."""
        self.outgoing_of = [
            tuple(e for e in edges_ if edges[e][0] in row) for edges_ in self.topology.rounds
        ]
        self._repliers = [
            torch.tensor([row[edges[e][1]] for e in edges_]).long() for edges_ in self.incoming_of
        ]

    def forward(self, wire_AB: Tensor, kind: Kind, codec: Codec) -> Arrivals:
        """Every agent sends its message to all its out-neighbours."""
        self._count(kind, self._senders, wire_AB)
        return self._forward(wire_AB, kind, codec)

    def backward(self, wire_EB: Tensor, round_: int, kind: Kind, codec: Codec) -> Tensor:
        """Replies to the round's incoming edges; returns those on the round's outgoing edges."""
        self._count(kind, self._repliers[round_], wire_EB)
        return self._backward(wire_EB, round_, kind, codec)

    def _count(self, kind: Kind, senders: Tensor, wire: Tensor) -> None:
        size = HEADER.size + wire.shape[1]
        self.sent[kind].index_add_(0, senders, torch.full_like(senders, size))

    @abstractmethod
    def _forward(self, wire_AB: Tensor, kind: Kind, codec: Codec) -> Arrivals: ...

    @abstractmethod
    def _backward(self, wire_EB: Tensor, round_: int, kind: Kind, codec: Codec) -> Tensor: ...

    @abstractmethod
    def gather(self, values_A: Tensor) -> Tensor:
        """The rows of all agents, in agent order, on every worker."""

    @abstractmethod
    def sum(self, values: Tensor) -> Tensor:
        """The sum over workers, on every worker."""


class Local(Transport):
    """All agents in this process."""

    def __init__(self, placement: Placement) -> None:
        super().__init__(placement)
        edges = self.topology.edges
        self._source = {e: src for e, (src, _) in enumerate(edges)}

    def _forward(self, wire_AB: Tensor, kind: Kind, codec: Codec) -> Arrivals:
        return Arrivals(wire_AB, self._source)

    def _backward(self, wire_EB: Tensor, round_: int, kind: Kind, codec: Codec) -> Tensor:
        # All edges are both incoming and outgoing here, in the same order.
        return wire_EB

    def gather(self, values_A: Tensor) -> Tensor:
        """All rows are here."""
        return values_A

    def sum(self, values: Tensor) -> Tensor:
        """There is one worker."""
        return values


class Processes(Transport):
    """Agents spread over the processes of a `torch.distributed` group."""

    def __init__(self, placement: Placement) -> None:
        super().__init__(placement)
        if placement.workers != dist.get_world_size():
            raise ParleyError(
                f"workers: {placement.workers} are needed, {dist.get_world_size()} were started"
            )
        # Gloo moves memory of the CPU; NCCL that of the GPU.
        self._wire_device = torch.device("cuda" if dist.get_backend() == "nccl" else "cpu")

    def _forward(self, wire_AB: Tensor, kind: Kind, codec: Codec) -> Arrivals:
        edges, row = self.topology.edges, self.placement.row
        outgoing = {e: wire_AB[row[edges[e][0]]] for e in self.placement.outgoing}
        remote = self._swap(outgoing, self.placement.incoming, wire_AB, kind, codec, reply=False)
        local = {e: row[edges[e][0]] for e in self.placement.incoming if edges[e][0] in row}
        arrived = {e: len(wire_AB) + r for r, e in enumerate(remote)}
        return Arrivals(torch.cat([wire_AB, *(m[None] for m in remote.values())]), local | arrived)

    def _backward(self, wire_EB: Tensor, round_: int, kind: Kind, codec: Codec) -> Tensor:
        incoming, outgoing = self.incoming_of[round_], self.outgoing_of[round_]
        replies = dict(zip(incoming, wire_EB.unbind(), strict=True))
        remote = self._swap(replies, outgoing, wire_EB, kind, codec, reply=True)
        if not outgoing:
            return wire_EB[:0]
        return torch.stack([remote[e] if e in remote else replies[e] for e in outgoing])

    def _swap(
        self,
        sending: dict[int, Tensor],
        receiving: tuple[int, ...],
        like: Tensor,
        kind: Kind,
        codec: Codec,
        reply: bool,
    ) -> dict[int, Tensor]:
        """Sends messages to the other workers and returns those that come from them, by edge.

        All messages for one worker go in one transfer, in the order of the edges' numbers, which
        both ends know.
        """
        edges, worker_of, here = self.topology.edges, self.placement.worker_of, self.placement.here
        near, far = (1, 0) if reply else (0, 1)
        to: dict[int, list[int]] = defaultdict(list)
        of: dict[int, list[int]] = defaultdict(list)
        for e in sending:
            to[worker_of[edges[e][far]]].append(e)
        for e in receiving:
            of[worker_of[edges[e][near]]].append(e)
        to.pop(here, None)
        of.pop(here, None)

        size = like.shape[1]
        headers = {e: self._header(e, kind, codec, size, reply) for e in (*sending, *receiving)}
        transfers, buffers = [], {}
        for peer in sorted({*to, *of}):
            if peer in to:
                rows = [torch.cat([headers[e], sending[e].to(self._wire_device)]) for e in to[peer]]
                transfers.append(dist.P2POp(dist.isend, torch.stack(rows), peer))
            if peer in of:
                shape = (len(of[peer]), HEADER.size + size)
                buffers[peer] = torch.empty(shape, dtype=torch.uint8, device=self._wire_device)
                transfers.append(dist.P2POp(dist.irecv, buffers[peer], peer))
        if transfers:
            for request in dist.batch_isend_irecv(transfers):
                request.wait()

        arrived = {}
        for peer, buffer in buffers.items():
            for e, message in zip(of[peer], buffer, strict=True):
                if not torch.equal(message[: HEADER.size], headers[e]):
                    raise ParleyError(self._refusal(message[: HEADER.size], headers[e], peer))
                arrived[e] = message[HEADER.size :].to(like.device)
        return arrived

    def _header(self, edge: int, kind: Kind, codec: Codec, size: int, reply: bool) -> Tensor:
        src, dst = self.topology.edges[edge]
        sender, receiver = (dst, src) if reply else (src, dst)
        fields = (MAGIC, VERSION, KINDS.index(kind), codec.number, self.step, sender, receiver)
        packed = HEADER.pack(*fields, size)
        return torch.frombuffer(bytearray(packed), dtype=torch.uint8).to(self._wire_device)

    def _refusal(self, got: Tensor, expected: Tensor, peer: int) -> str:
        def words(header: Tensor) -> str:
            fields = HEADER.unpack(bytes(header.tolist()))
            magic, version, kind, codec, step, sender, receiver, size = fields
            name = KINDS[kind] if kind < len(KINDS) else f"kind {kind}"
            return (
                f"{magic!r} version {version}, {name}, codec {codec}, step {step}, "
                f"agent {sender} to {receiver}, {size} bytes"
            )

        return (
            f"worker {peer} sent a message that does not fit: expected {words(expected)}; "
            f"got {words(got)}"
        )

    def gather(self, values_A: Tensor) -> Tensor:
        """The rows of all agents, in agent order, on every worker."""
        everyone = self.placement.worker_of
        all_rows = values_A.new_zeros(len(everyone), *values_A.shape[1:])
        all_rows[list(self.placement.agents)] = values_A
        return self.sum(all_rows)

    def sum(self, values: Tensor) -> Tensor:
        """The sum over workers, on every worker."""
        total = values.to(self._wire_device, copy=True)
        dist.all_reduce(total)
        return total.to(values.device)
