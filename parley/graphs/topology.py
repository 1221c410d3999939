"""Who talks to whom, and how much weight each gives the other: graphs and mixing matrices.

    parse("circulant:1,5", agents=10)   what a config or the command line writes
    circulant(10, [1, 5])               the same from Python

An edge (j, i) means "j sends to i", and `weights[i, j]` is the weight that i gives to what j
sends, so one gossip step is x <- weights @ x and its rows are the receivers. Kept is `mixing`,
the same matrix with its zeros left out, so that a graph costs what its edges do.

>>> ring(4).weights.round(3)
array([[0.333, 0.333, 0.   , 0.333],
       [0.333, 0.333, 0.333, 0.   ],
       [0.   , 0.333, 0.333, 0.333],
       [0.333, 0.   , 0.333, 0.333]])
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import chain as joined
from pathlib import Path
from typing import Any, Literal, TypeAlias, assert_never, final

import networkx as nx
import numpy as np
import numpy.typing as npt
from scipy.sparse import csgraph, csr_array, issparse
from scipy.sparse.linalg import ArpackNoConvergence, LinearOperator, eigs, eigsh

from parley.errors import BadValue, unknown_name
from parley.graphs import sequences

Matrix: TypeAlias = npt.NDArray[np.float64]
Vector: TypeAlias = npt.NDArray[np.float64]
Indices: TypeAlias = npt.NDArray[np.integer]
Sparse: TypeAlias = "csr_array[np.float64, tuple[int, int]]"
Edge: TypeAlias = tuple[int, int]
Weights: TypeAlias = "str | npt.ArrayLike | Sparse"
"""A scheme's name ("auto", "uniform", "metropolis", "sinkhorn", "push") or the matrix itself, which
may be a scipy.sparse one."""
Property: TypeAlias = Literal[
    "symmetric", "doubly-stochastic", "row-stochastic", "column-stochastic"
]

TOLERANCE = 1e-9
DENSE = 2000
"""Most agents for which all eigenvalues are computed where only the outermost are asked for."""
LANCZOS = 30  # restarts before a spectrum counts as too crowded for Lanczos
SOURCES = 100  # agents at a time from which distances are measured
DRAWS = 100  # how often a random graph is drawn again before it counts as never connected
MATCHINGS = 32
"""Random matchings after which a sequence of them begins anew, unless it says how many."""


@final
@dataclass(frozen=True, eq=False)
class Topology:
    """A strongly connected graph of agents 0..N-1 with the weights of one gossip step.

    >>> t = star(4)
    >>> t.agents, t.neighbours(0), t.neighbours(3), t.diameter
    (4, (1, 2, 3), (0,), 2)
    >>> t.edges
    ((1, 0), (2, 0), (3, 0), (0, 1), (0, 2), (0, 3))
    """

    name: str
    """The spec that it came from, such as "ring" or "circulant:1,5"."""
    graph: nx.DiGraph[int]
    """Nodes 0..N-1, no self-loops; an edge (j, i) means that j sends to i."""
    mixing: Sparse  # [N, N]
    """At [i, j] what i gives to j's value: one entry for each edge j -> i and one for each agent,
    be they zero, sorted by row, then column. May be given as any kind of matrix."""
    scheme: str = "explicit"
    """How the weights were made: "uniform", "metropolis", "sinkhorn", "push" or "explicit"."""
    phases: tuple[Topology, ...] = ()
    """The graphs of a sequence, used one after the other, a step each, and then from the first
    again. `graph` has all their edges, and `mixing` is the mean of theirs. None: it never changes.
    """
    part: bool = False
    """Whether it is one of a sequence's phases, which need not be connected by itself."""

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
            _check_connected(self.name, self.graph)
        # Copies, locked: a topology is shared by every agent of a worker.
        object.__setattr__(self, "graph", nx.freeze(nx.DiGraph(self.graph)))
        mixing = _as_mixing(self.mixing, self.graph)
        for part in (mixing.data, mixing.indices, mixing.indptr):
            part.setflags(write=False)
        object.__setattr__(self, "mixing", mixing)

    @property
    def agents(self) -> int:
        """How many agents there are, N."""
        return len(self.graph)

    @property
    def period(self) -> int:
        """After how many steps the same graphs come again."""
        return len(self.phases) or 1

    def at(self, step: int) -> Topology:
        """The graph of a step.

        >>> one_peer_exponential(8).at(4).neighbours(0)  # steps of 1, 2, 4, 1, 2, …
        (6,)
        """
        return self.phases[step % len(self.phases)] if self.phases else self

    @cached_property
    def edges(self) -> tuple[Edge, ...]:
        """Every directed edge (source, destination), ordered by destination, then source."""
        others = self._others
        sources, destinations = self.mixing.indices[others], _rows(self.mixing)[others]
        return tuple(zip(sources.tolist(), destinations.tolist(), strict=True))

    @cached_property
    def weights(self) -> Matrix:  # [N, N]
        """`mixing` with its zeros, N² numbers: to look at, and for small graphs.

        `weights[i, j]` is what i gives to j's value; nonzero only where j sends to i or i == j.
        """
        return _locked(self.mixing.toarray())

    @cached_property
    def edge_weights(self) -> Vector:  # [E]
        """What the destination of each of the `edges` gives to its source's value.

        >>> t = star(3)
        >>> t.edges[2], t.edge_weights.round(3)
        ((0, 1), array([0.333, 0.333, 0.333, 0.333]))
        """
        # Entries are sorted by row and column, which is by destination and source.
        return _locked(self.mixing.data[self._others])

    @cached_property
    def self_weights(self) -> Vector:  # [N]
        """What each agent gives to its own value."""
        return _locked(self.mixing.data[~self._others])

    @cached_property
    def _others(self) -> npt.NDArray[np.bool_]:
        """Which entries of `mixing` are not on its diagonal."""
        others: npt.NDArray[np.bool_] = _rows(self.mixing) != self.mixing.indices
        return others

    @cached_property
    def rounds(self) -> tuple[tuple[int, ...], ...]:
        """The edges, as indices into `edges`, in chunks of at most N.

        Streaming one chunk after another keeps edge tensors at the size of the agents' own,
        N x D, where all edges at once would need |E| x D.

        An edge's slot is its position among its destination's incoming edges. A slot therefore
        has at most one edge per agent; neighbouring slots share a round while they fit in N.

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
        """How many neighbours each agent hears."""
        return tuple(int(self.graph.in_degree(i)) for i in range(self.agents))

    @cached_property
    def out_degrees(self) -> tuple[int, ...]:
        """How many neighbours each agent sends to."""
        return tuple(int(self.graph.out_degree(i)) for i in range(self.agents))

    @cached_property
    def directed(self) -> bool:
        """Whether some agent sends to one that does not send back."""
        return _one_way(self.graph) is not None

    @cached_property
    def symmetric(self) -> bool:
        """Whether every two agents give each other the same weight."""
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
        """What a whole period does to the values: the phases' weights, the last one leftmost."""
        if not self.phases:
            return self.weights
        return _locked(_in_turn(self.phases, np.eye(self.agents)))

    @cached_property
    def exact_after(self) -> int | None:
        """Rounds from the first on after which everyone has the exact mean, if a period does it.

        >>> base(6, 1).exact_after, one_peer_exponential(6).exact_after, full(4).exact_after
        (4, None, 1)
        """
        # One vector tells: what is not the mean's matrix maps almost none to the mean.
        values = np.random.default_rng(0).normal(size=(self.agents, 1))
        mean = values.mean()
        for rounds, phase in enumerate(self.phases or (self,), start=1):
            values = _times(phase.mixing, values)
            if np.abs(values - mean).max() <= TOLERANCE:
                return rounds
        return None

    @cached_property
    def eigenvalues(self) -> npt.NDArray[np.complex128]:  # [N]
        """The eigenvalues of the weights (of a sequence, of a period's product), by falling
        modulus: N³ work on the dense matrix."""
        symmetric = np.array_equal(self.product, self.product.T)
        values = (np.linalg.eigvalsh if symmetric else np.linalg.eigvals)(self.product)
        return _by_modulus(values)

    @cached_property
    def _outer_eigenvalues(self) -> npt.NDArray[np.complex128]:
        """`eigenvalues`, or of many agents with symmetric weights two at each end."""
        w = self.mixing
        if self.phases and self.agents > DENSE:
            return _outer_of_product(self.phases)
        if self.agents <= DENSE or abs(csr_array(w - w.T)).max() > 0:
            return self.eigenvalues
        return _by_modulus(np.append(_two_eigenvalues(w, "LA"), _two_eigenvalues(w, "SA")))

    @cached_property
    def spectral_gap(self) -> float:
        """1 - max(|λ₂|, |λ_N|): how much of the disagreement one gossip step removes; of a
        sequence, one period.

        >>> full(5).spectral_gap, round(ring(5).spectral_gap, 4)
        (1.0, 0.4607)
        """
        if self.phases and self.exact_after is not None:
            return 1.0  # a product that is all but zero has no eigenvalues worth computing
        gap = 1.0 - float(np.abs(self._outer_eigenvalues[1:2]).sum())  # one agent has no second one
        return round(gap, 12)  # eigenvalues are no better than this

    @cached_property
    def lambda_min(self) -> float:
        """The smallest eigenvalue (its real part, if the weights are not symmetric)."""
        return round(float(self._outer_eigenvalues.real.min()), 12)

    @cached_property
    def diameter(self) -> int:
        """How many hops the farthest agent is away."""
        pattern = _pattern(self.graph)
        farthest = 0.0
        for start in range(0, self.agents, SOURCES):
            some = np.arange(start, min(start + SOURCES, self.agents))
            hops = csgraph.dijkstra(pattern, unweighted=True, indices=some)
            farthest = max(farthest, hops.max())
        return int(farthest)

    def require(self, what: Property, who: str) -> None:
        """Raise the error that explains why `who` cannot work with these weights, if so.

        >>> star(3, weights="uniform").require("symmetric", "choco")
        Traceback (most recent call last):
        parley.errors.BadValue: weights: 'uniform' is not valid (choco needs symmetric weights;
        agent 0 gives agent 1 0.333333 but gets 0.5); valid: weights=metropolis
        """
        flaw = self._flaw(what)
        if flaw is None:
            return
        match what:
            case "doubly-stochastic" if any(not _on_cycles(p.graph) for p in self.phases):
                remedy = "rounds in which every edge lies on a cycle, or push-sum"
            case "symmetric" if self.directed:
                remedy = "weights=metropolis on an undirected topology, such as ring"
            case "symmetric":
                remedy = "weights=metropolis"
            case "doubly-stochastic":
                remedy = "weights=sinkhorn" if self.directed else "weights=metropolis"
            case "row-stochastic":
                remedy = "weights=auto, or a matrix of weights from 0 whose rows sum to 1"
            case "column-stochastic":
                remedy = "weights=push"
            case _:
                assert_never(what)
        raise BadValue("weights", self.scheme, remedy, f"{who} needs {what} weights; {flaw}")

    def _flaw(self, what: Property) -> str | None:
        """The first place where the weights lack a property, in words; None if they have it.

        A sequence has it if every round has.
        """
        for number, phase in enumerate(self.phases):
            if (flaw := phase._flaw(what)) is not None:
                return f"in round {number} {flaw}"
        if self.phases:
            return None
        w, one = self.mixing, np.ones(self.agents)
        if what == "symmetric":
            excess = csr_array(w - w.T)
            excess.sum_duplicates()
            for i, j in _places(excess, np.abs(excess.data) > TOLERANCE):
                return f"agent {i} gives agent {j} {w[i, j]:g} but gets {w[j, i]:g}"
            return None
        for i, j in _places(w, w.data < -TOLERANCE):
            return f"agent {i} gives agent {j} the negative weight {w[i, j]:g}"
        rows, columns = _times(w, one), _times(w.T, one)
        if what != "column-stochastic":
            for i in np.flatnonzero(np.abs(rows - 1) > TOLERANCE).tolist():
                return f"row {i} sums to {rows[i]:g}"
        if what != "row-stochastic":
            for j in np.flatnonzero(np.abs(columns - 1) > TOLERANCE).tolist():
                return f"column {j} sums to {columns[j]:g}"
        return None


