"""Topologies: known values, identities of the weights, and errors for mistakes."""

import json
import math
import pickle
import tracemalloc
from pathlib import Path

import networkx as nx
import numpy as np
import pytest
import scipy.sparse
from hypothesis import given, settings
from hypothesis import strategies as st

from parley import graphs as tp
from parley.errors import BadValue
from parley.graphs import Topology, parse
from parley.graphs.matrices import TOLERANCE
from parley.graphs.weights import Weights

SPECS = [
    ("ring", 1), ("ring", 2), ("ring", 10), ("directed-ring", 7), ("chain", 6), ("torus", 12),
    ("torus:2x5", 10), ("circulant:1,5", 10), ("full", 6), ("star", 9), ("hypercube", 8),
    ("random-regular:3", 10), ("erdos-renyi:0.4", 12), ("exponential", 11),
]  # fmt: skip
every_topology = pytest.mark.parametrize(("spec", "agents"), SPECS)


@st.composite
def graphs(draw: st.DrawFn) -> "nx.Graph[int]":
    """A connected undirected graph: a random tree and random further edges."""
    n = draw(st.integers(1, 9))
    graph: nx.Graph[int] = nx.empty_graph(n)
    graph.add_edges_from((i, draw(st.integers(0, i - 1))) for i in range(1, n))
    pairs = [(i, j) for i in range(n) for j in range(i)]
    if pairs:
        graph.add_edges_from(draw(st.lists(st.sampled_from(pairs), max_size=15)))
    return graph


@st.composite
def digraphs(draw: st.DrawFn) -> "nx.DiGraph[int]":
    """A strongly connected digraph: a cycle in random order and random further edges."""
    n = draw(st.integers(2, 8))
    order = draw(st.permutations(range(n)))
    graph: nx.DiGraph[int] = nx.DiGraph(zip(order, [*order[1:], order[0]], strict=True))
    pairs = [(i, j) for i in range(n) for j in range(n) if i != j]
    graph.add_edges_from(draw(st.lists(st.sampled_from(pairs), max_size=12)))
    return graph


def hears(graph: "nx.DiGraph[int]") -> np.ndarray:
    """1 at [i, j] where i hears j."""
    return nx.to_numpy_array(graph, nodelist=range(len(graph)), weight=None).T


# Slow and obvious: the schemes on dense matrices


def dense_uniform(graph: "nx.DiGraph[int]") -> np.ndarray:
    pattern = hears(graph) + np.eye(len(graph))
    return pattern / pattern.sum(axis=1, keepdims=True)


def dense_metropolis(graph: "nx.DiGraph[int]") -> np.ndarray:
    heard = hears(graph)
    degrees = heard.sum(axis=1)
    weights = heard / (1 + np.maximum.outer(degrees, degrees))
    return weights + np.diag(1 - weights.sum(axis=1))


def dense_sinkhorn(graph: "nx.DiGraph[int]") -> np.ndarray:
    weights = dense_uniform(graph)
    while np.abs(weights.sum(axis=0) - 1).max() > 1e-12:
        weights = weights / weights.sum(axis=0)
        weights = weights / weights.sum(axis=1, keepdims=True)
    return weights


# Known values


def test_ring_weights_are_exactly_a_third() -> None:
    ring = tp.ring(5)
    assert set(np.unique(ring.weights)) == {0.0, 1 / 3}
    assert ring.neighbours(0) == (1, 4)
    assert ring.edges[:4] == ((1, 0), (4, 0), (0, 1), (2, 1))


@pytest.mark.parametrize("n", [3, 4, 10, 33])
def test_ring_has_its_closed_form_spectrum(n: int) -> None:
    spectrum = [(1 + 2 * math.cos(2 * math.pi * k / n)) / 3 for k in range(n)]
    others = sorted(spectrum)[:-1]
    assert tp.ring(n).spectral_gap == pytest.approx(1 - max(map(abs, others)))
    assert tp.ring(n).lambda_min == pytest.approx(min(spectrum))


