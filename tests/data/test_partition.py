import itertools
import json
from pathlib import Path

import networkx as nx
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from parley import Experiment, data
from parley.data import colouring
from parley.data.partition import check_labels, folders, holdings, parse, partition
from parley.errors import BadValue
from parley.graphs import Topology, circulant, from_graph, full, ring, star
from parley.training.problem import problem

BALANCED = np.repeat(np.arange(10), 40)


def classes_of(result, labels):
    return [set(labels[part].tolist()) for part in result.indices]


def assert_partition(result, labels, agents):
    assert len(result.indices) == agents
    assert all(len(part) > 0 for part in result.indices)
    everything = np.concatenate(result.indices)
    np.testing.assert_array_equal(np.sort(everything), np.arange(len(labels)))


def neighbours_share(result, labels, topology):
    held = classes_of(result, labels)
    return any(held[i] & held[j] for i, j in topology.edges)


@st.composite
def graphs(draw, most=9):
    """Connected graphs: a random tree and some more edges."""
    n = draw(st.integers(2, most))
    edges = [(draw(st.integers(0, i - 1)), i) for i in range(1, n)]
    pairs = list(itertools.combinations(range(n), 2))
    edges += draw(st.lists(st.sampled_from(pairs), max_size=3 * n))
    graph = nx.Graph(edges)
    return from_graph(graph)


@st.composite
def labelled(draw, most=6, least=1):
    """Labels in random order with every class present, classes of different sizes."""
    counts = [draw(st.integers(least, 12)) for _ in range(draw(st.integers(2, most)))]
    return np.array(draw(st.permutations(np.repeat(np.arange(len(counts)), counts).tolist())))


