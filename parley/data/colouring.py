"""One class per agent, different for neighbours: the colouring of a graph with limited colours."""

import heapq
from collections.abc import Sequence

from parley.graphs import Topology

# Step limit of the exact search: a few seconds of work. Graphs of a few dozen agents need far fewer
# steps.
SEARCH_BUDGET = 200_000


def spread_classes(topology: Topology, room: Sequence[int]) -> tuple[list[int], str]:
    """One class per agent, different for neighbours, class c at no more than room[c] agents.

    For more agents than classes. Returns the classes and a note. (If agents with several classes
    obeyed the rule, each could keep just one of them, so one class each loses no generality.)
    """
    agents, classes = topology.agents, len(room)
    adjacent: list[set[int]] = [set() for _ in range(agents)]
    for i, j in topology.edges:
        adjacent[i].add(j)
        adjacent[j].add(i)

    simple = [agent % classes for agent in range(agents)]
    if all(simple[i] != simple[j] for i, j in topology.edges) and all(
        simple.count(c) <= room[c] for c in range(classes)
    ):
        return simple, ""
    found, searched = colour(adjacent, room)
    if found is not None:
        return balance(found, adjacent, room), ""
    full = "fully connected " if all(len(a) == agents - 1 for a in adjacent) else ""
    verb = "cannot be" if searched < SEARCH_BUDGET else f"could not, in {searched} tries, be"
    return simple, (
        f"{classes} classes {verb} given to {agents} {full}agents "
        "so that no two neighbours share one"
    )


def colour(adjacent: Sequence[set[int]], room: Sequence[int]) -> tuple[list[int] | None, int]:
    """A proper colouring using colour c at most room[c] times, and the size of the search.

    Exact backtracking in DSATUR order: always the vertex with the fewest colours left. Its first
    descent is the DSATUR heuristic, which nearly always succeeds. None: there is no such
    colouring, or the budget is spent.
    """
    partial = _Partial(adjacent, room)
    # An explicit stack of (vertex, colours left to try): recursion would limit the agents.
    first = partial.next_vertex()
    stack = [(first, partial.choices(first))]
    for searched in range(SEARCH_BUDGET):
        while stack and not stack[-1][1]:
            stack.pop()
            if stack:
                partial.clear(stack[-1][0])
        if not stack:
            return None, searched
        v, options = stack[-1]
        partial.paint(v, options.pop())
        if len(stack) == len(adjacent):
            return partial.colour, searched
        v = partial.next_vertex()
        stack.append((v, partial.choices(v)))
    return None, SEARCH_BUDGET


class _Partial:
    """Some vertices have their colours, and the others know which ones are left to them."""

    def __init__(self, adjacent: Sequence[set[int]], room: Sequence[int]) -> None:
        n = len(adjacent)
        self.adjacent = adjacent
        self.colour = [-1] * n
        """The colour of each vertex, -1 for those that have none yet."""
        self.room = [min(r, n) for r in room]
        self.left = list(self.room)
        self.blocked = [[0] * len(room) for _ in range(n)]
        """blocked[v][c]: how many of v's neighbours have colour c."""
        self.saturation = [0] * n
        """How many different colours the neighbours of a vertex have."""
        self.waiting = [(0, -len(a), v) for v, a in enumerate(adjacent)]
        """Candidates for the next vertex, best first; outdated entries are skipped."""
        heapq.heapify(self.waiting)

    def paint(self, v: int, c: int) -> None:
        self.colour[v] = c
        self._count(v, c, +1)

    def clear(self, v: int) -> None:
        c, self.colour[v] = self.colour[v], -1
        self._wait(v)
        self._count(v, c, -1)

    def choices(self, v: int) -> list[int]:
        """Colours to try. Unused ones with equal room are interchangeable: one stands for all."""
        options, fresh = [], set()
        for c, free in enumerate(self.left):
            if free and not self.blocked[v][c]:
                unused = free == self.room[c]
                if not (unused and free in fresh):
                    options.append(c)
                if unused:
                    fresh.add(free)
        return options[::-1]

    def next_vertex(self) -> int:
        """The vertex with the fewest colours left; of those, the one with the most neighbours."""
        while True:
            saturation, _, v = self.waiting[0]
            if self.colour[v] < 0 and -saturation == self.saturation[v]:
                return v
            heapq.heappop(self.waiting)

    def _wait(self, v: int) -> None:
        heapq.heappush(self.waiting, (-self.saturation[v], -len(self.adjacent[v]), v))

    def _count(self, v: int, c: int, sign: int) -> None:
        """Colour c has come to v, or left it."""
        self.left[c] -= sign
        for w in self.adjacent[v]:
            before = self.blocked[w][c]
            self.blocked[w][c] = before + sign
            change = (before + sign > 0) - (before > 0)
            self.saturation[w] += change
            if change and self.colour[w] < 0:
                self._wait(w)


def balance(colour: list[int], adjacent: Sequence[set[int]], room: Sequence[int]) -> list[int]:
    """Recolours single vertices until all colours are used about equally often.

    Every move lowers the sum of squared numbers of holders, so it ends.
    """
    colour = list(colour)
    count = [colour.count(c) for c in range(len(room))]
    moved = True
    while moved:
        moved = False
        for v, old in enumerate(colour):
            taken = {colour[w] for w in adjacent[v]}
            free = [c for c in range(len(room)) if c not in taken and count[c] < room[c]]
            new = min(free, key=lambda c: count[c], default=old)
            if count[new] < count[old] - 1:
                colour[v] = new
                count[old] -= 1
                count[new] += 1
                moved = True
    return colour
