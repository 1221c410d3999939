"""Sparse mixing matrices: their patterns, cells and outermost eigenvalues."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from functools import partial
from itertools import chain as joined
from typing import Any, Literal, TypeAlias

import networkx as nx
import numpy as np
import numpy.typing as npt
import scipy  # its parts are loaded when they are used

Matrix: TypeAlias = npt.NDArray[np.float64]
Vector: TypeAlias = npt.NDArray[np.float64]
Indices: TypeAlias = npt.NDArray[np.integer]
Sparse: TypeAlias = "scipy.sparse.csr_array[np.float64, tuple[int, int]]"
Edge: TypeAlias = tuple[int, int]
TOLERANCE = 1e-9
LANCZOS = 30  # restarts before the spectrum is considered too crowded for Lanczos


def pattern_of_graph(graph: nx.DiGraph[int]) -> Sparse:
    """1 where there may be a weight: where i hears j, and on the diagonal."""
    return pattern_of_edges(len(graph), graph.edges)


def pattern_of_edges(agents: int, edges: Collection[Edge]) -> Sparse:
    """Ones on the diagonal and where there is an edge."""
    ends = np.fromiter(joined.from_iterable(edges), np.int64, 2 * len(edges))
    own = np.arange(agents)
    columns, rows = np.append(ends[::2], own), np.append(ends[1::2], own)
    pattern = scipy.sparse.csr_array((np.ones(len(rows)), (rows, columns)), shape=(agents, agents))
    pattern.sum_duplicates()  # there are none; this sorts
    return pattern


def with_values(pattern: Sparse, values: Vector) -> Sparse:
    """Other values in the same places."""
    return scipy.sparse.csr_array((values, pattern.indices, pattern.indptr), shape=pattern.shape)


def entries_per_row(matrix: Sparse) -> Indices:
    """How many entries each row has."""
    return np.diff(matrix.indptr)


def row_of_each(matrix: Sparse) -> Indices:
    """The row of each entry."""
    return np.repeat(np.arange(matrix.shape[0]), entries_per_row(matrix))


def cell_numbers(matrix: Sparse) -> Indices:
    """The cell of each entry, with cells numbered row by row."""
    return row_of_each(matrix) * matrix.shape[1] + matrix.indices


def look_up(cells: Indices, pattern: Sparse) -> tuple[npt.NDArray[np.bool_], Indices]:
    """Which cells are in a pattern, and the index of the entry each one is."""
    known = cell_numbers(pattern)
    entry = np.searchsorted(known, cells)  # never past the end: the last cell is on the diagonal
    return known[entry] == cells, entry


def places_where(matrix: Sparse, chosen: npt.NDArray[np.bool_]) -> Iterator[Edge]:
    """Rows and columns of the chosen entries."""
    return zip(row_of_each(matrix)[chosen].tolist(), matrix.indices[chosen].tolist(), strict=True)


def product(matrix: Any, vector: Vector) -> Vector:
    """A matrix times a vector."""
    product: Vector = matrix @ vector
    return product


def read_only(array: Matrix) -> Matrix:
    """The same array, made read-only."""
    array.setflags(write=False)
    return array


def by_modulus(values: npt.NDArray[Any]) -> npt.NDArray[np.complex128]:
    """Sorted by absolute value, largest first."""
    return values[np.argsort(-np.abs(values), kind="stable")].astype(np.complex128)


def two_eigenvalues(matrix: Sparse, which: Literal["LA", "SA"]) -> Vector:
    """The two largest (LA) or the two smallest (SA) of a symmetric matrix."""
    find: Any = partial(scipy.sparse.linalg.eigsh, k=2, return_eigenvectors=False)
    start = np.random.default_rng(0).normal(size=matrix.shape[0])
    values: Vector
    try:
        values = find(matrix, which=which, v0=start, ncv=64, maxiter=LANCZOS)
    except scipy.sparse.linalg.ArpackNoConvergence:
        # Long graphs such as rings have eigenvalues too crowded for Lanczos, but they factorise
        # cheaply. Just outside Gershgorin's bounds the shifted matrix is invertible.
        own = matrix.diagonal()
        radius = product(abs(matrix), np.ones(len(own))) - np.abs(own)
        outside = (own + radius).max() + 1e-8 if which == "LA" else (own - radius).min() - 1e-8
        values = find(matrix.tocsc(), sigma=outside, v0=start)
    return values
