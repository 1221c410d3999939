"""Agents spread over workers, with messages between them by `torch.distributed`."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import Tensor

from parley.errors import ParleyError
from parley.wire import direct
from parley.wire.clock import Clock
from parley.wire.edges import Route
from parley.wire.guard import Guard
from parley.wire.placement import Placement
from parley.wire.spread import Request, Spread
from parley.wire.transport import WorkerLost


class _Work:
    """Something that `torch.distributed` does with some workers."""

    def __init__(self, workers: Sequence[int], work: dist.Work, outbox: Tensor) -> None:
        self._workers = workers
        self._work = work
        self._outbox = outbox  # has to stay until it is sent

    def wait(self) -> None:
        """Returns once it is done; otherwise says which worker was lost."""
        with _reaching(*self._workers):
            self._work.wait()


class Processes(Spread):
    """Agents spread over the processes of a `torch.distributed` group."""

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

    def _move(
        self, route: Route, headers_RH: Tensor, wire_RB: Tensor, inbox_RB: Tensor
    ) -> Sequence[Request]:
        outbox_RB = torch.cat([headers_RH.to(wire_RB.device), wire_RB], 1)
        peers = [peer for peer, _ in (*route.of, *route.to)]
        with _reaching(*dict.fromkeys(peers)):
            sends = [dist.P2POp(dist.isend, outbox_RB[part], peer) for peer, part in route.to]
            receipts = [dist.P2POp(dist.irecv, inbox_RB[part], peer) for peer, part in route.of]
            # Gloo tells a sender that its message is awaited on the connection that also carries
            # this worker's message, behind which it would queue: the directions would take turns.
            requests = direct.started(receipts + sends)
        return [_Work(workers, work, outbox_RB) for workers, work in requests]

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

    def each(self, values: Tensor) -> list[Tensor]:
        """Every worker's values, in the order of their numbers, on every worker."""
        self._settle()
        every = self._from_each(values[None], [1] * self.placement.workers)
        return [said[0].to(values.device) for said in every]

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
    """Turns a connection error into one saying that a worker (of these, or any) was lost."""
    try:
        yield
    except RuntimeError as error:
        # Gloo's message is for its developers: file, line, and debugging settings.
        timed_out = "imed out" in str(error) or "imeout" in str(error)
        why = "it did not answer in time" if timed_out else "it closed its connection"
        who = f"worker {' or '.join(map(str, workers))}" if workers else "another worker"
        raise WorkerLost(f"workers: lost {who} ({why})", workers, timed_out) from None