def test_a_long_ring_has_its_closed_form_ends() -> None:
    n = tp.DENSE + 500
    ring = tp.ring(n)
    assert ring.spectral_gap == pytest.approx(2 / 3 * (1 - math.cos(2 * math.pi / n)), abs=2e-12)
    assert ring.lambda_min == pytest.approx(-1 / 3, abs=2e-12)
    assert ring.diameter == n // 2
    assert "weights" not in vars(ring)


@pytest.mark.parametrize(
    "spec",
    [
        "ring",
        "chain",
        "torus",
        "star",
        "full",
        "exponential",
        "random-regular:3",
        "erdos-renyi:0.1",
    ],
)
def test_the_ends_of_a_spectrum_are_those_of_all_of_it(
    spec: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("parley.graphs.topology.DENSE", 0)
    t = parse(spec, 90)
    assert t.spectral_gap == pytest.approx(1 - abs(t.eigenvalues[1]), abs=1e-11)
    assert t.lambda_min == pytest.approx(t.eigenvalues.real.min(), abs=1e-11)
    assert len(t._outer_eigenvalues) == 4


def test_negative_ends_of_a_spectrum_count_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("parley.graphs.topology.DENSE", 0)
    w = 0.5 * np.eye(90) - tp.star(90).weights
    t = tp.star(90, weights=w)
    assert t.spectral_gap == pytest.approx(1 - sorted(np.abs(np.linalg.eigvalsh(w)))[-2])
    assert t.diameter == 2


def test_directed_ring_has_its_closed_form_gap() -> None:
    # |1 + e^(2πi/n)| / 2 = cos(π/n)
    assert tp.directed_ring(6).spectral_gap == pytest.approx(1 - math.cos(math.pi / 6))


@pytest.mark.parametrize(
    ("spec", "agents", "degree"),
    [
        ("ring", 10, 2), ("directed-ring", 10, 1), ("torus", 20, 4), ("torus:2x5", 10, 3),
        ("torus", 4, 2), ("circulant:1,5", 10, 3), ("circulant:1,5", 20, 4), ("full", 7, 6),
        ("hypercube", 16, 4), ("random-regular:3", 20, 3), ("exponential", 16, 7), ("ring", 2, 1),
        ("ring", 1, 0), ("petersen", 10, 3), ("dyck", 32, 3),
    ],
)  # fmt: skip
def test_regular_graphs_have_their_degree_and_even_weights(
    spec: str, agents: int, degree: int
) -> None:
    t = parse(spec, agents)
    assert set(t.degrees) == set(t.out_degrees) == {degree}
    even = parse(spec, agents, weights="uniform").weights
    np.testing.assert_array_equal(t.weights, even)
    assert set(np.unique(t.weights)) <= {0.0, 1 / (degree + 1)}


@pytest.mark.parametrize(
    ("spec", "agents", "diameter"),
    [
        ("ring", 10, 5), ("ring", 11, 5), ("directed-ring", 10, 9), ("chain", 10, 9),
        ("torus:4x5", 20, 4), ("full", 9, 1), ("star", 9, 2), ("hypercube", 32, 5), ("ring", 1, 0),
        ("exponential", 16, 2), ("circulant:1,5", 10, 3), ("petersen", 10, 2), ("dyck", 32, 5),
    ],
)  # fmt: skip
def test_diameters(spec: str, agents: int, diameter: int) -> None:
    assert parse(spec, agents).diameter == diameter


def test_named_graphs_are_those_of_the_literature_and_know_their_size() -> None:
    petersen, dyck = parse("petersen"), parse("dyck")
    assert nx.is_isomorphic(petersen.graph.to_undirected(), nx.petersen_graph())
    # The Dyck graph is the only cubic symmetric graph of 32 vertices; girth 6, bipartite.
    assert (dyck.agents, nx.girth(dyck.graph.to_undirected())) == (32, 6)
    assert nx.is_bipartite(dyck.graph.to_undirected())
    assert nx.is_distance_regular(petersen.graph.to_undirected())


def test_one_agent_is_alone_with_its_own_value() -> None:
    one = tp.ring(1)
    assert (one.edges, one.rounds, one.weights.tolist()) == ((), (), [[1.0]])
    assert (one.spectral_gap, one.diameter, one.directed) == (1.0, 0, False)


def test_metropolis_on_a_star() -> None:
    w = tp.star(4).weights
    np.testing.assert_allclose(w[0], [1 / 4] * 4)
    np.testing.assert_allclose(w[2], [1 / 4, 0, 3 / 4, 0])


def test_functions_and_specs_agree() -> None:
    pairs = [
        (tp.directed_ring(5), parse("directed-ring", 5)),
        (tp.torus((2, 5)), parse("torus:2x5")),
        (tp.circulant(9, [1, 3]), parse("circulant:1,3", 9)),
        (tp.random_regular(8, 3, seed=4), parse("random-regular:3", 8, seed=4)),
        (tp.erdos_renyi(8, 0.5, seed=4), parse("erdos-renyi:0.5", 8, seed=4)),
    ]
    for a, b in pairs:
        assert (a.name, a.edges) == (b.name, b.edges)
        np.testing.assert_array_equal(a.weights, b.weights)


# Identities


@every_topology
def test_auto_weights_preserve_the_mean(spec: str, agents: int) -> None:
    t = parse(spec, agents)
    assert t.agents == agents
    assert t.doubly_stochastic
    assert t.symmetric is not t.directed
    x = np.random.default_rng(0).normal(size=(agents, 3))
    np.testing.assert_allclose((t.weights @ x).mean(axis=0), x.mean(axis=0), atol=1e-12)
    t.require("doubly-stochastic", "anyone")


@given(graphs())
@settings(deadline=None, max_examples=50)
def test_metropolis_is_symmetric_and_doubly_stochastic(graph: "nx.Graph[int]") -> None:
    t = tp.from_graph(graph, weights="metropolis")
    np.testing.assert_array_equal(t.weights, t.weights.T)
    assert t.doubly_stochastic
    assert (np.diag(t.weights) > 0).all()
    assert 0 < t.spectral_gap <= 1


@given(digraphs())
@settings(deadline=None, max_examples=50)
def test_sinkhorn_is_doubly_stochastic_on_every_edge(graph: "nx.DiGraph[int]") -> None:
    t = tp.from_graph(graph, weights="sinkhorn")
    np.testing.assert_allclose(t.weights.sum(axis=0), 1, atol=1e-11)
    np.testing.assert_allclose(t.weights.sum(axis=1), 1, atol=1e-11)
    assert all(t.weights[i, j] > 0 for j, i in t.edges)


@given(digraphs())
@settings(deadline=None, max_examples=50)
def test_uniform_is_row_stochastic(graph: "nx.DiGraph[int]") -> None:
    t = tp.from_graph(graph, weights="uniform")
    assert t.row_stochastic
    for i in range(t.agents):
        assert t.weights[i, i] == 1 / (len(t.neighbours(i)) + 1)


@given(digraphs() | graphs())
@settings(deadline=None, max_examples=100)
def test_sparse_weights_are_those_of_the_dense_formulas(graph: "nx.Graph[int]") -> None:
    schemes = {"uniform": dense_uniform, "sinkhorn": dense_sinkhorn}
    if not graph.is_directed():
        schemes["metropolis"] = dense_metropolis
    for name, formula in schemes.items():
        t = tp.from_graph(graph, weights=name)
        close = 1e-9 if name == "sinkhorn" else 1e-14  # an iteration is no better than its end
        np.testing.assert_allclose(t.weights, formula(t.graph), rtol=0, atol=close)
        np.testing.assert_array_equal(t.mixing.toarray(), t.weights)
        np.testing.assert_array_equal(np.diag(t.weights), t.self_weights)
        for (j, i), weight in zip(t.edges, t.edge_weights, strict=True):
            assert weight == t.weights[i, j] > 0


@given(digraphs() | graphs(), st.integers(0, 2**32 - 1))
@settings(deadline=None, max_examples=50)
def test_any_matrix_is_kept_in_the_places_of_the_graph(graph: "nx.Graph[int]", seed: int) -> None:
    t = tp.from_graph(graph)
    rng = np.random.default_rng(seed)
    w = (
        rng.normal(size=(t.agents, t.agents))
        * (t.weights > 0)
        * rng.integers(0, 2, t.weights.shape)
    )
    halves = scipy.sparse.coo_array(w) * 0.5
    twice = scipy.sparse.hstack([halves, halves])  # each entry comes in two parts
    twice = scipy.sparse.coo_array(
        (twice.data, (twice.coords[0], twice.coords[1] % t.agents)), shape=w.shape
    )
    for given_ in (w, w.tolist(), scipy.sparse.csc_array(w), scipy.sparse.csr_matrix(w), twice):
        again = parse(t, weights=given_)
        np.testing.assert_array_equal(again.weights, w)
        assert again.edges == t.edges
        assert again.mixing.nnz == len(t.edges) + t.agents
        assert again.mixing.has_canonical_format
        symmetric = bool(np.allclose(w, w.T, rtol=0, atol=TOLERANCE))
        assert again.symmetric is symmetric


@given(digraphs() | graphs())
@settings(deadline=None, max_examples=50)
def test_the_diameter_is_the_longest_of_the_shortest_paths(graph: "nx.Graph[int]") -> None:
    assert tp.from_graph(graph).diameter == nx.diameter(graph)


@given(digraphs() | graphs())
@settings(deadline=None, max_examples=50)
def test_rounds_partition_the_edges_in_chunks_of_n(graph: "nx.Graph[int]") -> None:
    t = tp.from_graph(graph)
    assert sorted(e for r in t.rounds for e in r) == list(range(len(t.edges)))
    assert all(0 < len(r) <= t.agents for r in t.rounds)
    # Greedy: no round could have taken the slot that opens the next one.
    slot = [sum(d == dst for _, d in t.edges[:e]) for e, (_, dst) in enumerate(t.edges)]
    for one, after in zip(t.rounds, t.rounds[1:], strict=False):
        opening = min(slot[e] for e in after)
        assert max(slot[e] for e in one) < opening
        assert len(one) + slot.count(opening) > t.agents


def test_rounds_of_known_graphs() -> None:
    assert [len(r) for r in tp.star(8).rounds] == [8, 6]
    assert [len(r) for r in tp.full(5).rounds] == [5, 5, 5, 5]
    assert tp.directed_ring(3).rounds == ((0, 1, 2),)


@every_topology
def test_describe_is_json_and_right(spec: str, agents: int) -> None:
    t = parse(spec, agents)
    figures = json.loads(json.dumps(tp.describe(t)))
    assert figures["agents"] == agents
    assert figures["edges"] == len(t.edges) == agents * figures["messages_per_round"]
    assert figures["degree_min"] <= figures["degree_mean"] <= figures["degree_max"]
    assert -1 <= figures["lambda_min"] <= 1
    assert figures["directed"] is (spec == "directed-ring")


def test_a_topology_cannot_be_changed_but_can_be_sent() -> None:
    t = tp.ring(4)
    with pytest.raises(ValueError, match="read-only"):
        t.weights[0, 0] = 1
    with pytest.raises(nx.NetworkXError, match="Frozen"):
        t.graph.add_edge(0, 2)
    with pytest.raises(AttributeError):
        t.name = "other"  # type: ignore[misc]
    copy = pickle.loads(pickle.dumps(t))
    assert (copy.edges, copy.rounds) == (t.edges, t.rounds)


def test_the_weights_cannot_be_changed_either_way() -> None:
    t = tp.ring(4)
    for array in (t.mixing.data, t.mixing.indices, t.edge_weights, t.self_weights):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1
    own = scipy.sparse.csr_array(t.weights)
    kept = tp.ring(4, weights=own)
    own.data[:] = 7
    np.testing.assert_array_equal(kept.weights, t.weights)


def test_ten_thousand_agents_take_the_memory_of_their_edges() -> None:
    tracemalloc.start()
    t = tp.ring(10_000)
    t.require("symmetric", "anyone")
    t.require("doubly-stochastic", "anyone")
    assert len(t.rounds) == 2
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert t.mixing.nnz == 30_000
    assert len(t.edges) == len(t.edge_weights) == 20_000
    assert set(t.edge_weights) == set(t.self_weights) == {1 / 3}
    assert "weights" not in vars(t)
    assert peak < 100e6  # the dense matrix has 800 MB


@pytest.mark.parametrize("spec", ["circulant:1,5", "random-regular:4", "directed-ring", "star"])
def test_ten_thousand_agents_are_checked_without_a_dense_matrix(spec: str) -> None:
    t = parse(spec, 10_000)
    t.require("doubly-stochastic", "anyone")
    assert t.mixing.nnz == len(t.edges) + 10_000
    assert sum(map(len, t.rounds)) == len(t.edges)
    assert "weights" not in vars(t)


def test_random_pairs_are_drawn_row_by_row_as_from_one_matrix() -> None:
    source = int(np.random.SeedSequence([3, 0]).generate_state(1)[0])
    drawn = np.triu(np.random.default_rng(source).random((60, 60)) < 0.3, k=1)
    assert [e for e in sorted(tp.erdos_renyi(60, 0.3, seed=3).edges) if e[0] < e[1]] == [
        tuple(pair) for pair in np.argwhere(drawn).tolist()
    ]


def test_random_graphs_follow_the_seed() -> None:
    for spec in ("random-regular:3", "erdos-renyi:0.3"):
        first, again, other = (parse(spec, 16, seed=s) for s in (1, 1, 2))
        assert first.edges == again.edges != other.edges


def test_sparse_draws_are_repeated_until_connected() -> None:
    assert all(tp.erdos_renyi(12, 0.2, seed=s).diameter < 12 for s in range(5))


# Files and graphs


def test_a_file_of_edges(tmp_path: Path) -> None:
    path = tmp_path / "graph.txt"
    path.write_text("# three agents\n0 1\n1 -> 2  # one way\n\n2->0\n")
    t = parse(f"file:{path}", 3)
    assert t.name == f"file:{path}"
    assert t.edges == ((1, 0), (2, 0), (0, 1), (1, 2))
    assert (t.directed, t.scheme) == (True, "sinkhorn")


def test_a_file_with_weights(tmp_path: Path) -> None:
    path = tmp_path / "graph.txt"
    path.write_text("0 1 0.25\n1 -> 2 0.5\n2 -> 0 1e-1\n2 2 0.4\n")
    t = tp.from_file(path)
    np.testing.assert_allclose(t.weights, [[0.65, 0.25, 0.1], [0.25, 0.75, 0], [0, 0.5, 0.4]])
    assert t.scheme == "explicit"
    assert not t.row_stochastic
    assert tp.from_file(path, weights="uniform").row_stochastic


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("0 1\nzero one\n", "line 2 is not one of them"),
        ("0 1 heavy\n", "line 1 is not one of them"),
        ("0 1 0.5 9\n", "line 1"),
        ("0 1 0.5\n1 2\n", "a weight on every line or on none"),
        ("0 1 0.5\n1 0 0.4\n", "line 2 gives edge 1 -> 0 a second weight"),
        ("0 1\n1 3\n", "no line mentions agent 2"),
        ("0 -> 1\n", "nothing that agent"),
        ("0 1\n2 3\n", "agent 0 is cut off from agent 2"),
        ("# nothing\n", "it has no edges"),
        ("round\n0 1\nround\n1 2\n", "it has 2 rounds); valid: a file of one graph, or schedule:"),
        ("0 1 nan\n", "line 1 is not one of them"),
    ],
)
def test_a_bad_file_is_reported_with_the_line(tmp_path: Path, text: str, told: str) -> None:
    path = tmp_path / "graph.txt"
    path.write_text(text)
    with pytest.raises(BadValue) as error:
        tp.from_file(path)
    assert told in str(error.value)


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(BadValue, match="No such file"):
        parse(f"file:{tmp_path / 'none.txt'}")


