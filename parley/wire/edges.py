"""Which edges are where, for one placement: every list of edges and of rows, computed once.

Axes: A agents hosted here, I their incoming edges, O their outgoing edges, R rows that hold
messages. Edges are numbers in ``topology.edges``; lists by round are in the order of the rounds.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from itertools import chain, groupby

import torch
from torch import Tensor

from parley.wire.placement import Placement

Round = tuple[int, ...]
"""Some edges of one round."""


def index(values: Iterable[int]) -> Tensor:
    """Rows as a tensor, to select by."""
    return torch.tensor(list(values), dtype=torch.int64)


class Edges:
    """The hosted agents' edges, by round and by where their other ends are."""

    def __init__(self, placement: Placement) -> None:
        self.placement = placement
        ends, row = placement.topology.edges, placement.row
        rounds: Sequence[Round] = placement.topology.rounds
        self.incoming_of = [tuple(e for e in r if ends[e][1] in row) for r in rounds]
        """The incoming edges of each round."""
        self.outgoing_of = [tuple(e for e in r if ends[e][0] in row) for r in rounds]
        """The outgoing edges of each round."""
        self.inside = [tuple(e for e in r if ends[e][0] in row) for r in self.incoming_of]
        """The edges of each round with both ends here."""
        self.from_others = [tuple(e for e in r if ends[e][0] not in row) for r in self.incoming_of]
        """The incoming edges of each round that start in another worker."""
        self.to_others = [tuple(e for e in r if ends[e][1] not in row) for r in self.outgoing_of]
        """The outgoing edges of each round that end in another worker."""
        self.alone = not any(self.from_others) and not any(self.to_others)
        """Whether no edge leads to another worker."""
        self.incoming = list(chain.from_iterable(self.incoming_of))
        """Axis I."""
        self.outgoing = list(chain.from_iterable(self.outgoing_of))
        """Axis O."""
        self.receivers_of = [[row[ends[e][1]] for e in r] for r in self.incoming_of]
        """Row on A of the agent where each incoming edge of a round ends."""
        self.senders_of = [[row[ends[e][0]] for e in r] for r in self.outgoing_of]
        """Row on A of the agent where each outgoing edge of a round starts."""
        self.receivers = index(chain.from_iterable(self.receivers_of))
        """`receivers_of` for all of axis I, to select by."""
        self.senders = index(chain.from_iterable(self.senders_of))
        """`senders_of` for all of axis O, to select by."""
        self.repliers_of = [index(rows) for rows in self.receivers_of]
        """`receivers_of` for each round, to select by."""

    @cached_property
    def out(self) -> "Route":
        """Every agent's message to its out-neighbours."""
        row, ends = self.placement.row, self.placement.topology.edges
        own = {e: row[ends[e][0]] for e in self.placement.outgoing}
        return Route(self.placement, own, len(row), self.placement.incoming)

    @cached_property
    def back_of(self) -> list["Route"]:
        """The replies on a round's edges; their rows are in the order of its incoming edges."""
        return [
            self._replies(came, len(came), went)
            for came, went in zip(self.incoming_of, self.outgoing_of, strict=True)
        ]

    @cached_property
    def back_to_others_of(self) -> list["Route"]:
        """The replies on a round's edges between workers only."""
        return [
            self._replies(came, 0, went)
            for came, went in zip(self.from_others, self.to_others, strict=True)
        ]

    def _replies(self, came: Round, rows: int, went: Round) -> "Route":
        own = {e: r for r, e in enumerate(came)}
        return Route(self.placement, own, rows, went, reply=True)

    def along(self, edges: Sequence[int]) -> "Route":
        """Messages along some edges only."""
        row, ends = self.placement.row, self.placement.topology.edges
        own = {e: row[ends[e][0]] for e in edges if ends[e][0] in row}
        return Route(self.placement, own, len(row), [e for e in edges if ends[e][1] in row])

    @property
    def row_of(self) -> Mapping[int, int]:
        """The row of the message on each incoming edge, with the hosted agents' own messages first
        and those of other workers after them."""
        return self.out.row_of

    @cached_property
    def arrived(self) -> dict[Round, Tensor]:
        """The same for the edges of `incoming_of` and of `from_others`, to select by."""
        rounds = {*self.incoming_of, *self.from_others}
        return {r: index(self.row_of[e] for e in r) for r in rounds}


class Route:
    """One direction of traffic: what goes to whom and what comes from whom.

    All messages for one worker go in one transfer, in the order of the edges' numbers, which both
    ends know.
    """

    def __init__(
        self,
        placement: Placement,
        own: Mapping[int, int],
        rows: int,
        expected: Sequence[int],
        reply: bool = False,
    ) -> None:
        """`own` is the row of the message for each edge; `expected` are the edges on which messages
        arrive."""
        edges, worker_of, here = placement.topology.edges, placement.worker_of, placement.here
        near, far = (1, 0) if reply else (0, 1)

        def sorted_by_worker(candidates: Iterable[int], end: int) -> list[int]:
            remote = [e for e in candidates if worker_of[edges[e][end]] != here]
            return sorted(remote, key=lambda e: (worker_of[edges[e][end]], e))

        def parts(chosen: list[int], end: int) -> list[tuple[int, slice]]:
            """The rows for each worker."""
            groups = groupby(range(len(chosen)), lambda r: worker_of[edges[chosen[r]][end]])
            bounds = [(worker, list(r)) for worker, r in groups]
            return [(worker, slice(r[0], r[-1] + 1)) for worker, r in bounds]

        leaving, arriving = sorted_by_worker(own, far), sorted_by_worker(expected, near)
        self.to, self.of = parts(leaving, far), parts(arriving, near)
        """Workers, with the rows that go to them and that come from them."""
        self.leaving = [(edges[e][near], edges[e][far]) for e in leaving]
        """Sender and receiver of each message that goes to another worker."""
        self.arriving = [(edges[e][near], edges[e][far]) for e in arriving]
        """The same for those that come from others."""
        self.rows = index(own[e] for e in leaving)
        """Rows of the messages that go to other workers."""
        self.row_of = {e: rows + r for r, e in enumerate(arriving)}
        """The row of a message when those that arrived follow the worker's own."""
        self.row_of |= {e: own[e] for e in expected if worker_of[edges[e][near]] == here}
        self.order = index(self.row_of[e] for e in expected)
        """The same for all expected edges, in their order."""
