"""The peers of one generation: what each sends to another, and what all do together.

Collectives go along a spanning tree of the graph of peers, which all build alike: up to its first
peer and down again. Numbers are put together on the way and never added, so that every peer adds
them in the same order.
"""

import struct
from collections import deque
from collections.abc import Callable, Iterable, Sequence

from parley.errors import ParleyError
from parley.peers.frames import Buffer
from parley.peers.links import Links
from parley.peers.mailbox import PARCEL, TREE

PART = struct.Struct("<IQ")
"""Whose part follows, and how long it is."""


def tree(size: int, pairs: Iterable[tuple[int, int]]) -> list[list[int]]:
    """The neighbours of each on a breadth-first spanning tree from the first; the same wherever
    it is built.

    >>> tree(4, [(2, 1), (0, 2), (1, 3), (0, 1)])
    [[1, 2], [0, 3], [0], [1]]
    """
    near: list[set[int]] = [set() for _ in range(size)]
    for i, j in pairs:
        if i != j:
            near[i].add(j)
            near[j].add(i)
    grown: list[list[int]] = [[] for _ in range(size)]
    seen, waiting = {0}, deque([0])
    while waiting:
        here = waiting.popleft()
        for other in sorted(near[here] - seen):
            seen.add(other)
            waiting.append(other)
            grown[here].append(other)
            grown[other].append(here)
    if len(seen) < size:
        raise ParleyError("peers: the peers are not all connected by the graph")
    return [sorted(neighbours) for neighbours in grown]


class Group:
    """Some peers that train together, of which this is number `here`."""

    def __init__(
        self, links: Links, names: Sequence[str], pairs: Iterable[tuple[int, int]], generation: int
    ) -> None:
        """`pairs` are the peers that talk with each other, as positions among `names`."""
        self.links = links
        self.names = tuple(names)
        self.here = self.names.index(links.me)
        self.generation = generation
        self.pairs = {(min(pair), max(pair)) for pair in pairs}
        grown = tree(len(names), self.pairs)
        self.near = grown[self.here]
        """Neighbours on the tree."""
        self.toward = _paths(grown, self.here)
        """For every peer, the neighbour on the tree that leads to it."""
        self._sent = [0] * len(names)
        self._taken = [0] * len(names)
        self._collectives = 0

    @property
    def partners(self) -> list[str]:
        """Those whom this peer needs a link with."""
        both = [pair for pair in self.pairs if self.here in pair]
        return [self.names[i + j - self.here] for i, j in sorted(both)]

    def send(self, worker: int, parts: Sequence[Buffer]) -> None:
        """A parcel of messages between agents; does not wait."""
        self._sent[worker] += 1
        name = self.names[worker]
        self.links.post(name, PARCEL, self.generation, self._sent[worker], parts)

    def expect(self, worker: int, place: memoryview) -> Callable[[], memoryview]:
        """The next parcel from there, in that place unless it was on its way already; what this
        returns waits for it."""
        self._taken[worker] += 1
        name, number = self.names[worker], self._taken[worker]
        self.links.reserve(name, PARCEL, self.generation, number, place)
        return lambda: self.links.take(name, PARCEL, self.generation, number)

    def gather(self, own: Buffer) -> list[memoryview]:
        """What every peer gives, in the order of their numbers, at every peer."""
        number = self._next()
        mine = {self.here: memoryview(own).cast("B")}
        parent = self.toward[0] if self.here else None
        children = [neighbour for neighbour in self.near if neighbour != parent]
        behind = {child: self._unpacked(child, number) for child in children}
        if parent is not None:
            self._tell(parent, number, [mine, *behind.values()])
            behind[parent] = self._unpacked(parent, number)
        for child in children:
            others = [parts for neighbour, parts in behind.items() if neighbour != child]
            self._tell(child, number, [mine, *others])
        known = dict(mine)
        for parts in behind.values():
            known |= parts
        if sorted(known) != list(range(len(self.names))):
            raise ParleyError(f"peers: not everyone was heard: {sorted(known)}")
        return [known[worker] for worker in range(len(self.names))]

    def broadcast(self, own: Buffer | None, source: int) -> memoryview:
        """What one peer gives, at every peer."""
        number = self._next()
        if self.here == source:
            assert own is not None
            came, value = -1, memoryview(own).cast("B")
        else:
            came = self.toward[source]
            value = self.links.take(self.names[came], TREE, self.generation, number)
        for neighbour in self.near:
            if neighbour != came:
                name = self.names[neighbour]
                self.links.post(name, TREE, self.generation, number, [value])
        return value

    def _next(self) -> int:
        self._collectives += 1
        return self._collectives

    def _tell(self, neighbour: int, number: int, known: Sequence[dict[int, memoryview]]) -> None:
        parts: list[Buffer] = []
        for some in known:
            for worker, value in some.items():
                parts += [PART.pack(worker, len(value)), value]
        self.links.post(self.names[neighbour], TREE, self.generation, number, parts)

    def _unpacked(self, neighbour: int, number: int) -> dict[int, memoryview]:
        name = self.names[neighbour]
        body = self.links.take(name, TREE, self.generation, number)
        found: dict[int, memoryview] = {}
        at = 0
        while at < len(body):
            if at + PART.size > len(body):
                raise ParleyError(f"peers: {name} sent a message that is cut off")
            worker, length = PART.unpack_from(body, at)
            at += PART.size
            behind = worker < len(self.names) and self.toward[worker] == neighbour
            if not behind or worker in found or at + length > len(body):
                raise ParleyError(f"peers: {name} sent a part that it cannot have (of {worker})")
            found[worker] = body[at : at + length]
            at += length
        return found


def _paths(grown: Sequence[Sequence[int]], here: int) -> list[int]:
    """The neighbour of `here` through which each other is reached; itself for `here`."""
    through = [here] * len(grown)
    for first in grown[here]:
        waiting = [(first, here)]
        while waiting:
            node, before = waiting.pop()
            through[node] = first
            waiting += [(n, node) for n in grown[node] if n != before]
    return through