def test_ones_own_graph() -> None:
    mixed: nx.Graph[object] = nx.Graph([("b", 1), (1, (2, 3)), ((2, 3), "b")])
    assert parse(mixed, 3).edges == tp.ring(3).edges
    named: nx.DiGraph[str] = nx.DiGraph([("z", "a"), ("a", "m"), ("m", "z")])
    assert parse(named).neighbours(0) == (2,)


def test_a_graphs_own_weights() -> None:
    graph: nx.DiGraph[int] = nx.DiGraph()
    graph.add_weighted_edges_from([(0, 1, 0.3), (1, 0, 0.2)])
    np.testing.assert_allclose(parse(graph).weights, [[0.8, 0.2], [0.3, 0.7]])
    assert parse(graph, weights="metropolis").weights.tolist() == [[0.5, 0.5], [0.5, 0.5]]
    graph.add_edge(1, 2)
    graph.add_edge(2, 0)  # not all edges have one
    assert parse(graph).scheme == "sinkhorn"


def test_a_topology_passes_through_or_is_reweighted() -> None:
    t = tp.star(4)
    assert parse(t, 4) is t
    assert parse(t, weights="uniform").weights[0, 0] == 1 / 4
    matrix = [[0.5, 0.5], [0.5, 0.5]]
    assert parse("ring", 2, weights=matrix).scheme == "explicit"


