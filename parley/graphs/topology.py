"""Who talks to whom, and how much weight each gives the other: graphs and mixing matrices.

    parse("circulant:1,5", agents=10)   what a config or the command line writes
    circulant(10, [1, 5])               the same from Python

An edge (j, i) means "j sends to i", and `weights[i, j]` is the weight that i gives to what j
sends, so one gossip step is x <- weights @ x and its rows are the receivers. What is stored is
`mixing`, the same matrix in sparse form, so that a graph costs memory only for its edges.

>>> from parley.graphs import ring
>>> ring(4).weights.round(3)
array([[0.333, 0.333, 0.   , 0.333],
       [0.333, 0.333, 0.333, 0.   ],
       [0.   , 0.333, 0.333, 0.333],
       [0.333, 0.   , 0.333, 0.333]])
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, TypeAlias, assert_never, final

import networkx as nx
import numpy as np
import numpy.typing as npt
import scipy

from parley.errors import BadValue
from parley.graphs.checks import check_connected, on_cycles, one_way_edge
from parley.graphs.matrices import (
    TOLERANCE,
    Edge,
    Matrix,
    Sparse,
    Vector,
    by_modulus,
    pattern_of_graph,
    places_where,
    product,
    read_only,
    row_of_each,
    two_eigenvalues,
)
from parley.graphs.weights import as_mixing

Property: TypeAlias = Literal[
    "symmetric", "doubly-stochastic", "row-stochastic", "column-stochastic"
]
DENSE = 2000
"""Up to this many agents, all eigenvalues are computed even if only the outermost are needed."""
SOURCES = 100  # source agents per batch when measuring distances


@final
@dataclass(frozen=True, eq=False)
class Topology:
    """A strongly connected graph of agents 0..N-1 with the weights of one gossip step.

    >>> from parley.graphs import star
    >>> t = star(4)
    >>> t.agents, t.neighbours(0), t.neighbours(3), t.diameter
    (4, (1, 2, 3), (0,), 2)
    >>> t.edges
    ((1, 0), (2, 0), (3, 0), (0, 1), (0, 2), (0, 3))
    """

    name: str
    """The spec it came from, such as "ring" or "circulant:1,5"."""
    graph: nx.DiGraph[int]
    """Nodes 0..N-1, no self-loops; an edge (j, i) means that j sends to i."""
    mixing: Sparse  # [N, N]
    """At [i, j] the weight that i gives to j's value: one entry per edge j -> i and one per agent,
    even if zero, sorted by row, then column. Any kind of matrix is accepted."""
    scheme: str = "explicit"
    """How the weights were made: "uniform", "metropolis", "sinkhorn", "push" or "explicit"."""
    phases: tuple[Topology, ...] = ()
    """The graphs of a sequence, used in turn for one step each, starting over after the last one.
    `graph` has all their edges, and `mixing` is the mean of theirs. Empty: the graph is fixed.
    """
    part: bool = False
    """Whether it is a phase of a sequence, which need not be connected on its own."""

    def __post_init__(self) -> None:
        n = len(self.graph)
        if n == 0:
            raise BadValue("agents", 0, "1 or more")
        fits = self.graph.is_directed() and set(self.graph) == set(range(n))
        if not fits or nx.number_of_selfloops(self.graph):
            raise BadValue(
                "topology", self.name, "a DiGraph on 0..N-1 without self-loops, or from_graph(...)"
            )
        if not self.part:
            check_connected(self.name, self.graph)
        # Copies, locked: a topology is shared by every agent of a worker.
        object.__setattr__(self, "graph", nx.freeze(nx.DiGraph(self.graph)))
        mixing = as_mixing(self.mixing, self.graph)
        for part in (mixing.data, mixing.indices, mixing.indptr):
            part.setflags(write=False)
        object.__setattr__(self, "mixing", mixing)

    @property
    def agents(self) -> int:
        """The number of agents, N."""
        return len(self.graph)

    @property
    def period(self) -> int:
        """The number of steps after which the sequence of graphs repeats."""
        return len(self.phases) or 1

    def at(self, step: int) -> Topology:
        """The graph of a step.

        >>> from parley.graphs import one_peer_exponential
        >>> one_peer_exponential(8).at(4).neighbours(0)  # steps of 1, 2, 4, 1, 2, …
        (6,)
        """
        return self.phases[step % len(self.phases)] if self.phases else self

    @cached_property
    def edges(self) -> tuple[Edge, ...]:
        """Every directed edge (source, destination), ordered by destination, then source."""
        others = self._others
        sources, destinations = self.mixing.indices[others], row_of_each(self.mixing)[others]
        return tuple(zip(sources.tolist(), destinations.tolist(), strict=True))

    @cached_property
    def weights(self) -> Matrix:  # [N, N]
        """`mixing` as a dense matrix of N² numbers, for inspection and small graphs.

        `weights[i, j]` is the weight i gives to j's value; nonzero only if j sends to i or i == j.
        """
        return read_only(self.mixing.toarray())

    @cached_property
    def edge_weights(self) -> Vector:  # [E]
        """The weight that the destination of each of the `edges` gives to its source's value.

        >>> from parley.graphs import star
        >>> t = star(3)
        >>> t.edges[2], t.edge_weights.round(3)
        ((0, 1), array([0.333, 0.333, 0.333, 0.333]))
        """
        # Entries are sorted by row and column, that is, by destination and source.
        return read_only(self.mixing.data[self._others])

    @cached_property
    def self_weights(self) -> Vector:  # [N]
        """The weight each agent gives to its own value."""
        return read_only(self.mixing.data[~self._others])

    @cached_property
    def _others(self) -> npt.NDArray[np.bool_]:
        """Which entries of `mixing` are off the diagonal."""
        others: npt.NDArray[np.bool_] = row_of_each(self.mixing) != self.mixing.indices
        return others

    @cached_property
    def rounds(self) -> tuple[tuple[int, ...], ...]:
        """The edges, as indices into `edges`, in chunks of at most N.

        Streaming one chunk after another keeps edge tensors as small as the agents' models, N x D,
        where all edges at once would need |E| x D.

        An edge's slot is its position among its destination's incoming edges. A slot therefore
        has at most one edge per agent; neighbouring slots share a round while they fit in N.

        >>> from parley.graphs import ring, star
        >>> [len(r) for r in ring(6).rounds], [len(r) for r in star(6).rounds]
        ([6, 6], [6, 4])
        """
        slots: list[list[int]] = []
        position = dict.fromkeys(range(self.agents), 0)
        for index, (_, dst) in enumerate(self.edges):
            if position[dst] == len(slots):
                slots.append([])
            slots[position[dst]].append(index)
            position[dst] += 1
        rounds: list[list[int]] = []
        for slot in slots:
            if rounds and len(rounds[-1]) + len(slot) <= self.agents:
                rounds[-1] += slot
            else:
                rounds.append(slot)
        return tuple(tuple(sorted(r)) for r in rounds)

    def same_as(self, other: Topology) -> bool:
        """Whether both have the same graphs with the same weights, to the last bit.

        >>> from parley.graphs import circulant, ring, star
        >>> ring(4).same_as(circulant(4, [1])), ring(4).same_as(ring(4, weights="push"))
        (True, True)
        >>> star(4).same_as(star(4, weights="uniform"))
        False
        """
        if self.agents != other.agents or self.period != other.period:
            return False
        if self.phases:
            return all(p.same_as(q) for p, q in zip(self.phases, other.phases, strict=True))
        a, b = self.mixing, other.mixing
        return all(
            np.array_equal(getattr(a, part), getattr(b, part))
            for part in ("indptr", "indices", "data")
        )

    def neighbours(self, agent: int) -> tuple[int, ...]:
        """The agents that send to `agent`, in order."""
        return tuple(sorted(self.graph.predecessors(agent)))

    @cached_property
    def degrees(self) -> tuple[int, ...]:
        """The number of neighbours that each agent hears from."""
        return tuple(int(self.graph.in_degree(i)) for i in range(self.agents))

    @cached_property
    def out_degrees(self) -> tuple[int, ...]:
        """The number of neighbours that each agent sends to."""
        return tuple(int(self.graph.out_degree(i)) for i in range(self.agents))

    @cached_property
    def directed(self) -> bool:
        """Whether some agent sends to one that does not send back."""
        return one_way_edge(self.graph) is not None

    @cached_property
    def symmetric(self) -> bool:
        """Whether any two agents give each other the same weight."""
        return self._flaw("symmetric") is None

    @cached_property
    def row_stochastic(self) -> bool:
        """Whether each agent takes a weighted mean: no negative weight, rows sum to 1."""
        return self._flaw("row-stochastic") is None

    @cached_property
    def doubly_stochastic(self) -> bool:
        """Whether columns sum to 1 too, so that mixing preserves the mean over agents."""
        return self._flaw("doubly-stochastic") is None

    @cached_property
    def column_stochastic(self) -> bool:
        """Whether each agent shares out its own value: no negative weight, columns sum to 1."""
        return self._flaw("column-stochastic") is None

    @cached_property
    def product(self) -> Matrix:  # [N, N]
        """The effect of a whole period: the product of the phases' weights, the last leftmost."""
        if not self.phases:
            return self.weights
        return read_only(_in_turn(self.phases, np.eye(self.agents)))

    @cached_property
    def exact_after(self) -> int | None:
        """The number of rounds, from the first, to the exact mean; None if a period falls short.

        >>> from parley.graphs import base, full, one_peer_exponential
        >>> base(6, 1).exact_after, one_peer_exponential(6).exact_after, full(4).exact_after
        (4, None, 1)
        """
        # One random vector decides it: any other matrix maps almost no vector to its mean.
        values = np.random.default_rng(0).normal(size=(self.agents, 1))
        mean = values.mean()
        for rounds, phase in enumerate(self.phases or (self,), start=1):
            values = product(phase.mixing, values)
            if np.abs(values - mean).max() <= TOLERANCE:
                return rounds
        return None

    @cached_property
    def eigenvalues(self) -> npt.NDArray[np.complex128]:  # [N]
        """The eigenvalues of the weights (for a sequence, of a period's product) in order of
        decreasing modulus: N³ work on the dense matrix."""
        symmetric = np.array_equal(self.product, self.product.T)
        values = (np.linalg.eigvalsh if symmetric else np.linalg.eigvals)(self.product)
        return by_modulus(values)

    @cached_property
    def _outer_eigenvalues(self) -> npt.NDArray[np.complex128]:
        """`eigenvalues`, or for many agents with symmetric weights two at each end."""
        w = self.mixing
        if self.phases and self.agents > DENSE:
            return _outer_of_product(self.phases)
        if self.agents <= DENSE or abs(scipy.sparse.csr_array(w - w.T)).max() > 0:
            return self.eigenvalues
        return by_modulus(np.append(two_eigenvalues(w, "LA"), two_eigenvalues(w, "SA")))

    @cached_property
    def spectral_gap(self) -> float:
        """1 - max(|λ₂|, |λ_N|): how much of the disagreement one gossip step removes; for a
        sequence, one period.

        >>> from parley.graphs import full, ring
        >>> full(5).spectral_gap, round(ring(5).spectral_gap, 4)
        (1.0, 0.4607)
        """
        if self.phases and self.exact_after is not None:
            return 1.0  # the product is almost zero: no eigenvalues worth computing
        gap = 1.0 - float(np.abs(self._outer_eigenvalues[1:2]).sum())  # a lone agent has no second
        return round(gap, 12)  # the accuracy of the eigenvalues

    @cached_property
    def lambda_min(self) -> float:
        """The smallest eigenvalue (its real part, if the weights are not symmetric)."""
        return round(float(self._outer_eigenvalues.real.min()), 12)

    @cached_property
    def diameter(self) -> int:
        """The number of hops between the two agents farthest apart."""
        pattern = pattern_of_graph(self.graph)
        farthest = 0.0
        for start in range(0, self.agents, SOURCES):
            some = np.arange(start, min(start + SOURCES, self.agents))
            hops = scipy.sparse.csgraph.dijkstra(pattern, unweighted=True, indices=some)
            farthest = max(farthest, hops.max())
        return int(farthest)

    def require(self, what: Property, who: str) -> None:
        """Refuses weights that `who` cannot work with, and says why.

        >>> from parley.graphs import star
        >>> star(3, weights="uniform").require("symmetric", "choco")
        Traceback (most recent call last):
        parley.errors.BadValue: weights: 'uniform' is not valid (choco needs symmetric weights;
        agent 0 gives agent 1 0.333333 but gets 0.5); valid: weights=metropolis
        """
        flaw = self._flaw(what)
        if flaw is None:
            return
        match what:
            case "doubly-stochastic" if any(not on_cycles(p.graph) for p in self.phases):
                remedy = "rounds in which every edge lies on a cycle, or push-sum"
            case "symmetric" if self.directed:
                remedy = "weights=metropolis on an undirected topology, such as ring"
            case "symmetric":
                remedy = "weights=metropolis"
            case "doubly-stochastic":
                remedy = "weights=sinkhorn" if self.directed else "weights=metropolis"
            case "row-stochastic":
                remedy = "weights=auto, or a matrix of weights of at least 0 whose rows sum to 1"
            case "column-stochastic":
                remedy = "weights=push"
            case _:
                assert_never(what)
        raise BadValue("weights", self.scheme, remedy, f"{who} needs {what} weights; {flaw}")

    def _flaw(self, what: Property) -> str | None:
        """The first place where the weights lack a property, in words; None if they have it.

        A sequence has it if every round does.
        """
        for number, phase in enumerate(self.phases):
            if (flaw := phase._flaw(what)) is not None:
                return f"in round {number} {flaw}"
        if self.phases:
            return None
        w, one = self.mixing, np.ones(self.agents)
        if what == "symmetric":
            excess = scipy.sparse.csr_array(w - w.T)
            excess.sum_duplicates()
            for i, j in places_where(excess, np.abs(excess.data) > TOLERANCE):
                return f"agent {i} gives agent {j} {w[i, j]:g} but gets {w[j, i]:g}"
            return None
        for i, j in places_where(w, w.data < -TOLERANCE):
            return f"agent {i} gives agent {j} the negative weight {w[i, j]:g}"
        rows, columns = product(w, one), product(w.T, one)
        if what != "column-stochastic":
            for i in np.flatnonzero(np.abs(rows - 1) > TOLERANCE).tolist():
                return f"row {i} sums to {rows[i]:g}"
        if what != "row-stochastic":
            for j in np.flatnonzero(np.abs(columns - 1) > TOLERANCE).tolist():
                return f"column {j} sums to {columns[j]:g}"
        return None