# The layouts of the paper, on shuffled balanced labels.
@pytest.mark.parametrize(
    ("agents", "expected"),
    [
        (5, [{2 * i, 2 * i + 1} for i in range(5)]),
        (10, [{i} for i in range(10)]),
        (20, [{i % 10} for i in range(20)]),
    ],
)
def test_complete_skew_is_the_papers_layout(agents, expected):
    labels = np.random.default_rng(1).permutation(BALANCED)
    for topology in (ring(agents), circulant(agents, [1, 5]) if agents > 5 else ring(agents)):
        result = partition("skew:1", labels, topology, seed=0)
        assert_partition(result, labels, agents)
        assert classes_of(result, labels) == expected
        assert {len(part) for part in result.indices} == {400 // agents}
        assert result.note == ""


def test_ag_news_layout_eight_agents_four_classes():
    labels = np.repeat(np.arange(4), 50)
    for topology in (ring(8), circulant(8, [1, 5])):
        result = partition("skew:1", labels, topology, seed=0)
        assert not neighbours_share(result, labels, topology)
        assert set().union(*classes_of(result, labels)) == {0, 1, 2, 3}


def test_unbalanced_classes_are_given_whole():
    counts = [30, 35, 28, 33, 31, 40, 29, 30, 36, 33]  # as Imagenette: plain chunks would overlap
    labels = np.repeat(np.arange(10), counts)
    result = partition("skew:1", labels, ring(5), seed=0)
    assert_partition(result, labels, 5)
    assert not neighbours_share(result, labels, ring(5))
    assert classes_of(result, labels) == [{2 * i, 2 * i + 1} for i in range(5)]


def test_partial_skew_keeps_a_share_sorted():
    result = partition("skew:0.5", BALANCED, ring(10), seed=0)
    assert_partition(result, BALANCED, 10)
    held = holdings(result.indices, BALANCED, 10)
    assert (held.sum(1) == 40).all()
    assert (np.diag(held) >= 20).all()
    # The pooled half is spread: an agent has about 2 of each class besides its own 20.
    assert (held - 20 * np.eye(10, dtype=int)).max() <= 9
    assert held.argmax(1).tolist() == list(range(10))


def test_skew_zero_and_iid_are_even_and_mixed():
    for spec in ("skew:0", "iid"):
        held = holdings(partition(spec, BALANCED, ring(4), seed=3).indices, BALANCED, 10)
        assert (held.sum(1) == 100).all()
        assert (held > 0).all()


def test_seeds():
    for spec in ("iid", "skew:0.5", "dirichlet:1", "classes:2"):
        one, same, other = (partition(spec, BALANCED, ring(5), seed).indices for seed in (0, 0, 1))
        assert all(np.array_equal(a, b) for a, b in zip(one, same, strict=True))
        assert not all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


def test_impossible_is_said():
    result = partition("skew:1", BALANCED, full(20), seed=0)
    assert_partition(result, BALANCED, 20)
    assert result.note == (
        "10 classes cannot be given to 20 fully connected agents "
        "so that no two neighbours share one"
    )
    assert classes_of(result, BALANCED) == [{i % 10} for i in range(20)]


def test_odd_ring_needs_a_third_class():
    topology = ring(7)
    two, three = np.repeat([0, 1], 20), np.repeat([0, 1, 2], 20)
    assert "cannot be" in partition("skew:1", two, topology, seed=0).note
    result = partition("skew:1", three, topology, seed=0)
    assert result.note == "" and not neighbours_share(result, three, topology)
    sizes = sorted(holdings(result.indices, three, 3).astype(bool).sum(0).tolist())
    assert sizes == [2, 2, 3]


def test_the_search_goes_beyond_the_greedy_colouring():
    """Three colours suffice here, but DSATUR without backtracking needs a fourth."""
    graph = nx.Graph()
    graph.add_nodes_from(range(8))
    graph.add_edges_from([(0, 1), (0, 3), (0, 4), (1, 2), (1, 3), (1, 6), (2, 4), (2, 5), (2, 6)])
    graph.add_edges_from([(3, 5), (3, 7), (4, 7), (5, 6), (6, 7)])
    adjacent = [set(graph[v]) for v in range(8)]
    assert colouring.colour(adjacent, [8] * 3)[1] >= 8  # more steps than vertices: it went back
    labels = np.repeat([0, 1, 2], 30)
    topology = from_graph(graph)
    result = partition("skew:1", labels, topology, seed=0)
    assert result.note == "" and not neighbours_share(result, labels, topology)


def test_a_search_that_is_cut_short_does_not_claim_impossible(monkeypatch):
    monkeypatch.setattr(colouring, "SEARCH_BUDGET", 3)
    result = partition("skew:1", np.repeat([0, 1, 2], 9), ring(10), seed=0)
    assert "could not, in 3 tries, be given" in result.note


def test_hundreds_of_agents():
    labels = np.repeat(np.arange(3), 400)
    grid = nx.convert_node_labels_to_integers(nx.grid_2d_graph(25, 40))
    topology = from_graph(grid)
    result = partition("skew:1", labels, topology, seed=0)
    assert result.note == "" and not neighbours_share(result, labels, topology)
    assert_partition(result, labels, 1000)


def possible(topology: Topology, room: list[int]) -> bool:
    """Brute force: is there one class per agent, neighbours different, no class over its room?"""
    for colours in itertools.product(range(len(room)), repeat=topology.agents):
        if all(colours[i] != colours[j] for i, j in topology.edges) and all(
            colours.count(c) <= r for c, r in enumerate(room)
        ):
            return True
    return False


@settings(deadline=None, max_examples=150)
@given(graphs(most=7), labelled(most=4))
def test_neighbours_share_no_class_whenever_possible(topology, labels):
    if topology.agents > len(labels):
        return
    classes = int(labels.max()) + 1
    result = partition("skew:1", labels, topology, seed=0)
    assert_partition(result, labels, topology.agents)
    if result.note:
        assert topology.agents > classes
        assert not possible(topology, np.bincount(labels).tolist())
    else:
        assert not neighbours_share(result, labels, topology)


@settings(deadline=None, max_examples=100)
@given(
    st.sampled_from(["iid", "skew:1", "skew:0.3", "skew:0.9", "dirichlet:0.05", "dirichlet:10"]),
    graphs(),
    labelled(),
    st.integers(0, 3),
)
def test_every_sample_has_one_holder(spec, topology, labels, seed):
    if topology.agents <= len(labels):
        assert_partition(partition(spec, labels, topology, seed), labels, topology.agents)


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 8), graphs(), labelled(least=9), st.integers(0, 3))
def test_classes_k(k, topology, labels, seed):
    classes = int(labels.max()) + 1
    if k > classes or topology.agents * k < classes:
        with pytest.raises(BadValue):
            partition(f"classes:{k}", labels, topology, seed)
        return
    result = partition(f"classes:{k}", labels, topology, seed)
    assert_partition(result, labels, topology.agents)
    held = holdings(result.indices, labels, classes) > 0
    assert (held.sum(1) == k).all()
    assert held.sum(0).max() - held.sum(0).min() <= 1
    assert result.note == ""