def describe(topology: Topology) -> dict[str, str | int | float | bool | None]:
    """A topology's figures as plain values, ready for JSON or a table.

    Of a sequence, degrees and diameter are those of all its edges together.

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


# Graphs


def ring(agents: int, *, weights: Weights = "auto") -> Topology:
    """Everyone talks to the agents before and after; two agents are one pair, one is alone."""
    return _undirected("ring", agents, ((i, (i + 1) % agents) for i in range(agents)), weights)


def directed_ring(agents: int, *, weights: Weights = "auto") -> Topology:
    """Everyone sends to the next agent only."""
    return _directed(
        "directed-ring", agents, ((i, (i + 1) % agents) for i in range(agents)), weights
    )


def chain(agents: int, *, weights: Weights = "auto") -> Topology:
    """A ring that is open between the last agent and the first."""
    return _undirected("chain", agents, ((i, i + 1) for i in range(agents - 1)), weights)


def torus(agents: int | tuple[int, int], *, weights: Weights = "auto") -> Topology:
    """A grid whose borders meet, numbered row by row; the most square one for a number.

    >>> torus(20).neighbours(0), torus((2, 10)).neighbours(0)
    ((1, 4, 5, 15), (1, 9, 10))
    """
    if isinstance(agents, tuple):
        rows, columns = agents
        name = f"torus:{rows}x{columns}"
        if min(agents) < 2:
            raise BadValue("topology", name, "torus:RxC with R and C 2 or more, or ring")
    else:
        name = "torus"
        rows, columns = torus_shape(agents)
    n = rows * columns
    right = ((i, i - i % columns + (i + 1) % columns) for i in range(n))
    below = ((i, (i + columns) % n) for i in range(n))
    return _undirected(name, n, [*right, *below], weights)


def torus_shape(agents: int) -> tuple[int, int]:
    """The most square rows x columns of 2 or more each.

    >>> torus_shape(20), torus_shape(10)
    ((4, 5), (2, 5))
    """
    _check_agents(agents)
    for rows in range(int(agents**0.5), 1, -1):
        if agents % rows == 0:
            return rows, agents // rows
    raise BadValue(
        "topology",
        "torus",
        f"a number of agents that is a product of two, such as {max(4, agents + agents % 2)}, "
        "or topology=ring",
        f"{agents} agents make no grid of 2 or more rows and columns",
    )


def circulant(agents: int, offsets: Sequence[int], *, weights: Weights = "auto") -> Topology:
    """Everyone talks to the agents `offset` places before and after, for each offset.

    >>> circulant(10, [1, 5]).neighbours(0)
    (1, 5, 9)
    """
    name = "circulant:" + ",".join(map(str, offsets))
    if not offsets or not all(0 < offset < agents for offset in offsets):
        raise BadValue("topology", name, f"offsets from 1 to {agents - 1} for {agents} agents")
    return _undirected(name, agents, _steps(agents, offsets), weights)


def exponential(agents: int, *, weights: Weights = "auto") -> Topology:
    """Everyone talks to the agents 1, 2, 4, ... places before and after, up to half way round.

    >>> exponential(16).neighbours(0)
    (1, 2, 4, 8, 12, 14, 15)
    """
    offsets = [2**k for k in range(max(agents, 0).bit_length()) if 2 ** (k + 1) <= agents]
    return _undirected("exponential", agents, _steps(agents, offsets), weights)


def directed_exponential(agents: int, *, weights: Weights = "auto") -> Topology:
    """Everyone sends to the agents 1, 2, 4, … places on.

    >>> directed_exponential(8).neighbours(0)  # whom agent 0 hears
    (4, 6, 7)
    """
    offsets = [2**k for k in range(max(agents, 0).bit_length()) if 2**k < agents]
    return _directed("directed-exponential", agents, _steps(agents, offsets), weights)


def full(agents: int, *, weights: Weights = "auto") -> Topology:
    """Everyone talks to everyone: one gossip step is the exact mean."""
    return _undirected("full", agents, ((i, j) for i in range(agents) for j in range(i)), weights)


def star(agents: int, *, weights: Weights = "auto") -> Topology:
    """Agent 0 talks to everyone, the others to agent 0 only."""
    return _undirected("star", agents, ((0, i) for i in range(1, agents)), weights)


def tree(agents: int, children: int = 2, *, weights: Weights = "auto") -> Topology:
    """A tree from agent 0 on, in which everyone has so many children until no agents are left.

    >>> tree(7).neighbours(1)
    (0, 3, 4)
    """
    name = f"tree:{children}"
    if children < 1:
        raise BadValue("topology", name, "tree:2, a number of children from 1 on")
    pairs = ((i, (i - 1) // children) for i in range(1, agents))
    return _undirected(name, agents, pairs, weights)


def spanning_tree(topology: Topology, *, weights: Weights = "auto") -> Topology:
    """A tree of shortest paths from agent 0, along edges that go both ways.

    >>> spanning_tree(ring(5)).edges
    ((1, 0), (4, 0), (0, 1), (2, 1), (1, 2), (4, 3), (0, 4), (3, 4))
    """
    name = f"spanning-tree:{topology.name}"
    both_ways = topology.graph.to_undirected(reciprocal=True)
    pairs = sorted(nx.bfs_edges(both_ways, 0, sort_neighbors=sorted))
    if len(pairs) < topology.agents - 1:
        because = "edges that go both ways do not reach everyone"
        raise BadValue("topology", name, "an undirected graph", because)
    return _undirected(name, topology.agents, pairs, weights)


def hypercube(agents: int, *, weights: Weights = "auto") -> Topology:
    """Everyone talks to the agents whose numbers differ in one binary digit.

    >>> hypercube(8).neighbours(5)
    (1, 4, 7)
    """
    _check_agents(agents)
    if agents & (agents - 1):
        below = 1 << (agents.bit_length() - 1)
        raise BadValue(
            "topology",
            "hypercube",
            f"a power of two, such as {below} or {2 * below}; or topology=exponential",
            f"{agents} agents are no power of two",
        )
    bits = [1 << k for k in range(agents.bit_length() - 1)]
    return _undirected(
        "hypercube", agents, ((i, i ^ b) for i in range(agents) for b in bits), weights
    )


def random_regular(
    agents: int, degree: int, seed: int = 0, *, weights: Weights = "auto"
) -> Topology:
    """A random connected graph in which everyone has `degree` neighbours."""
    _check_agents(agents)
    name = f"random-regular:{degree}"
    if not 0 <= degree < agents or agents * degree % 2:
        raise BadValue("topology", name, f"a degree below {agents} that makes agents x degree even")

    def draw(source: int) -> list[Edge]:
        return list(nx.random_regular_graph(degree, agents, seed=source).edges)

    edges = _first_connected(name, agents, draw, seed, "a degree of 2 or more")
    return _undirected(name, agents, edges, weights)


def erdos_renyi(agents: int, p: float, seed: int = 0, *, weights: Weights = "auto") -> Topology:
    """A random connected graph in which each pair talks with probability `p`."""
    _check_agents(agents)
    name = f"erdos-renyi:{p}"
    if not 0 < p <= 1:
        raise BadValue("topology", name, "a probability above 0, up to 1")

    def draw(source: int) -> list[Edge]:
        # The upper triangle of a whole matrix of numbers, of which one row is held at a time.
        bits = np.random.PCG64(source)
        numbers = np.random.Generator(bits)
        edges: list[Edge] = []
        for i in range(agents):
            bits.advance(i + 1)
            drawn = np.flatnonzero(numbers.random(agents - i - 1) < p) + i + 1
            edges += [(i, j) for j in drawn.tolist()]
        return edges

    threshold = min(1.0, np.log(max(agents, 2)) / agents)
    edges = _first_connected(name, agents, draw, seed, f"a probability above {threshold:.2g}")
    return _undirected(name, agents, edges, weights)


def from_graph(graph: nx.Graph[Any], *, weights: Weights = "auto", name: str = "graph") -> Topology:
    """Your own networkx graph; its nodes become 0..N-1, sorted if they can be.

    If every edge has a "weight", those are the weights that "auto" takes: edge (j, i) holds
    what i gives to j, a self-loop what an agent keeps; without one it keeps 1 - the others.

    >>> from_graph(nx.path_graph(["b", "c", "a"])).neighbours(0)  # a hears c
    (2,)
    """
    if graph.is_multigraph():
        raise BadValue("topology", name, "a networkx Graph or DiGraph", "it has parallel edges")
    try:
        nodes = sorted(graph)
    except TypeError:
        nodes = list(graph)
    number = {node: i for i, node in enumerate(nodes)}
    both_ways: nx.DiGraph[Any] = nx.DiGraph(graph)
    given: dict[Edge, float | None] = {
        (number[j], number[i]): data.get("weight") for j, i, data in both_ways.edges(data=True)
    }
    return _from_edges(name, len(nodes), given, weights)


def from_file(path: str | Path, *, weights: Weights = "auto") -> Topology:
    """A graph from a text file with one edge per line.

    0 1         agents 0 and 1 send to each other
    2 -> 0      agent 2 sends to agent 0
    2 -> 0 0.3  and agent 0 gives it the weight 0.3 (all lines have a weight, or none)
    0 0 0.4     agent 0 keeps 0.4 of its own value; without this line, 1 - the others
    # a comment
    """
    name = f"file:{path}"
    rounds = sequences.sections(_read_lines(name, path))
    if len(rounds) > 1:
        because = f"it has {len(rounds)} rounds"
        raise BadValue("topology", name, f"a file of one graph, or schedule:{path}", because)
    given = _read_edges(name, joined.from_iterable(rounds))
    return _from_edges(name, _checked_numbers(name, given), given, weights)


def to_text(topology: Topology) -> tuple[str, str, str]:
    """A graph as a file: "file" or "schedule", the weights to read it with, and its lines.

    Weights that a scheme makes are left to that scheme; others stand in the lines, each with as
    many digits as it has.

    >>> print(*to_text(chain(3)))
    file metropolis # 3 agents
    0 1
    1 2
    <BLANKLINE>
    >>> print(to_text(ring(2, weights=[[0.7, 0.3], [0.5, 0.5]]))[2])
    # 2 agents; what an agent keeps, and what it gives to what another sends to it
    0 0 0.7
    1 -> 0 0.3
    0 -> 1 0.5
    1 1 0.5
    <BLANKLINE>
    """
    phases = topology.phases or (topology,)
    by_scheme = topology.scheme in SCHEMES
    title = f"# {topology.agents} agents"
    if not by_scheme:
        title += "; what an agent keeps, and what it gives to what another sends to it"
    lines = [title]
    for number, phase in enumerate(phases):
        lines += [f"round {number}"] if topology.phases else []
        lines += _scheme_lines(phase) if by_scheme else _weight_lines(phase)
    if by_scheme and topology.agents == 1:
        lines.append("0 0")
    kind = "schedule" if topology.phases else "file"
    return kind, topology.scheme if by_scheme else "auto", "\n".join(lines) + "\n"


def _scheme_lines(topology: Topology) -> list[str]:
    lines = []
    for j, i in topology.edges:
        if not topology.graph.has_edge(i, j):
            lines.append(f"{j} -> {i}")
        elif j < i:
            lines.append(f"{j} {i}")
    return lines


def _weight_lines(topology: Topology) -> list[str]:
    matrix = topology.mixing
    if not topology.edges and topology.part:
        return []  # a round in which nobody talks
    cells = zip(_rows(matrix).tolist(), matrix.indices.tolist(), matrix.data.tolist(), strict=True)
    return [f"{i} {i} {w!r}" if i == j else f"{j} -> {i} {w!r}" for i, j, w in cells]


def stated_agents(spec: str) -> int | None:
    """How many agents a spec has by itself, if it says so.

    >>> stated_agents("torus:2x5"), stated_agents("spanning-tree:torus:3x3"), stated_agents("ring")
    (10, 9, None)
    """
    name, _, text = spec.strip().partition(":")
    if name == "spanning-tree":
        return stated_agents(text)
    if name in ("file", "schedule") or (name == "torus" and text):
        return parse(spec).agents
    return None


def _read_lines(name: str, path: str | Path) -> list[str]:
    try:
        return Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not a text file"
        raise BadValue("topology", name, "a readable text file of edges", reason) from None


def _read_edges(name: str, lines: Iterable[tuple[int, str]]) -> dict[Edge, float | None]:
    """Edges and their weights from numbered lines."""
    given: dict[Edge, float | None] = {}
    for number, text in lines:
        edge = re.fullmatch(r"(\d+)(?:\s*(->)\s*|\s+)(\d+)(?:\s+(\S+))?", text)
        try:
            if edge is None:
                raise ValueError("no edge")
            weight = None if edge[4] is None else float(edge[4])
            if weight is not None and not np.isfinite(weight):
                raise ValueError("no number")
        except ValueError:
            raise BadValue(
                "topology", name, "lines like 0 1, 0 -> 1 or 0 1 0.25", f"line {number}: {text!r}"
            ) from None
        j, i = int(edge[1]), int(edge[3])
        for way in [(j, i)] if edge[2] else [(j, i), (i, j)]:
            if given.setdefault(way, weight) != weight:
                because = f"line {number} gives edge {way[0]} -> {way[1]} another weight"
                raise BadValue("topology", name, "one weight per edge", because)
    weighted = [weight is not None for (j, i), weight in given.items() if i != j]
    if any(weighted) and not all(weighted):
        raise BadValue("topology", name, "a weight on every line or on none")
    return given


def _checked_numbers(name: str, edges: Iterable[Edge]) -> int:
    """How many agents there are, where none is left out."""
    known = {agent for edge in edges for agent in edge}
    missing = set(range(len(known))) - known
    if missing or not known:
        because = f"no line has agent {min(missing)}" if known else "it has no edges"
        raise BadValue("topology", name, "lines that have every agent from 0 on", because)
    return len(known)


# Sequences: another graph in each step


def one_peer_exponential(agents: int, *, weights: Weights = "auto") -> Topology:
    """Everyone sends to one agent a step: 1, 2, 4, … places on, in turn.

    For a power of two a period is the exact mean.
    """
    _check_agents(agents)
    made = sequences.one_peer_exponential(agents)
    return _sequence("one-peer-exponential", agents, made, weights)


def base(agents: int, degree: int = 1, *, weights: Weights = "auto") -> Topology:
    """The Base-(k+1) graph: at most `degree` = k neighbours in a step, and a period is the exact
    mean, for any number of agents."""
    _check_agents(agents)
    name = f"base:{degree}"
    if degree < 1:
        raise BadValue("topology", name, "base:1, a number of neighbours from 1 on")
    return _sequence(name, agents, sequences.base(agents, degree), weights)


def matchings(
    agents: int, rounds: int = MATCHINGS, seed: int = 0, *, weights: Weights = "auto"
) -> Topology:
    """Everyone talks with one other agent a step, drawn at random; after `rounds` steps the same
    draws come again."""
    _check_agents(agents)
    name = "matchings" if rounds == MATCHINGS else f"matchings:{rounds}"
    if rounds < 1:
        raise BadValue("topology", name, "matchings:32, a number of rounds from 1 on")
    drawn: list[sequences.Round] = []

    def draw(source: int) -> list[Edge]:
        drawn[:] = sequences.matchings(agents, rounds, source)
        return [edge for pairs in drawn for edge in pairs]

    _first_connected(name, agents, draw, seed, "more rounds")
    return _sequence(name, agents, drawn, weights)


def sequence(
    graphs: Sequence[Topology | nx.Graph[Any]], *, weights: Weights = "auto", name: str = "sequence"
) -> Topology:
    """Your own graphs, used one after the other, each for one step, and then from the first again.

    Their nodes are 0..N-1, in any of them or in all. A round need not be connected, all rounds
    together must be.

    >>> t = sequence([nx.Graph([(0, 1)]), nx.Graph([(1, 2)])])
    >>> t.agents, t.period, t.at(1).neighbours(1), t.doubly_stochastic
    (3, 2, (2,), True)
    """
    if not graphs:
        raise BadValue("topology", name, "at least one graph")
    bare = [g.graph if isinstance(g, Topology) else g for g in graphs]
    agents = len({node for graph in bare for node in graph})
    if any(node not in range(agents) for graph in bare for node in graph):
        raise BadValue("topology", name, "graphs whose nodes are 0..N-1")
    rounds: list[Topology] = []
    for given, graph in zip(graphs, bare, strict=True):
        if isinstance(given, Topology) and given.agents == agents and _is_auto(weights):
            rounds.append(replace(given, part=True))
            continue
        edges = {(j, i): data.get("weight") for j, i, data in nx.DiGraph(graph).edges(data=True)}
        rounds.append(_from_edges(name, agents, edges, weights, part=True))
    return _of_phases(name, rounds)


def schedule_from_file(path: str | Path, *, weights: Weights = "auto") -> Topology:
    """A sequence from a text file: edges as in `from_file`, a line ``round`` before each round."""
    name = f"schedule:{path}"
    rounds = [_read_edges(name, lines) for lines in sequences.sections(_read_lines(name, path))]
    agents = _checked_numbers(name, [edge for given in rounds for edge in given])
    return _of_phases(
        name, [_from_edges(name, agents, given, weights, part=True) for given in rounds]
    )


def _sequence(
    name: str, agents: int, rounds: Sequence[sequences.Round], weights: Weights
) -> Topology:
    given: list[Mapping[Edge, float | None]] = [dict(edges) for edges in rounds]
    return _of_phases(name, [_from_edges(name, agents, edges, weights, True) for edges in given])


def _of_phases(name: str, phases: Sequence[Topology]) -> Topology:
    """All edges together, with the rounds as phases."""
    graph = _digraph(phases[0].agents, joined.from_iterable(p.graph.edges for p in phases))
    if len(phases) == 1:
        return replace(phases[0], name=name, part=False)
    mixing: Any = sum((p.mixing for p in phases[1:]), start=phases[0].mixing)
    schemes = {phase.scheme for phase in phases}
    scheme = schemes.pop() if len(schemes) == 1 else "explicit"
    return Topology(name, graph, mixing / len(phases), scheme, tuple(phases))


# Specs: a name, or name:arguments


@dataclass(frozen=True)
class _Family:
    example: str
    read: Callable[[str], Any]  # the text after the colon; a ValueError if it makes no sense
    build: Callable[[int, Any, int, Weights], Topology]  # agents, what was read, seed, weights


def _plain(name: str, build: Callable[..., Topology]) -> _Family:
    def read(text: str) -> None:
        if text:
            raise ValueError("takes no arguments")

    return _Family(name, read, lambda n, _, seed, weights: build(n, weights=weights))


def _read_shape(text: str) -> tuple[int, int] | None:
    if not text:
        return None
    rows, columns = map(int, text.split("x"))
    return rows, columns


def _read_inner(text: str) -> str:
    if not text:
        raise ValueError("of which graph?")
    return text


_FAMILIES: Mapping[str, _Family] = {
    "ring": _plain("ring", ring),
    "directed-ring": _plain("directed-ring", directed_ring),
    "chain": _plain("chain", chain),
    "torus": _Family(
        "torus or torus:2x5",
        _read_shape,
        lambda n, shape, seed, weights: torus(shape or n, weights=weights),
    ),
    "circulant": _Family(
        "circulant:1,5",
        lambda text: [int(offset) for offset in text.split(",")],
        lambda n, offsets, seed, weights: circulant(n, offsets, weights=weights),
    ),
    "exponential": _plain("exponential", exponential),
    "full": _plain("full", full),
    "star": _plain("star", star),
    "hypercube": _plain("hypercube", hypercube),
    "tree": _Family(
        "tree:2",
        int,
        lambda n, children, seed, weights: tree(n, children, weights=weights),
    ),
    "spanning-tree": _Family(
        "spanning-tree:torus",
        _read_inner,
        lambda n, spec, seed, weights: spanning_tree(parse(spec, n, seed=seed), weights=weights),
    ),
    "directed-exponential": _plain("directed-exponential", directed_exponential),
    "random-regular": _Family(
        "random-regular:3",
        int,
        lambda n, degree, seed, weights: random_regular(n, degree, seed, weights=weights),
    ),
    "erdos-renyi": _Family(
        "erdos-renyi:0.5",
        float,
        lambda n, p, seed, weights: erdos_renyi(n, p, seed, weights=weights),
    ),
    "one-peer-exponential": _plain("one-peer-exponential", one_peer_exponential),
    "base": _Family(
        "base:1",
        int,
        lambda n, degree, seed, weights: base(n, degree, weights=weights),
    ),
    "matchings": _Family(
        "matchings or matchings:32",
        lambda text: int(text) if text else MATCHINGS,
        lambda n, rounds, seed, weights: matchings(n, rounds, seed, weights=weights),
    ),
}

EXAMPLES: tuple[str, ...] = (
    *(f.example for f in _FAMILIES.values()),
    "file:graph.txt",
    "schedule:rounds.txt",
)
"""How each kind of topology is written in a config."""


def parse(
    spec: str | nx.Graph[Any] | Topology | Sequence[Topology | nx.Graph[Any]],
    agents: int | None = None,
    weights: Weights = "auto",
    seed: int = 0,
) -> Topology:
    """The topology that a spec, a networkx graph, a topology or a list of graphs stands for.

    "auto" keeps weights that the file, graph or topology brings; any other value replaces them.

    >>> parse("circulant:1,5", 20).degrees[0], parse("torus:2x5").agents
    (4, 10)
    >>> parse("rng", 5)
    Traceback (most recent call last):
    parley.errors.BadValue: topology: 'rng' is not valid (did you mean 'ring'?); valid: ...
    """
    if agents is not None:
        _check_agents(agents)
    if isinstance(spec, str):
        topology = _parse_text(spec, agents, weights, seed)
    elif isinstance(spec, Topology):
        topology = spec if _is_auto(weights) else _reweighted(spec, weights)
    elif isinstance(spec, nx.Graph):
        topology = from_graph(spec, weights=weights)
    elif isinstance(spec, list | tuple):
        topology = sequence(spec, weights=weights)
    else:
        raise BadValue("topology", spec, "a spec such as 'ring', a networkx graph or a Topology")
    if agents is not None and topology.agents != agents:
        because = f"topology {topology.name!r} has {topology.agents} agents"
        raise BadValue("agents", agents, str(topology.agents), because)
    return topology


def _parse_text(spec: str, agents: int | None, weights: Weights, seed: int) -> Topology:
    name, _, text = spec.strip().partition(":")
    if name == "file":
        return from_file(text, weights=weights)
    if name == "schedule":
        return schedule_from_file(text, weights=weights)
    if name not in _FAMILIES:
        raise unknown_name("topology", name, [*_FAMILIES, "file", "schedule"])
    family = _FAMILIES[name]
    try:
        arguments = family.read(text)
    except ValueError:
        raise BadValue("topology", spec, family.example) from None
    if agents is None:
        if not isinstance(arguments, tuple):
            raise BadValue("agents", None, f"a number of agents for topology {spec!r}")
        agents = arguments[0] * arguments[1]  # torus:2x5 says it itself
    return family.build(agents, arguments, seed, weights)


# Weights


def uniform(graph: nx.DiGraph[int]) -> Sparse:
    """Everyone gives itself and each neighbour the same: rows sum to 1, columns need not."""
    pattern = _pattern(graph)
    return _filled(pattern, (1 / _counts(pattern))[_rows(pattern)])


def metropolis(graph: nx.DiGraph[int]) -> Sparse:
    """1 / (1 + the larger degree) on each edge, the rest on the diagonal; undirected graphs.

    Xiao, Boyd, Kim: Distributed average consensus with least-mean-square deviation, 2007.
    """
    if (edge := _one_way(graph)) is not None:
        because = f"agent {edge[0]} sends to agent {edge[1]} but hears nothing back"
        raise BadValue(
            "weights", "metropolis", "sinkhorn or uniform on a directed topology", because
        )
    pattern = _pattern(graph)
    i, j = _rows(pattern), pattern.indices
    even = 1 / _counts(pattern)  # the diagonal is the 1 in 1 + the degree
    weights = np.minimum(even[i], even[j])
    # 1 - the row's sum, written so that a regular graph gets its 1/(degree + 1) exactly.
    weights[i == j] += np.bincount(i, even[i] - weights)
    return _filled(pattern, weights)


def sinkhorn(graph: nx.DiGraph[int], tolerance: float = 1e-12, steps: int = 200_000) -> Sparse:
    """Doubly stochastic weights for any strongly connected graph, directed or not.

    Rows and columns of A + I are normalised in turn (Sinkhorn, Knopp 1967). That converges
    because the pattern has total support: every edge of a strongly connected graph lies on a
    cycle, and that cycle together with the self-loops of all other agents is a permutation
    inside the pattern.

    >>> sinkhorn(nx.DiGraph([(0, 1), (1, 2), (2, 0)])).toarray()
    array([[0.5, 0. , 0.5],
           [0.5, 0.5, 0. ],
           [0. , 0.5, 0.5]])
    """
    pattern = _pattern(graph)
    transposed = pattern.T
    rows = 1 / _counts(pattern)
    for _ in range(steps):
        columns = 1 / _times(transposed, rows)
        sums = _times(pattern, columns)
        if np.abs(rows * sums - 1).max() <= tolerance:  # the columns were just made exact
            return _filled(pattern, rows[_rows(pattern)] * columns[pattern.indices])
        rows = 1 / sums
    raise BadValue(
        "weights", "sinkhorn", "uniform, or a matrix", f"not converged after {steps} steps"
    )


def push(graph: nx.DiGraph[int]) -> Sparse:
    """Everyone shares out its value evenly to itself and all it sends to: columns sum to 1.

    An agent needs to know nothing but how many it sends to; for push-sum (Kempe et al., 2003).

    >>> push(nx.DiGraph([(0, 1), (0, 2), (1, 0), (2, 0)])).toarray().round(2)
    array([[0.33, 0.5 , 0.5 ],
           [0.33, 0.5 , 0.  ],
           [0.33, 0.  , 0.5 ]])
    """
    pattern = _pattern(graph)
    return _filled(pattern, (1 / np.bincount(pattern.indices))[pattern.indices])


SCHEMES: Mapping[str, Callable[[nx.DiGraph[int]], Sparse]] = {
    "uniform": uniform,
    "metropolis": metropolis,
    "sinkhorn": sinkhorn,
    "push": push,
}


# Parts


def _undirected(name: str, agents: int, pairs: Iterable[Edge], weights: Weights) -> Topology:
    both_ways = (way for i, j in pairs for way in ((i, j), (j, i)))
    return _directed(name, agents, both_ways, weights)


def _directed(name: str, agents: int, edges: Iterable[Edge], weights: Weights) -> Topology:
    _check_agents(agents)
    return _weighted(name, _digraph(agents, edges), weights)


def _from_edges(
    name: str,
    agents: int,
    given: Mapping[Edge, float | None],
    weights: Weights,
    part: bool = False,
) -> Topology:
    """A topology from edges that may carry weights, which "auto" then takes."""
    graph = _digraph(agents, given)
    complete = graph.size() and all(given[edge] is not None for edge in graph.edges)
    if complete and _is_auto(weights):
        known = {edge: float(weight) for edge, weight in given.items() if weight is not None}
        sums = np.zeros(agents)
        for (_, i), weight in known.items():
            sums[i] += weight
        known = {(i, i): 1 - sums[i] for i in range(agents)} | known
        columns, rows = np.array(list(known)).T
        weights = csr_array((list(known.values()), (rows, columns)), shape=(agents, agents))
    return _weighted(name, graph, weights, part)


def _weighted(name: str, graph: nx.DiGraph[int], weights: Weights, part: bool = False) -> Topology:
    if not isinstance(weights, str):
        return Topology(name, graph, _as_mixing(weights, graph), part=part)
    _check_agents(len(graph))
    if not part:
        _check_connected(name, graph)  # before sinkhorn, which would not converge
    if weights == "auto":
        weights = "metropolis" if _one_way(graph) is None else "sinkhorn"
        if weights == "sinkhorn" and not _on_cycles(graph):
            weights = "push"  # nothing doubly stochastic has these edges
    if weights not in SCHEMES:
        raise unknown_name("weights", weights, [*SCHEMES, "auto"])
    if weights == "sinkhorn" and not _on_cycles(graph):
        because = "a round has an edge that lies on no cycle"
        raise BadValue("weights", weights, "push or uniform", because)
    return Topology(name, graph, SCHEMES[weights](graph), weights, part=part)


def _reweighted(topology: Topology, weights: Weights) -> Topology:
    """The same graphs with other weights."""
    if not topology.phases:
        return _weighted(topology.name, topology.graph, weights)
    made = [_weighted(topology.name, p.graph, weights, part=True) for p in topology.phases]
    return _of_phases(topology.name, made)


def _is_auto(weights: Weights) -> bool:
    return isinstance(weights, str) and weights == "auto"


def _on_cycles(graph: nx.DiGraph[int]) -> bool:
    """Whether every edge lies on a cycle: only then can weights be doubly stochastic."""
    _, part_of = csgraph.connected_components(_pattern(graph), connection="strong")
    return all(part_of[j] == part_of[i] for j, i in graph.edges)


def _digraph(agents: int, edges: Iterable[Edge]) -> nx.DiGraph[int]:
    graph: nx.DiGraph[int] = nx.DiGraph()
    graph.add_nodes_from(range(agents))
    graph.add_edges_from((j, i) for j, i in edges if i != j)
    return graph


def _pattern(graph: nx.DiGraph[int]) -> Sparse:
    """1 where a weight may be: where i hears j, and on the diagonal."""
    return _pattern_of(len(graph), graph.edges)


def _pattern_of(agents: int, edges: Collection[Edge]) -> Sparse:
    ends = np.fromiter(joined.from_iterable(edges), np.int64, 2 * len(edges))
    own = np.arange(agents)
    columns, rows = np.append(ends[::2], own), np.append(ends[1::2], own)
    pattern = csr_array((np.ones(len(rows)), (rows, columns)), shape=(agents, agents))
    pattern.sum_duplicates()  # there are none; this sorts
    return pattern


def _filled(pattern: Sparse, values: Vector) -> Sparse:
    """Other values in the same places."""
    return csr_array((values, pattern.indices, pattern.indptr), shape=pattern.shape)


def _counts(matrix: Sparse) -> Indices:
    """How many entries each row has."""
    return np.diff(matrix.indptr)


def _rows(matrix: Sparse) -> Indices:
    """The row of each entry."""
    return np.repeat(np.arange(matrix.shape[0]), _counts(matrix))


def _cells(matrix: Sparse) -> Indices:
    """The place of each entry, all places being numbered row by row."""
    return _rows(matrix) * matrix.shape[1] + matrix.indices


def _among(cells: Indices, pattern: Sparse) -> tuple[npt.NDArray[np.bool_], Indices]:
    """Which cells belong to a pattern, and as which of its entries."""
    known = _cells(pattern)
    entry = np.searchsorted(known, cells)  # never past the end: the last cell is on the diagonal
    return known[entry] == cells, entry


def _places(matrix: Sparse, chosen: npt.NDArray[np.bool_]) -> Iterator[Edge]:
    """Rows and columns of the chosen entries."""
    return zip(_rows(matrix)[chosen].tolist(), matrix.indices[chosen].tolist(), strict=True)


def _times(matrix: Any, vector: Vector) -> Vector:
    product: Vector = matrix @ vector
    return product


def _locked(array: Matrix) -> Matrix:
    array.setflags(write=False)
    return array


def _by_modulus(values: npt.NDArray[Any]) -> npt.NDArray[np.complex128]:
    return values[np.argsort(-np.abs(values), kind="stable")].astype(np.complex128)


def _in_turn(phases: Sequence[Topology], values: Matrix) -> Matrix:
    for phase in phases:
        values = _times(phase.mixing, values)
    return values


def _outer_of_product(phases: Sequence[Topology]) -> npt.NDArray[np.complex128]:
    """The two largest eigenvalues of what a period does, for many agents."""
    n = phases[0].agents
    operator = LinearOperator(
        (n, n), matvec=lambda v: _in_turn(phases, v.reshape(-1, 1)), dtype=np.float64
    )
    start = np.random.default_rng(0).normal(size=n)
    return _by_modulus(eigs(operator, k=2, v0=start, return_eigenvectors=False))


def _two_eigenvalues(matrix: Sparse, which: Literal["LA", "SA"]) -> Vector:
    """The two largest (LA) or the two smallest (SA) of a symmetric matrix."""
    find: Any = partial(eigsh, k=2, return_eigenvectors=False)
    start = np.random.default_rng(0).normal(size=matrix.shape[0])
    values: Vector
    try:
        values = find(matrix, which=which, v0=start, ncv=64, maxiter=LANCZOS)
    except ArpackNoConvergence:
        # Long graphs, such as a ring: their eigenvalues are too crowded for Lanczos, but they
        # factorise cheaply. Just outside of Gershgorin's bounds there is an inverse.
        own = matrix.diagonal()
        radius = _times(abs(matrix), np.ones(len(own))) - np.abs(own)
        outside = (own + radius).max() + 1e-8 if which == "LA" else (own - radius).min() - 1e-8
        values = find(matrix.tocsc(), sigma=outside, v0=start)
    return values


def _one_way(graph: nx.DiGraph[int]) -> Edge | None:
    """An edge without its reverse, if there is one: the first."""
    pattern = _pattern(graph)
    turned = pattern.indices * np.int64(len(graph)) + _rows(pattern)
    alone = turned[~_among(turned, pattern)[0]]
    return divmod(int(alone.min()), len(graph)) if len(alone) else None


def _steps(agents: int, offsets: Iterable[int]) -> list[Edge]:
    return [(i, (i + offset) % agents) for i in range(agents) for offset in offsets]


def _first_connected(
    name: str, agents: int, draw: Callable[[int], list[Edge]], seed: int, remedy: str
) -> list[Edge]:
    for attempt in range(DRAWS):
        source = int(np.random.SeedSequence([seed, attempt]).generate_state(1)[0])
        edges = draw(source)
        if csgraph.connected_components(_pattern_of(agents, edges), directed=False)[0] == 1:
            return edges
    because = f"none of {DRAWS} draws for {agents} agents was connected"
    raise BadValue("topology", name, f"{remedy}, or another seed", because)


def _check_agents(agents: int) -> None:
    if agents < 1:
        raise BadValue("agents", agents, "1 or more")


def _check_connected(name: str, graph: nx.DiGraph[int]) -> None:
    count, part_of = csgraph.connected_components(_pattern(graph), connection="strong")
    if count == 1:
        return
    _, first, sizes = np.unique(part_of, return_index=True, return_counts=True)
    order = np.lexsort((first, sizes))
    alone, crowd = int(first[order[0]]), int(first[order[-1]])
    if _one_way(graph) is None:
        because = f"agent {alone} is cut off from agent {crowd}"
    elif nx.has_path(graph, crowd, alone):
        because = f"nothing that agent {alone} sends reaches agent {crowd}"
    else:
        because = f"nothing that agent {crowd} sends reaches agent {alone}"
    raise BadValue("topology", name, "a graph in which everyone can reach everyone", because)


def _as_mixing(weights: npt.ArrayLike | Sparse, graph: nx.DiGraph[int]) -> Sparse:
    """The weights as a new sparse matrix with an entry in every place of the graph's pattern."""
    n = len(graph)
    given: Any = weights
    try:
        given = given if issparse(given) else np.asarray(given, dtype=np.float64)
    except (TypeError, ValueError):
        raise BadValue("weights", weights, f"a scheme or a {n} x {n} matrix of numbers") from None
    if given.shape != (n, n):
        raise BadValue("weights", given.shape, f"shape ({n}, {n}) for {n} agents")
    matrix: Sparse = csr_array(given, dtype=np.float64, copy=True)
    matrix.sum_duplicates()
    for i, j in _places(matrix, ~np.isfinite(matrix.data)):
        because = f"agent {i} gives it to agent {j}"
        raise BadValue("weights", float(matrix[i, j]), "finite numbers", because)
    pattern = _pattern(graph)
    inside, entry = _among(_cells(matrix), pattern)
    for i, j in _places(matrix, ~inside & (matrix.data != 0)):
        because = f"agent {i} gives it to agent {j}, which does not send to it"
        raise BadValue("weights", float(matrix[i, j]), "0 where there is no edge", because)
    values = np.zeros(pattern.nnz)
    values[entry[inside]] = matrix.data[inside]
    return _filled(pattern, values)
