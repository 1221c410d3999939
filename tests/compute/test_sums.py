"""Sums in a fixed order: the bits of the plainest loop, compiled or not, in one pass or many."""

from collections.abc import Iterator

import networkx as nx
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from parley import graphs
from parley.compute import kernels
from parley.compute.sums import Sums, in_order
from parley.compute.threads import Crew
from parley.graphs import Topology


@pytest.fixture(params=["compiled", "off"])
def _with_and_without_kernels(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    if request.param == "off":
        monkeypatch.setenv("PARLEY_KERNELS", "off")
        monkeypatch.setattr(kernels, "_load", kernels._load.__wrapped__)
        assert kernels.reason() == "no compiled kernels: PARLEY_KERNELS is off"
    elif not kernels.available():
        pytest.skip(kernels.reason())
    yield


everywhere = pytest.mark.usefixtures("_with_and_without_kernels")
# Widths around those of vectors and blocks: what is left over must be rounded alike.
WIDTHS = st.sampled_from([1, 2, 7, 8, 9, 31, 63, 64, 65, 200, 257, 1100])
cases = given(st.integers(2, 9), WIDTHS, st.booleans(), st.sampled_from([1.0, 0.3, 0.9]), st.data())


def drawn(agents: int, directed: bool, seed: int) -> Topology:
    """A random connected graph of unequal degrees, with weights of unequal size."""
    rng = np.random.default_rng(seed)
    graph = nx.DiGraph([(a, (a + 1) % agents) for a in range(agents)])
    graph.add_edges_from((j, i) for i in range(agents) for j in range(i) if rng.random() < 0.3)
    return graphs.from_graph(graph if directed else nx.Graph(graph), weights="push")


def average(topology: Topology, x_ND: Tensor, gamma: float) -> Tensor:
    """The own term, then the neighbours' in order, one number after the other."""
    weights = torch.from_numpy(topology.weights.copy()).to(x_ND.dtype)
    mean_ND = torch.empty_like(x_ND)
    for i in range(topology.agents):
        sum_D = weights[i, i] * x_ND[i]
        for j in topology.neighbours(i):
            sum_D = sum_D + weights[i, j] * x_ND[j]
        mean_ND[i] = sum_D if gamma == 1 else x_ND[i] + gamma * (sum_D - x_ND[i])
    return mean_ND


def sums_of(topology: Topology, dtype: torch.dtype, crew: Crew | None = None) -> Sums:
    own, edges = range(topology.agents), topology.edges
    weights = np.concatenate([topology.self_weights, topology.edge_weights])
    targets, rows = [*own, *(i for _, i in edges)], [*own, *(j for j, _ in edges)]
    return Sums(targets, rows, torch.from_numpy(weights).to(dtype), crew or Crew())


@everywhere
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@settings(max_examples=25)
@cases
def test_averages_are_those_of_the_plainest_loop(
    dtype: torch.dtype, agents: int, width: int, directed: bool, gamma: float, data: st.DataObject
) -> None:
    seed = data.draw(st.integers(0, 2**31))
    topology, sums = drawn(agents, directed, seed), None
    x_ND = torch.randn(agents, width, dtype=dtype, generator=torch.Generator().manual_seed(seed))
    expected, sums = average(topology, x_ND, gamma), sums_of(topology, dtype)
    assert torch.equal(sums.of(x_ND, gamma=gamma), expected)
    # Rows that lie in two places, one of them behind headers, as they arrive from other workers.
    here = data.draw(st.integers(1, agents))
    behind = torch.cat([torch.ones(agents, 3, dtype=dtype), x_ND], 1)[here:, 3:]
    assert torch.equal(sums.of(x_ND[:here].clone(), behind, gamma), expected)
    plus_ND = torch.cat([torch.ones(agents, 5, dtype=dtype), x_ND.flip(0)], 1)[:, 5:]
    assert torch.equal(sums.of(x_ND, None, gamma, plus_ND), expected + plus_ND)


@everywhere
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@settings(max_examples=25)
@given(WIDTHS, st.integers(0, 25), st.integers(0, 2**31))
def test_adding_in_parts_is_adding_at_once(
    dtype: torch.dtype, width: int, terms: int, seed: int
) -> None:
    """A sum may have no term, one, or several times the same row."""
    generator, rng = torch.Generator().manual_seed(seed), np.random.default_rng(seed)
    targets, rows = (rng.integers(4, size=terms).tolist() for _ in range(2))
    weights = torch.randn(terms, dtype=dtype, generator=generator)
    x_RD = torch.randn(4, width, dtype=dtype, generator=generator)
    start_AD = torch.randn(4, width, dtype=dtype, generator=generator)
    expected, at_once, in_parts = start_AD.clone(), start_AD.clone(), start_AD.clone()
    for target, row, weight in zip(targets, rows, weights, strict=True):
        expected[target] = expected[target] + weight * x_RD[row]
    Sums(targets, rows, weights).add(at_once, x_RD)
    cut = terms // 3
    for part in (slice(cut), slice(cut, None)):
        Sums(targets[part], rows[part], weights[part]).add(in_parts, x_RD)
    assert torch.equal(at_once, expected)
    assert torch.equal(in_parts, expected)


@pytest.mark.parametrize("threads", [2, 3])
def test_threads_change_nothing(threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("parley.compute.sums.WORTH_A_THREAD", 0)
    topology, x_ND = graphs.star(7), torch.randn(7, 1234)
    alone, shared = sums_of(topology, x_ND.dtype), sums_of(topology, x_ND.dtype, Crew(threads))
    assert torch.equal(shared.of(x_ND, gamma=0.7), alone.of(x_ND, gamma=0.7))
    plus_ND = torch.randn_like(x_ND)
    expected = alone.of(x_ND) + plus_ND
    assert torch.equal(shared.of(x_ND, plus_AD=plus_ND), expected)


@everywhere
def test_the_sum_of_all_rows_is_taken_from_the_first_to_the_last() -> None:
    x_RD = torch.tensor([[1.0], [1e8], [-1e8], [1.0]])
    assert in_order(x_RD).tolist() == [1.0]  # the first 1 is lost in 1e8, the last is not
    assert in_order(x_RD.flip(0)).tolist() == [1.0]
    assert in_order(x_RD[[1, 2, 0, 3]]).tolist() == [2.0]


def test_what_does_not_fit_is_refused() -> None:
    sums = Sums([0, 1], [0, 3], torch.ones(2))
    with pytest.raises(IndexError, match="row 3 of 2"):
        sums.of(torch.zeros(2, 5))
    with pytest.raises(IndexError, match="row 1 of 1"):
        sums.add(torch.zeros(1, 5), torch.zeros(4, 5))
    with pytest.raises(ValueError, match="unequal length"):
        sums.add(torch.zeros(2, 4), torch.zeros(4, 5))
    with pytest.raises(ValueError, match="float64"):
        sums.of(torch.zeros(4, 5, dtype=torch.float64))
    with pytest.raises(ValueError, match="3 rows to add to 2 sums"):
        sums.of(torch.zeros(4, 5), plus_AD=torch.zeros(3, 5))
    with pytest.raises(IndexError, match="negative"):
        Sums([0], [-1], torch.ones(1))
    with pytest.raises(IndexError, match="1 sums of 2 have a term"):
        Sums([1], [0], torch.ones(1)).of(torch.zeros(1, 5))