def test_classes_k_errors_and_note():
    with pytest.raises(BadValue, match=r"classes 6, 7, 8, 9 have no holder.*at least 4 for 3"):
        partition("classes:2", BALANCED, ring(3), 0)
    with pytest.raises(BadValue, match="k from 1 to 10"):
        partition("classes:11", BALANCED, ring(3), 0)
    result = partition("classes:2", np.array([0, 1, 1, 1, 1]), star(4), 0)
    assert result.note == "class 0 has fewer samples than holders"


def test_dirichlet_concentration():
    """Small a: few holders per class; large a: all alike."""
    labels = np.repeat(np.arange(10), 500)
    largest = []
    for a in (0.05, 1000):
        held = holdings(partition(f"dirichlet:{a}", labels, ring(8), 0).indices, labels, 10)
        largest.append((held.max(0) / held.sum(0)).mean())
    assert largest[0] > 0.7 and largest[1] < 0.15


@pytest.mark.parametrize("a", ["1e-300", "1e-3", "1e6", "1e300"])
def test_dirichlet_extremes(a):
    labels = np.repeat([0, 1], 10)
    assert_partition(partition(f"dirichlet:{a}", labels, ring(15), 0), labels, 15)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("skw:1", "did you mean 'skew:s'"),
        ("skew", "skew:s with s from 0 to 1"),
        ("skew:1.2", "skew:s with s from 0 to 1"),
        ("skew:nan", "skew:s with s from 0 to 1"),
        ("dirichlet:0", "a number a above 0"),
        ("dirichlet:inf", "a number a above 0"),
        ("classes:0", "a whole number k from 1 to"),
        ("classes:1.5", "a whole number k from 1 to"),
        ("iid:3", "valid: iid"),
        ("file:", "the path of a JSON file"),
    ],
)
def test_bad_specs(spec, message):
    with pytest.raises(BadValue, match=f"^partition: '{spec}'.*{message}"):
        parse(spec)


def test_bad_labels():
    with pytest.raises(BadValue, match=r"^agents: 5 is not valid; valid: at most 3"):
        partition("iid", np.array([0, 1, 1]), ring(5), 0)
    with pytest.raises(BadValue, match="class 3 has no training sample"):
        check_labels(np.array([0, 1, 2, 4]), 5)
    with pytest.raises(BadValue, match="classes 1, 2 have no training sample"):
        partition("iid", np.array([0, 3]), ring(2), 0)
    with pytest.raises(BadValue, match="from 0 to 7"):
        check_labels(np.array([0, 7]), 5)
    with pytest.raises(BadValue, match="float64 labels"):
        partition("iid", np.array([0.0, 1.0]), ring(2), 0)
    with pytest.raises(BadValue, match="labels of shape"):
        partition("iid", np.zeros((2, 2), dtype=int), ring(2), 0)
    with pytest.raises(BadValue, match="class 0 has no training sample"):
        partition("iid", np.array([], dtype=int), ring(2), 0)


def test_file(tmp_path):
    path = tmp_path / "split.json"
    path.write_text(json.dumps([[3, 0], [2]]))
    result = partition(f"file:{path}", np.array([0, 1, 0, 1]), ring(2), 0)
    assert [part.tolist() for part in result.indices] == [[0, 3], [2]]
    assert folders(f"file:{path}") is None
    path.write_text(json.dumps(["hospital-a", "hospital-b"]))
    assert folders(f"file:{path}") == ["hospital-a", "hospital-b"]
    assert folders("iid") is None