# Mistakes


@pytest.mark.parametrize(
    ("spec", "agents", "field", "told"),
    [
        ("rong", 5, "topology", "did you mean 'ring'?"),
        ("ring:3", 5, "topology", "'ring:3' is not valid; valid: ring"),
        ("circulant", 5, "topology", "circulant:1,5"),
        ("circulant:1,x", 5, "topology", "circulant:1,5"),
        ("circulant:5", 5, "topology", "offsets from 1 to 4 for 5 agents"),
        ("circulant:2", 6, "topology", "cut off"),
        ("torus", 7, "topology", "7 agents do not form a grid"),
        ("torus", 7, "topology", "such as 8, or topology=ring"),
        ("torus:1x5", 5, "topology", "R and C at least 2"),
        ("torus:2x", 5, "topology", "torus:2x5"),
        ("torus:2x5", 12, "agents", "12 is not valid (topology 'torus:2x5' has 10 agents)"),
        ("hypercube", 12, "topology", "a power of two, such as 8 or 16"),
        ("petersen", 12, "agents", "the graph 'petersen' has exactly 10 agents"),
        ("dyck", 16, "agents", "valid: 32, or another topology"),
        ("random-regular:3", 5, "topology", "agents x degree even"),
        ("random-regular:9", 5, "topology", "a degree below 5"),
        ("random-regular:1", 6, "topology", "a degree of 2 or more"),
        ("random-regular:x", 6, "topology", "random-regular:3"),
        ("erdos-renyi:1.5", 5, "topology", "a probability above 0 and at most 1"),
        ("erdos-renyi:nan", 5, "topology", "a probability above 0 and at most 1"),
        ("erdos-renyi:0.001", 20, "topology", "none of 100 draws for 20 agents was connected"),
        ("ring", None, "agents", "a number of agents for topology 'ring'"),
        ("ring", 0, "agents", "from 1 to 100000"),
        (None, 3, "topology", "a networkx graph or a Topology"),
    ],
)
def test_a_bad_spec_gets_a_reason(spec: str, agents: int | None, field: str, told: str) -> None:
    with pytest.raises(BadValue) as error:
        parse(spec, agents)
    assert error.value.field == field
    assert told in str(error.value)


