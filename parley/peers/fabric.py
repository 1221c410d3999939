"""The fabric of peers: what each sends to another over its links, and what all do together.

Collectives go along a spanning tree of the graph of peers, which all build alike: up to its first
peer and down again. Numbers are put together on the way and never added, so that every peer adds
them in the same order.
"""

import struct
from collections import deque
from collections.abc import Callable, Iterable, Sequence

from parley.errors import ParleyError
from parley.fabric.base import Buffer, Fabric, Member, Part, WorkerLost, listed, view
from parley.fabric.failure import written_failure
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


class Linked(Fabric):
    """Peers that train together, each linked with those that its agents talk with."""

    alone_on_host = True
    called = "peers"

    def __init__(
        self,
        links: Links,
        members: Sequence[Member],
        pairs: Iterable[tuple[int, int]],
        generation: int,
        attend: Callable[[], None] = lambda: None,
        remedy: str = "",
    ) -> None:
        """`pairs` are the peers that talk with each other, as positions among `members`. `attend`
        reads what else has happened, and raises what ends this generation; `remedy` says what can
        be done if a member is lost."""
        self.links = links
        self.names = tuple(member.name for member in members)
        super().__init__(self.names.index(links.me), members, links.patience, links.me)
        self.generation = generation
        self.pairs = {(min(pair), max(pair)) for pair in pairs}
        self._attend_to = attend
        self._remedy = remedy
        self._heard: ParleyError | None = None
        """Why the others have ended."""
        grown = tree(len(self.names), self.pairs)
        self.near = grown[self.me]
        """Neighbours on the tree."""
        self.toward = _paths(grown, self.me)
        """For every peer, the neighbour on the tree that leads to it."""
        self._sent = [0] * len(self.names)
        self._taken = [0] * len(self.names)
        self._collectives = 0

    @property
    def partners(self) -> list[str]:
        """Those whom this peer needs a link with."""
        both = [pair for pair in self.pairs if self.me in pair]
        return [self.names[i + j - self.me] for i, j in sorted(both)]

    def exchange(self, leaving: Sequence[Part], arriving: Sequence[Part]) -> list["_Parcel"]:
        """Begins to send some bytes, and to receive others in the places given for them, unless
        they were on their way already."""
        self._attend()
        for to, bytes_ in leaving:
            self._sent[to] += 1
            self.links.post(self.names[to], PARCEL, self.generation, self._sent[to], [view(bytes_)])
        return [self._awaited(source, view(place)) for source, place in arriving]

    def _awaited(self, source: int, place: memoryview) -> "_Parcel":
        self._taken[source] += 1
        name, number = self.names[source], self._taken[source]
        self.links.reserve(name, PARCEL, self.generation, number, place)
        return _Parcel(self, source, number, place)

    def gather(self, own: Buffer, sizes: Sequence[int] | None = None) -> list[memoryview]:
        """What every peer gives, in the order of their numbers, at every peer."""
        number = self._next()
        mine = {self.me: _copied(own)}
        parent = self.toward[0] if self.me else None
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

    def broadcast(self, own: Buffer | None, source: int, size: int) -> memoryview:
        """What one peer gives, at every peer."""
        number = self._next()
        if self.me == source:
            assert own is not None
            came, value = -1, _copied(own)
        else:
            came = self.toward[source]
            value = self.take(came, TREE, number)
        for neighbour in self.near:
            if neighbour != came:
                name = self.names[neighbour]
                self.links.post(name, TREE, self.generation, number, [value])
        return value

    def fail(self, error: ParleyError, waits: bool = True) -> ParleyError:
        """Tells the others why this peer ends, unless one of them has told it."""
        if error is self._heard or error is self.links.failure:
            return error
        if isinstance(error, WorkerLost):
            hosted = [member.agents for member in self.members if member.name in error.names]
            agents = "".join(f", with {listed(agents)}" for agents in hosted)
            error = error.saying(f"{error}{agents}; {self._remedy}")
        self.links.flood({"kind": "failure", "note": written_failure(error)})
        return error

    def take(self, source: int, lane: int, number: int) -> memoryview:
        """The message of that number; waits for it as long as the patience lasts, and for as long
        as the generation does."""
        name, links, began = self.names[source], self.links, self.links.now()
        seconds = 0.0
        while (body := links.take(name, lane, self.generation, number, seconds)) is None:
            self._attend()
            if (why := links.lost(name, began)) is not None:
                # One that was started again comes back, so the others need not go on without it.
                away = [] if links.links[name].restarted else [source]
                raise WorkerLost(f"peers: lost {name} ({why})", away, True, [name])
            seconds = 0.1
        return body

    def _attend(self) -> None:
        try:
            self._attend_to()
        except ParleyError as error:
            self._heard = error
            raise

    def _next(self) -> int:
        self._attend()
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
        body = self.take(neighbour, TREE, number)
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


class _Parcel:
    """A parcel that is awaited from one peer."""

    def __init__(self, fabric: Linked, source: int, number: int, place: memoryview) -> None:
        self._fabric = fabric
        self._source = source
        self._number = number
        self._place = place

    def wait(self) -> None:
        """Puts it where it belongs, unless it is there already."""
        place = self._place
        body = self._fabric.take(self._source, PARCEL, self._number)
        if len(body) != len(place):
            raise ParleyError(
                f"peers: {self._fabric.names[self._source]} sent {len(body)} bytes of messages, "
                f"{len(place)} were expected"
            )
        if body is not place:
            place[:] = body


def _copied(own: Buffer) -> memoryview:
    """For what may be sent, or sent again, when the values have already changed."""
    return memoryview(bytes(own))


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
