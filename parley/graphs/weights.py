"""Mixing weights for a graph: schemes by name, or the user's own matrix."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import networkx as nx
import numpy as np
import numpy.typing as npt
import scipy

from parley.errors import BadValue
from parley.graphs.checks import one_way_edge
from parley.graphs.matrices import (
    Sparse,
    cell_numbers,
    entries_per_row,
    look_up,
    pattern_of_graph,
    places_where,
    product,
    row_of_each,
    with_values,
)

Weights: TypeAlias = "str | npt.ArrayLike | Sparse"
"""A scheme's name ("auto", "uniform", "metropolis", "sinkhorn", "push") or the matrix itself, which
may be a scipy.sparse one."""


def uniform(graph: nx.DiGraph[int]) -> Sparse:
    """The same weight for an agent and each neighbour: rows sum to 1, columns need not."""
    pattern = pattern_of_graph(graph)
    return with_values(pattern, (1 / entries_per_row(pattern))[row_of_each(pattern)])


def metropolis(graph: nx.DiGraph[int]) -> Sparse:
    """1 / (1 + the larger degree) on each edge, the rest on the diagonal; undirected graphs.

    Xiao, Boyd, Kim: Distributed average consensus with least-mean-square deviation, 2007.
    """
    if (edge := one_way_edge(graph)) is not None:
        because = f"agent {edge[0]} sends to agent {edge[1]} but hears nothing back"
        raise BadValue(
            "weights", "metropolis", "sinkhorn or uniform on a directed topology", because
        )
    pattern = pattern_of_graph(graph)
    i, j = row_of_each(pattern), pattern.indices
    even = 1 / entries_per_row(pattern)  # the diagonal is the 1 in 1 + the degree
    weights = np.minimum(even[i], even[j])
    # 1 - the row's sum, written so that a regular graph gets its 1/(degree + 1) exactly.
    weights[i == j] += np.bincount(i, even[i] - weights)
    return with_values(pattern, weights)


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
    pattern = pattern_of_graph(graph)
    transposed = pattern.T
    rows = 1 / entries_per_row(pattern)
    for _ in range(steps):
        columns = 1 / product(transposed, rows)
        sums = product(pattern, columns)
        if np.abs(rows * sums - 1).max() <= tolerance:  # the columns were just made exact
            return with_values(pattern, rows[row_of_each(pattern)] * columns[pattern.indices])
        rows = 1 / sums
    raise BadValue(
        "weights", "sinkhorn", "uniform, or a matrix", f"it did not converge in {steps} steps"
    )


def push(graph: nx.DiGraph[int]) -> Sparse:
    """An agent splits its value evenly among itself and its receivers: columns sum to 1.

    An agent only needs to know how many it sends to. For push-sum (Kempe et al., 2003).

    >>> push(nx.DiGraph([(0, 1), (0, 2), (1, 0), (2, 0)])).toarray().round(2)
    array([[0.33, 0.5 , 0.5 ],
           [0.33, 0.5 , 0.  ],
           [0.33, 0.  , 0.5 ]])
    """
    pattern = pattern_of_graph(graph)
    return with_values(pattern, (1 / np.bincount(pattern.indices))[pattern.indices])


SCHEMES: Mapping[str, Callable[[nx.DiGraph[int]], Sparse]] = {
    "uniform": uniform,
    "metropolis": metropolis,
    "sinkhorn": sinkhorn,
    "push": push,
}


def is_auto(weights: Weights) -> bool:
    """Whether the choice of weights is left to Parley."""
    return isinstance(weights, str) and weights == "auto"


def as_mixing(weights: npt.ArrayLike | Sparse, graph: nx.DiGraph[int]) -> Sparse:
    """The weights as a new sparse matrix with an entry for every cell of the graph's pattern."""
    n = len(graph)
    given: Any = weights
    try:
        given = given if scipy.sparse.issparse(given) else np.asarray(given, dtype=np.float64)
    except (TypeError, ValueError):
        raise BadValue("weights", weights, f"a scheme or a {n} x {n} matrix of numbers") from None
    if given.shape != (n, n):
        raise BadValue("weights", given.shape, f"shape ({n}, {n}) for {n} agents")
    matrix: Sparse = scipy.sparse.csr_array(given, dtype=np.float64, copy=True)
    matrix.sum_duplicates()
    for i, j in places_where(matrix, ~np.isfinite(matrix.data)):
        because = f"agent {i} gives this weight to agent {j}"
        raise BadValue("weights", float(matrix[i, j]), "finite numbers", because)
    pattern = pattern_of_graph(graph)
    inside, entry = look_up(cell_numbers(matrix), pattern)
    for i, j in places_where(matrix, ~inside & (matrix.data != 0)):
        because = f"agent {i} gives this weight to agent {j}, which does not send to it"
        raise BadValue("weights", float(matrix[i, j]), "0 where there is no edge", because)
    values = np.zeros(pattern.nnz)
    values[entry[inside]] = matrix.data[inside]
    return with_values(pattern, values)