class TestUsedSamples:
    """Indices are the dataset's own, whatever fraction and validation leave of it."""

    def written(self, tmp_path: Path) -> tuple[str, list[list[int]]]:
        """Every third sample of the digits to each of three agents, but for the last 100."""
        train = data.load("digits").train
        parts = [list(range(agent, len(train) - 100, 3)) for agent in range(3)]
        path = tmp_path / "parts.json"
        path.write_text(json.dumps(parts))
        return f"file:{path}", parts

    @pytest.mark.parametrize(
        "cut", [{}, {"fraction": 0.3}, {"validation": 0.2}, {"fraction": 0.5, "validation": 0.2}]
    )
    def test_an_agent_trains_on_nothing_but_what_the_file_gives_it(self, tmp_path, cut):
        spec, parts = self.written(tmp_path)
        found = problem(Experiment.of(agents=3, partition=spec, **cut))
        train = data.load("digits").train
        whole = [train.take(part) for part in parts]
        share = cut.get("fraction", 1) * (1 - cut.get("validation", 0))
        for mine, listed in zip(found.samples, whole, strict=True):
            allowed = {tuple(x.flatten().tolist()) for x in listed.inputs}
            assert all(tuple(x.flatten().tolist()) in allowed for x in mine.inputs)
            assert len(mine) == pytest.approx(share * len(listed), rel=0.15)

    def test_the_held_out_samples_do_not_depend_on_the_partition(self, tmp_path):
        spec, _ = self.written(tmp_path)
        tests = [
            problem(Experiment.of(agents=3, partition=p, fraction=0.5, validation=0.2)).test
            for p in (spec, "iid", "skew:1")
        ]
        assert all(torch.equal(tests[0].inputs, other.inputs) for other in tests[1:])

    def test_other_partitions_deal_out_what_is_used(self):
        labels = np.arange(60) % 3
        used = np.flatnonzero(np.arange(60) % 2)
        for spec in ("iid", "skew:1", "dirichlet:1", "classes:2"):
            cut = partition(spec, labels[used], ring(3), 0).indices
            found = partition(spec, labels, ring(3), 0, used).indices
            assert [part.tolist() for part in found] == [used[part].tolist() for part in cut]

    def test_an_agent_left_with_nothing_is_named(self, tmp_path):
        path = tmp_path / "parts.json"
        path.write_text("[[0], [1, 2]]")
        with pytest.raises(BadValue, match=r"leave agent 0 without samples\); valid: a larger"):
            partition(f"file:{path}", np.zeros(3, dtype=int), ring(2), 0, np.array([1, 2]))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[[0], [1], [2]]", "3 entries for 2 agents"),
        ("[[0], []]", "agent 1's entry is not a list with at least one index"),
        ('[[0], "b"]', "agent 1's entry"),
        ("[[0], [4]]", "agent 1 has an index outside 0 to 3"),
        ("[[0], [-1]]", "outside 0 to 3"),
        ("[[0], [true]]", "outside 0 to 3"),
        ("[[0], [1.0]]", "outside 0 to 3"),
        ("[[0, 1], [1]]", "agent 1 has an index that an agent already holds"),
        ("[[0, 0], [1]]", "agent 0 has an index that an agent already holds"),
        ("{}", "it is a dict"),
        ("[[0]", "not JSON"),
    ],
)
def test_bad_files(tmp_path, content, message):
    path = tmp_path / "split.json"
    path.write_text(content)
    with pytest.raises(BadValue, match=message):
        partition(f"file:{path}", np.array([0, 1, 0, 1]), ring(2), 0)


def test_missing_file(tmp_path):
    with pytest.raises(BadValue, match="No such file"):
        partition(f"file:{tmp_path / 'none.json'}", np.array([0, 1]), ring(2), 0)


def test_colouring_of_many_agents_takes_no_time() -> None:
    """4,000 agents whose simple colouring does not do: with a queue, not a search for each."""
    agents = 4001  # odd, so that taking classes in turn meets itself at the seam
    labels = np.repeat(np.arange(10), agents)
    split = partition("skew:1", labels, circulant(agents, [1, 2]), seed=0)
    assert split.note == ""
