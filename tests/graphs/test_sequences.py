"""Graphs that change: what each round and each period does, and that placement does not matter."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from torch import Tensor

import parley
from parley import graphs as tp
from parley.algorithms import CGA, DPSGD, NGC, Algorithm, CompNGC, build
from parley.errors import BadValue
from parley.fabric.gloo import Gloo
from parley.graphs import Topology, parse, sequences
from parley.wire.placement import Placement
from parley.wire.spread import Spread
from parley.wire.transport import KINDS
from tests import reference, small
from tests.processes import PATIENCE, process
from tests.wire.test_transport import joined


def product(topology: Topology) -> np.ndarray:
    """A period, multiplied out by hand."""
    whole = np.eye(topology.agents)
    for phase in topology.phases or (topology,):
        whole = phase.weights @ whole
    return whole


class TestBase:
    @pytest.mark.parametrize("degree", [1, 2, 3])
    def test_averages_exactly_in_finite_time(self, degree: int) -> None:
        """For every number of agents, with no more neighbours than allowed, within 2 log + 2."""
        for agents in range(2, 41):
            rounds = sequences.base(agents, degree)
            assert len(rounds) <= 2 * math.log(agents, degree + 1) + 2 + 1e-9
            whole = np.eye(agents)
            for edges in rounds:
                weights = np.zeros((agents, agents))
                for (j, i), weight in edges.items():
                    weights[i, j] = weight
                assert np.count_nonzero(weights, axis=1).max() <= degree
                weights += np.diag(1 - weights.sum(1))
                assert weights.min() >= -1e-15
                assert np.abs(weights - weights.T).max() == 0
                whole = weights @ whole
            assert np.abs(whole - 1 / agents).max() < 1e-14

    @pytest.mark.parametrize(
        "agents, degree, rounds", [(5, 1, 5), (6, 1, 4), (8, 1, 3), (12, 2, 3)]
    )
    def test_lengths_of_the_paper(self, agents: int, degree: int, rounds: int) -> None:
        """Five rounds for the Simple Base-2 graph of 5; Base-2 of 6 has 4; hypercubes their own."""
        topology = tp.base(agents, degree)
        assert topology.period == topology.exact_after == rounds
        assert topology.spectral_gap == 1
        assert topology.symmetric and topology.doubly_stochastic
        assert max(max(phase.degrees) for phase in topology.phases) == degree

    def test_one_round_too_few_is_not_exact(self) -> None:
        topology = tp.base(7, 1)
        shorter = tp.sequence(topology.phases[:-1])
        assert shorter.exact_after is None
        assert shorter.spectral_gap < 1


class TestOnePeerExponential:
    @pytest.mark.parametrize("agents", [1, 2, 4, 8, 16, 64])
    def test_powers_of_two_are_exact(self, agents: int) -> None:
        topology = tp.one_peer_exponential(agents)
        assert np.allclose(product(topology), 1 / agents, atol=1e-15)
        assert topology.exact_after == max(1, agents.bit_length() - 1)

    @pytest.mark.parametrize("agents", [3, 5, 6, 10, 12])
    def test_others_are_not(self, agents: int) -> None:
        topology = tp.one_peer_exponential(agents)
        assert topology.exact_after is None
        assert topology.doubly_stochastic and not topology.symmetric
        second = sorted(np.abs(np.linalg.eigvals(product(topology))))[-2]
        assert topology.spectral_gap == pytest.approx(1 - second, abs=1e-9)
        assert 0 < topology.spectral_gap < 1

    def test_everyone_sends_and_hears_one_message_a_step(self) -> None:
        topology = tp.one_peer_exponential(10)
        assert topology.period == 4
        for phase, shift in zip(topology.phases, [1, 2, 4, 8], strict=True):
            assert phase.degrees == phase.out_degrees == (1,) * 10
            assert phase.neighbours(0) == ((-shift) % 10,)


class TestMatchings:
    @given(st.integers(2, 25), st.integers(0, 1000))
    @settings(max_examples=30)
    def test_pairs(self, agents: int, seed: int) -> None:
        for pairs in sequences.matchings(agents, 4, seed):
            met = [i for i, _ in pairs]
            assert len(met) == len(set(met)) == agents - agents % 2
            assert all(pairs[j, i] == w == 0.5 for (i, j), w in pairs.items())

    def test_follow_the_seed(self) -> None:
        edges = [[p.edges for p in parse("matchings:6", 8, seed=s).phases] for s in (0, 0, 1)]
        assert edges[0] == edges[1] != edges[2]
        assert parse("matchings", 8).period == tp.MATCHINGS

    def test_too_few_to_connect_everyone(self) -> None:
        with pytest.raises(BadValue, match="none of 100 draws for 8 agents was connected"):
            tp.matchings(8, 1)


class TestTrees:
    def test_children(self) -> None:
        topology = tp.tree(10, 3)
        assert topology.neighbours(0) == (1, 2, 3)
        assert topology.neighbours(2) == (0, 7, 8, 9)
        assert nx.is_tree(topology.graph.to_undirected())
        assert tp.tree(4, 1).edges == tp.chain(4).edges

    @pytest.mark.parametrize("spec", ["torus", "erdos-renyi:0.4", "full", "exponential"])
    def test_spanning_trees(self, spec: str) -> None:
        whole = parse(spec, 12, seed=3)
        topology = parse(f"spanning-tree:{spec}", 12, seed=3)
        assert nx.is_tree(topology.graph.to_undirected())
        assert set(topology.edges) <= set(whole.edges)
        far = nx.single_source_shortest_path_length
        assert far(topology.graph, 0) == far(whole.graph, 0)

    def test_of_a_directed_graph(self) -> None:
        with pytest.raises(BadValue, match="two-way edges do not reach every agent"):
            parse("spanning-tree:directed-ring", 5)


def test_directed_exponential() -> None:
    topology = parse("directed-exponential", 10)
    assert topology.directed and topology.doubly_stochastic
    assert topology.out_degrees == (4,) * 10
    assert [i for i in range(10) if 0 in topology.neighbours(i)] == [1, 2, 4, 8]


class TestYourOwn:
    def test_all_edges_together_and_the_mean_of_the_weights(self) -> None:
        topology = tp.sequence([nx.Graph([(0, 1)]), nx.Graph([(1, 2), (2, 3)]), nx.Graph([(3, 0)])])
        assert topology.agents == 4 and topology.period == 3
        assert {frozenset(e) for e in topology.edges} == {
            frozenset(e) for e in [(0, 1), (1, 2), (2, 3), (3, 0)]
        }
        mean = np.mean([phase.weights for phase in topology.phases], axis=0)
        assert np.allclose(topology.weights, mean, atol=1e-15)
        assert np.allclose(topology.product, product(topology), atol=1e-15)

    def test_from_a_file(self, tmp_path: Path) -> None:
        path = tmp_path / "rounds.txt"
        path.write_text(
            "# pairs\nround\n0 1\n2 3\nround 2:\n1 2\nround\n0 -> 3 0.25\n3 -> 0 0.25\n"
        )
        topology = parse(f"schedule:{path}", 4)
        assert topology.period == 3
        assert topology.at(0).edges == topology.at(3).edges == ((1, 0), (0, 1), (3, 2), (2, 3))
        assert topology.at(1).neighbours(3) == ()
        assert topology.at(1).weights[3, 3] == 1
        assert topology.at(2).weights[3].tolist() == [0.25, 0, 0, 0.75]

    def test_parts_that_never_meet(self) -> None:
        with pytest.raises(BadValue, match="agent 0 is cut off from agent 2"):
            tp.sequence([nx.Graph([(0, 1)]), nx.Graph([(2, 3)])])

    def test_one_round_is_a_graph_that_does_not_change(self) -> None:
        topology = parse([nx.path_graph(3)])
        assert (topology.phases, topology.part, topology.edges) == ((), False, tp.chain(3).edges)

    @pytest.mark.parametrize(
        "spec, words",
        [
            ("base:0", "base:k"),
            ("base", "base:1"),
            ("tree:two", "tree:2"),
            ("matchings:0", "matchings:n"),
            ("one-peer-exponential:3", "valid: one-peer-exponential"),
            ("spanning-tree", "spanning-tree:torus"),
            ("schedule:none.txt", "a readable text file of edges"),
        ],
    )
    def test_mistakes(self, spec: str, words: str) -> None:
        with pytest.raises(BadValue, match=words):
            parse(spec, 8)


class TestStochasticity:
    """Checked in every round: a mean that is right on average is not right in each step."""

    def test_of_each_round(self) -> None:
        good, bad = nx.Graph([(0, 1), (1, 2)]), nx.DiGraph([(0, 1), (1, 2), (2, 0), (0, 2)])
        topology = tp.sequence([good, bad], weights="uniform")
        assert topology.row_stochastic and not topology.doubly_stochastic
        with pytest.raises(BadValue, match=r"dpsgd needs doubly-stochastic .* in round 0 column"):
            DPSGD().check(topology)
        balanced = tp.sequence([good, bad])  # metropolis, sinkhorn
        DPSGD().check(balanced)
        with pytest.raises(BadValue, match=r"cga needs symmetric weights; in round 1 agent"):
            CGA().check(balanced)

    def test_rounds_that_cannot_be_doubly_stochastic(self) -> None:
        """An edge that is not on any cycle in its round: shares for push-sum, and no mean."""
        graphs = [nx.DiGraph([(0, 1)]), nx.DiGraph([(1, 2)]), nx.DiGraph([(2, 0)])]
        topology = tp.sequence(graphs)
        assert topology.scheme == "push"
        assert topology.column_stochastic and not topology.row_stochastic
        topology.require("column-stochastic", "sgp")
        with pytest.raises(BadValue, match="rounds in which every edge lies on a cycle"):
            DPSGD().check(topology)
        with pytest.raises(BadValue, match=r"weights: 'sinkhorn' .*edge that is not on any cycle"):
            tp.sequence(graphs, weights="sinkhorn")
        # Push-sum: both sums are shared out alike, and their ratio becomes the mean.
        values, mass = np.array([3.0, -1.0, 7.0]), np.ones(3)
        for step in range(120):
            values, mass = (topology.at(step).weights @ v for v in (values, mass))
        assert np.abs(values / mass - 3).max() < 1e-9

    def test_other_weights_for_the_same_rounds(self) -> None:
        topology = parse(tp.one_peer_exponential(6), weights="push")
        assert topology.scheme == "push" and topology.column_stochastic
        assert topology.period == 3


def test_many_agents() -> None:
    """Beyond the size at which eigenvalues are those of a dense matrix."""
    agents = tp.DENSE + 48
    assert tp.one_peer_exponential(2 * 1024).spectral_gap == 1
    ring = tp.ring(agents)
    doubled = tp.sequence([tp.exponential(agents), ring])
    assert 0 < doubled.spectral_gap < 1
    small_one = tp.sequence([tp.exponential(64), tp.ring(64)])
    second = sorted(np.abs(np.linalg.eigvals(product(small_one))))[-2]
    assert small_one.spectral_gap == pytest.approx(1 - second, abs=1e-9)


# Training

STEPS = 12
GRAPHS: dict[str, Callable[[], Topology]] = {
    "one-peer": lambda: tp.one_peer_exponential(5),
    "base": lambda: tp.base(5, 1),
    "matchings": lambda: tp.matchings(5, 7, seed=2),
    "directed": lambda: tp.sequence(
        [tp.directed_ring(5), nx.DiGraph([(0, 1), (1, 0), (2, 4), (4, 2)]), nx.DiGraph()]
    ),
}
RULES: list[Algorithm] = [
    DPSGD(),
    DPSGD.as_run(momentum=0.9),
    NGC(),
    NGC.as_run(alpha=0.3, momentum=0.9, gamma=0.5),
    CompNGC(alpha=0.7, momentum=0.9),
]


@pytest.mark.parametrize("graph", GRAPHS)
@pytest.mark.parametrize("algorithm", [DPSGD(), NGC(alpha=0.4)], ids=lambda a: a.name)
def test_step_k_uses_the_graph_of_round_k(algorithm: Algorithm, graph: str) -> None:
    """Against the loop-written reference, which makes one step with the weights of that round."""
    topology = GRAPHS[graph]()
    hood = small.hood(topology)
    got, _ = small.trajectory(algorithm, hood, STEPS)
    task, source = hood.task, small.batches(hood.placement)
    x = torch.stack([task.start()] * 5)
    for step in range(STEPS):

        def grad(agent: int, x_D: Tensor, _: int, step: int = step) -> Tensor:
            batch, n = source.at(step), source.at(step).sizes[agent]
            x_D = x_D.detach().requires_grad_()
            loss = task.losses(x_D, batch.inputs[agent, :n], batch.targets[agent, :n]).mean()
            return torch.autograd.grad(loss, x_D)[0]

        W, lr, options = topology.at(step).weights, small.rate(step), algorithm.settings()
        assert (options.pop("decoupled"), options.pop("decay_on")) == (False, "all")
        assert options.pop("local_steps", 1) == 1
        made = reference.run(algorithm.name, x, W, grad, 1, lambda _, lr=lr: lr, **options)
        x = torch.stack(made[-1])
        torch.testing.assert_close(got[step + 1], x, rtol=0, atol=1e-10)


@pytest.mark.parametrize("algorithm", [*RULES, CGA(momentum=0.9)], ids=lambda a: a.name)
def test_the_same_graph_in_every_round_is_that_graph(algorithm: Algorithm) -> None:
    """Also where errors are kept on edges, and byte by byte."""
    same, once = tp.sequence([tp.ring(5)] * 3), tp.ring(5)
    hoods = small.hood(same), small.hood(once)
    got, expected = (small.trajectory(algorithm, hood, STEPS)[0] for hood in hoods)
    for mine, other in zip(got, expected, strict=True):
        assert torch.equal(mine, other)
    for kind in KINDS:
        assert torch.equal(hoods[0].transport.sent[kind], hoods[1].transport.sent[kind])


def test_with_local_steps_each_averaging_has_the_next_graph() -> None:
    """Turns by steps would leave out two of these three graphs for good."""
    topology, tau = tp.one_peer_exponential(5), 3
    assert topology.period == tau
    hood = small.hood(topology)
    got, _ = small.trajectory(DPSGD(local_steps=tau), hood, STEPS)
    source = small.batches(hood.placement)
    x_AD = torch.stack([hood.task.start()] * 5)
    for step in range(STEPS):
        x_AD = x_AD - small.rate(step) * hood.gradient(x_AD, source.at(step)).g_AD
        if step % tau == tau - 1:
            x_AD = torch.tensor(topology.at(step // tau).weights) @ x_AD
        torch.testing.assert_close(got[step + 1], x_AD, rtol=0, atol=1e-10)


def test_skewscout_uses_all_graphs_however_rarely_it_averages() -> None:
    """After the second step it averages in every third; three graphs in turn give the mean."""
    hood = small.hood(tp.one_peer_exponential(8))
    algorithm = build("skewscout", {"tolerance": 1.0, "travels": 1, "longest": 3})
    x_AD, source = torch.eye(8, hood.task.size, dtype=torch.float64), small.batches(hood.placement)
    state = algorithm.init(x_AD, hood)
    for step in range(STEPS):
        then = hood.at(step, algorithm.rounds_before(step))
        state = algorithm.step(state, then, source.at(step), 0.0).state
    torch.testing.assert_close(state.x_AD, x_AD.mean(0).expand_as(x_AD), rtol=0, atol=1e-12)


def test_a_pair_of_swarmsgd_stays_together_for_its_local_steps() -> None:
    hood = small.hood(tp.matchings(8, 7, seed=1))
    algorithm, source = build("swarmsgd", {"local_steps": 4}), small.batches(hood.placement)
    state = algorithm.init(torch.stack([hood.task.start()] * 8), hood)
    busy = []
    for step in range(STEPS):
        then = hood.at(step, algorithm.rounds_before(step))
        state, _, active_A = algorithm.step(state, then, source.at(step), 0.1)
        assert active_A is not None
        busy.append(tuple(active_A.nonzero().flatten().tolist()))
    pairs = busy[::4]
    assert busy == [pair for pair in pairs for _ in range(4)]
    assert all(len(pair) == 2 for pair in pairs) and len(set(pairs)) > 1


def test_bytes_are_those_of_each_rounds_edges() -> None:
    topology = tp.base(5, 1)
    hood = small.hood(topology, torch.float32)
    small.trajectory(DPSGD(), hood, 2 * topology.period)
    message = 32 + 4 * hood.task.size
    sent = 2 * sum(np.array(phase.out_degrees) for phase in topology.phases) * message
    assert hood.transport.sent["models"].tolist() == sent.tolist()
    assert len(set(sent)) > 1  # some agents rest in some rounds


def test_errors_stay_with_their_edges() -> None:
    """What an edge holds back waits until that edge is used again."""
    topology = tp.sequence([nx.Graph([(0, 1)]), nx.Graph([(1, 2)])])
    hood = small.hood(topology)
    e_ID = hood.zeros_I()
    edges = [topology.edges[e] for e in hood.transport.edges.incoming]
    assert len(e_ID) == len(edges) == 4
    kept = {}
    for step in range(4):
        phase = hood.at(step)
        g_ID = torch.randn(2, hood.task.size, dtype=torch.float64) + step
        before = e_ID.clone()
        flow = phase.compress(
            phase.stored(g_ID), e_ID, parley.wire.codec.ScaledSign((hood.task.size,))
        )
        sent_ID = phase.collect(flow)
        e_ID = flow.errors
        here = [phase.transport.topology.edges[e] for e in phase.transport.edges.incoming]
        for n, edge in enumerate(edges):
            if edge in here:
                row = here.index(edge)
                p_D = g_ID[row] + before[n]
                δ_D = p_D.abs().mean() * p_D.sign()
                torch.testing.assert_close(sent_ID[row], δ_D, rtol=0, atol=1e-12)
                torch.testing.assert_close(e_ID[n], p_D - δ_D, rtol=0, atol=1e-12)
                kept[edge] = e_ID[n].clone()
            elif edge in kept:
                assert torch.equal(e_ID[n], kept[edge])


PLACEMENTS = {"two workers": (1, 0, 1, 1, 0), "one agent per worker": (0, 1, 2, 3, 4)}


def observe(graph: str, algorithm: Algorithm, worker_of: tuple[int, ...], rank: int | None) -> Any:
    topology = GRAPHS[graph]()
    transport = None
    if rank is not None:
        transport = Spread(Placement(topology, worker_of, rank), Gloo())
    hood = small.hood(topology, transport=transport)
    iterates, state = small.trajectory(algorithm, hood, STEPS)
    seen = {"x_AD": state.x_AD, "half_AD": iterates[STEPS // 2]}
    seen |= {kind: hood.transport.sent[kind] for kind in KINDS}
    return {key: hood.transport.gather(value) for key, value in seen.items()}


def work(name: str, rank: int, folder: Path) -> None:
    torch.set_num_threads(1)
    worker_of = PLACEMENTS[name]
    with joined(folder / name.replace(" ", "-"), rank, max(worker_of) + 1):
        seen = {
            f"{graph}/{number}/{key}": value.contiguous()
            for graph in GRAPHS
            for number, algorithm in enumerate(RULES)
            for key, value in observe(graph, algorithm, worker_of, rank).items()
        }
    if rank == 0:
        save_file(seen, folder / f"{name}.safetensors")


@pytest.fixture(scope="module")
def spread_out(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Tensor]]:
    """What real processes see, for each placement."""
    folder = tmp_path_factory.mktemp("sequences")
    workers = [
        process(work, name, rank, folder)
        for name, worker_of in PLACEMENTS.items()
        for rank in range(max(worker_of) + 1)
    ]
    for worker in workers:
        worker.join(PATIENCE)
        assert worker.exitcode == 0
    return {name: load_file(folder / f"{name}.safetensors") for name in PLACEMENTS}


@pytest.mark.parametrize("graph", GRAPHS)
@pytest.mark.parametrize("number", range(len(RULES)), ids=lambda n: f"{RULES[n].name}{n}")
def test_placement_does_not_matter(
    spread_out: dict[str, dict[str, Tensor]], graph: str, number: int
) -> None:
    expected = observe(graph, RULES[number], (), None)
    assert expected["models"].sum() > 0
    for name, seen in spread_out.items():
        for key, value in expected.items():
            got = seen[f"{graph}/{number}/{key}"]
            if key in KINDS:
                assert torch.equal(got, value), (name, key)
            else:
                torch.testing.assert_close(got, value, rtol=0, atol=1e-10, msg=f"{name} {key}")


def test_a_run_can_be_resumed_in_the_middle_of_a_period(tmp_path: Path) -> None:
    options: dict[str, Any] = {
        "algorithm": "compngc", "topology": "base:1", "agents": 5, "fraction": 0.2, "batch": 16,
        "gossip_rounds": 3, "progress": False,
    }  # fmt: skip
    whole = parley.train(**options, epochs=3, out=tmp_path / "whole")
    assert whole.records[0]["step"] % 5 != 0
    stopped = tmp_path / "stopped"

    class Enough(Exception):
        pass

    def stop(event: object) -> None:
        if getattr(event, "epoch", 0) == 2:
            raise Enough

    with pytest.raises(Enough):
        parley.train(**options, epochs=3, out=stopped, watch=stop)
    resumed = parley.train(**options, epochs=3, out=stopped, resume=True)
    assert torch.equal(resumed.x_ND, whole.x_ND)
    assert resumed.records[-1]["bytes_models"] == whole.records[-1]["bytes_models"]


def test_after_gossip_goes_through_the_rounds() -> None:
    """One period of an exact sequence after the last step is the averaged model itself."""
    options: dict[str, Any] = {"agents": 6, "epochs": 1, "algorithm": "dpsgd", "progress": False}
    result = parley.train(**options, topology="base:1", gossip_rounds=4)
    record = result.records[-1]
    assert record["accuracy_after_gossip"] == pytest.approx(record["accuracy_mean_model"], abs=1e-9)
    assert record["consensus_distance"] > 0


@pytest.mark.parametrize("name", ["choco", "adagossip", "beer", "relaysgd"])
def test_what_is_summed_over_neighbours_needs_the_same_neighbours(name: str) -> None:
    with pytest.raises(BadValue, match=r"topology: 'base:1' is not valid"):
        build(name, {}).check(tp.base(5, 1))
