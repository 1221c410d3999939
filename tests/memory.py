"""A fabric in one file: members are threads of one process, and bytes go through queues."""

import queue
import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from parley.errors import ParleyError
from parley.fabric.base import Fabric, Member, Part, WorkerLost
from tests.processes import PATIENCE


class Hub:
    """The queues from each member to each other, and why the first that failed did."""

    def __init__(self) -> None:
        self.queues: defaultdict[tuple[int, int], queue.Queue[Tensor]] = defaultdict(queue.Queue)
        self.failure: ParleyError | None = None


class InMemory(Fabric):
    """A member of a hub."""

    def __init__(self, hub: Hub, me: int, world: int, patience: float = PATIENCE) -> None:
        super().__init__(me, [Member(f"worker {rank}") for rank in range(world)], patience)
        self.hub = hub

    def exchange(self, leaving: Sequence[Part], arriving: Sequence[Part]) -> list["Awaited"]:
        for to, bytes_ in leaving:
            self.hub.queues[self.me, to].put(bytes_.clone())
        return [Awaited(self, source, place) for source, place in arriving]

    def fail(self, error: ParleyError, waits: bool = True) -> ParleyError:
        self.hub.failure = self.hub.failure or error
        return self.hub.failure


class Awaited:
    """Bytes that one member sends to another."""

    def __init__(self, fabric: InMemory, source: int, place: Tensor) -> None:
        self.fabric, self.source, self.place = fabric, source, place

    def wait(self) -> None:
        fabric, left = self.fabric, self.fabric.patience
        while fabric.hub.failure is None and left > 0:
            try:
                self.place.copy_(fabric.hub.queues[self.source, fabric.me].get(timeout=0.05))
                return
            except queue.Empty:
                left -= 0.05
        words = f"workers: lost {fabric.members[self.source]} (it did not answer in time)"
        raise fabric.hub.failure or WorkerLost(words, [self.source], True)


def together(world: int, work: Callable[[InMemory], Any]) -> list[Any]:
    """Several members, each in a thread: what each returns or raises."""
    hub, found = Hub(), [None] * world

    def one(rank: int) -> None:
        fabric = InMemory(hub, rank, world)
        try:
            found[rank] = work(fabric)
        except ParleyError as error:
            found[rank] = error  # type: ignore[call-overload]

    threads = [threading.Thread(target=one, args=(rank,)) for rank in range(world)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found