@pytest.mark.parametrize("build", [tp.ring, tp.directed_ring, tp.chain, tp.torus, tp.full, tp.star,
                                   tp.hypercube, tp.exponential])  # fmt: skip
@pytest.mark.parametrize("agents", [0, -1])
def test_no_agents(build, agents: int) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(BadValue, match=f"agents: {agents} is not valid; .* from 1 to 100000"):
        build(agents)


@pytest.mark.parametrize(
    ("weights", "told"),
    [
        ("metropolys", "did you mean 'metropolis'?"),
        ("metropolis", "agent 0 sends to agent 1 but hears nothing back"),
        (np.eye(3), "(3, 3) is not valid; valid: shape (4, 4) for 4 agents"),
        (np.full((4, 4), 0.25), "agent 0 gives this weight to agent 1, which does not send to it"),
        (np.full((4, 4), np.inf), "inf is not valid"),
        ([[1, 2], [3]], "a 4 x 4 matrix of numbers"),
        (scipy.sparse.eye_array(3), "(3, 3) is not valid; valid: shape (4, 4) for 4 agents"),
        (
            scipy.sparse.csr_array(np.full((4, 4), 0.25)),
            "agent 0 gives this weight to agent 1, which",
        ),
        (
            scipy.sparse.csc_array(np.diag([1.0, 1.0, np.nan, 1.0])),
            "agent 2 gives this weight to agent 2",
        ),
    ],
)
def test_bad_weights_get_a_reason(weights: Weights, told: str) -> None:
    with pytest.raises(BadValue) as error:
        tp.directed_ring(4, weights=weights)
    assert error.value.field == "weights"
    assert told in str(error.value)


