"""Sends values directly from each worker to every other.

The collectives of gloo pass values on from worker to worker, where each could change what is not
its own. Here a worker can only speak for itself.
"""

from collections.abc import Sequence
from weakref import WeakKeyDictionary

import torch.distributed as dist
from torch import Tensor

Request = tuple[Sequence[int], dist.Work]
"""Something under way, and the workers that it is under way to or from."""


def from_each(own: Tensor, rows: Sequence[int], here: int) -> tuple[list[Tensor], list[Request]]:
    """Sends this worker's rows to all others and receives theirs, whose number is known."""
    every = [own.new_empty(count, *own.shape[1:]) for count in rows]
    every[here] = own
    peers = [worker for worker in range(len(rows)) if worker != here]
    receipts = [dist.P2POp(dist.irecv, every[peer], peer) for peer in peers]
    sends = [dist.P2POp(dist.isend, own, peer) for peer in peers]
    return every, started(receipts + sends)


def from_one(values: Tensor, source: int, world: int, here: int) -> list[Request]:
    """The values of one worker for all others, in place."""
    if here != source:
        return started([dist.P2POp(dist.irecv, values, source)])
    return started([dist.P2POp(dist.isend, values, peer) for peer in range(world) if peer != here])


def started(messages: Sequence[dist.P2POp]) -> list[Request]:
    """Requests for these messages: gloo makes one of each, NCCL one of all."""
    if not messages:
        return []
    peers = [message.peer for message in messages]
    receipts = [message.op is dist.irecv for message in messages]
    # A message may arrive, and be found wrong, before its request has been returned.
    _being_requested[:] = [peer for peer, receipt in zip(peers, receipts, strict=True) if receipt]
    works = dist.batch_isend_irecv(list(messages))
    each = [[peer] for peer in peers] if len(works) == len(peers) else [peers] * len(works)
    for peer, work, receipt in zip(peers, works, receipts, strict=False):
        if receipt:
            _awaited[work] = peer
    _being_requested.clear()
    return list(zip(each, works, strict=True))


# Of the whole process, as gloo's threads are: if one of them gives up, it ends the process, and
# only what is noted here can say on whose message.
_awaited: WeakKeyDictionary[dist.Work, int] = WeakKeyDictionary()
_being_requested: list[int] = []


def awaited() -> list[int]:
    """Workers from which something has been requested and has not arrived."""
    under_way = {peer for work, peer in list(_awaited.items()) if not work.is_completed()}
    return sorted(under_way.union(_being_requested))