def describe(topology: Topology) -> dict[str, str | int | float | bool | None]:
    """A topology's figures as plain values, ready for JSON or a table.

    For a sequence, degrees and diameter are those of all its edges together.

    >>> from parley.graphs import ring
    >>> describe(ring(10))["degree_mean"], describe(ring(10))["diameter"]
    (2.0, 5)
    """
    phases = topology.phases or (topology,)
    return {
        "name": topology.name,
        "agents": topology.agents,
        "edges": len(topology.edges),
        "degree_min": min(topology.degrees),
        "degree_mean": len(topology.edges) / topology.agents,
        "degree_max": max(topology.degrees),
        "directed": topology.directed,
        "weights": topology.scheme,
        "symmetric": topology.symmetric,
        "doubly_stochastic": topology.doubly_stochastic,
        "spectral_gap": topology.spectral_gap,
        "lambda_min": topology.lambda_min,
        "diameter": topology.diameter,
        "messages_per_round": float(np.mean([len(t.edges) for t in phases])) / topology.agents,
        "period": topology.period,
        "exact_after": topology.exact_after,
    }


def _in_turn(phases: Sequence[Topology], values: Matrix) -> Matrix:
    for phase in phases:
        values = product(phase.mixing, values)
    return values


def _outer_of_product(phases: Sequence[Topology]) -> npt.NDArray[np.complex128]:
    """The two largest eigenvalues of a period's product, for many agents."""
    n = phases[0].agents
    operator = scipy.sparse.linalg.LinearOperator(
        (n, n), matvec=lambda v: _in_turn(phases, v.reshape(-1, 1)), dtype=np.float64
    )
    start = np.random.default_rng(0).normal(size=n)
    return by_modulus(scipy.sparse.linalg.eigs(operator, k=2, v0=start, return_eigenvectors=False))