def told_by(t: Topology, what: tp.Property) -> str:
    with pytest.raises(BadValue) as error:
        t.require(what, "ngc")
    assert error.value.field == "weights"
    return str(error.value)


def test_require_explains() -> None:
    uneven = tp.star(3, weights="uniform")
    uneven.require("row-stochastic", "ngc")
    assert told_by(uneven, "symmetric") == (
        "weights: 'uniform' is not valid (ngc needs symmetric weights; "
        "agent 0 gives agent 1 0.333333 but gets 0.5); valid: weights=metropolis"
    )
    assert "column 0 sums to 1.33333" in told_by(uneven, "doubly-stochastic")
    assert "an undirected topology" in told_by(tp.directed_ring(3), "symmetric")
    lopsided = nx.DiGraph([(0, 1), (1, 2), (2, 0), (0, 2)])
    flaw = told_by(tp.from_graph(lopsided, weights="uniform"), "doubly-stochastic")
    assert flaw.endswith("valid: weights=sinkhorn")
    short = tp.ring(2, weights=[[0.5, 0.4], [0.5, 0.5]])
    assert "row 0 sums to 0.9" in told_by(short, "row-stochastic")
    negative = tp.ring(2, weights=[[1.5, -0.5], [-0.5, 1.5]])
    assert "agent 0 gives agent 1 the negative weight -0.5" in told_by(negative, "row-stochastic")
    assert negative.symmetric
    assert not negative.doubly_stochastic


def test_a_hand_made_topology_is_checked() -> None:
    with pytest.raises(BadValue, match=r"0\.\.N-1"):
        Topology("mine", nx.DiGraph([(1, 2), (2, 1)]), np.full((2, 2), 0.5))
    with pytest.raises(BadValue, match="nothing that agent 1 sends reaches agent 0"):
        Topology("mine", nx.DiGraph([(0, 1)]), np.eye(2))
    with pytest.raises(BadValue, match="1 or more"):
        Topology("mine", nx.DiGraph(), np.eye(0))
    with pytest.raises(BadValue, match="a DiGraph on"):
        Topology("mine", nx.path_graph(2), np.full((2, 2), 0.5))
    with pytest.raises(BadValue, match="parallel"):
        tp.from_graph(nx.MultiGraph([(0, 1), (0, 1)]))
