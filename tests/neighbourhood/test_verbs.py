"""Each verb, on small graphs, against the plainest way to say the same."""

from collections.abc import Sequence

import networkx as nx
import pytest
import torch
from torch import Tensor

from parley import graphs
from parley.compute.engine import LoopEngine
from parley.compute.task import Task
from parley.graphs import Topology
from parley.neighbourhood import Mail, Meter, Neighbourhood
from parley.wire.codec import ScaledSign, build
from parley.wire.local import Local
from parley.wire.placement import Placement
from tests import small

DIGRAPH = nx.DiGraph([(0, 1), (1, 2), (2, 3), (3, 0), (0, 2), (2, 0)])


def directed() -> Topology:
    return graphs.from_graph(DIGRAPH, name="directed")


def values(hood: Neighbourhood, rows: int | None = None) -> Tensor:
    generator = torch.Generator().manual_seed(7)
    count = len(hood.agents) if rows is None else rows
    return torch.randn(count, hood.task.size, dtype=torch.float64, generator=generator)


def close(got: Tensor, wanted: Tensor) -> None:
    torch.testing.assert_close(got, wanted, rtol=0, atol=1e-13)


def own_gradient(
    hood: Neighbourhood, x_D: Tensor, agent: int, step: int = 0
) -> tuple[Tensor, float]:
    batch = small.batches(hood.placement).at(step)
    n = batch.sizes[agent]
    x_D = x_D.detach().requires_grad_()
    loss = hood.task.losses(x_D, batch.inputs[agent, :n], batch.targets[agent, :n]).mean()
    return torch.autograd.grad(loss, x_D)[0], loss.item()


class TestWho:
    def test_agents_neighbours_and_edges(self) -> None:
        hood = small.hood(directed())
        assert hood.agents == hood.everyone == (0, 1, 2, 3)
        assert hood.neighbours == [(2, 3), (0,), (0, 1), (2,)]
        assert sorted(hood.edges) == sorted(DIGRAPH.edges)
        assert sorted(hood.edges_I) == sorted(hood.edges_O) == sorted(hood.edges)
        assert hood.receiver_I.tolist() == [i for _, i in hood.edges_I]
        assert hood.sender_O.tolist() == [j for j, _ in hood.edges_O]

    def test_numbers_stay_when_others_are_absent(self) -> None:
        """Of five agents 1 and 3 are absent, and this worker hosts the last two present."""
        placement = Placement(graphs.ring(3), (1, 0, 0), 0, (0, 2, 4))
        hood = small.hood(graphs.ring(3), transport=Local(placement))
        assert hood.agents == (2, 4) and hood.everyone == (0, 2, 4)
        assert hood.neighbours == [(0, 4), (0, 2)]
        assert {i for _, i in hood.edges_I} == {2, 4}
        assert hood.receiver_I.tolist() == [hood.agents.index(i) for _, i in hood.edges_I]

    def test_the_opposite_edge(self) -> None:
        hood = small.hood(graphs.star(5))
        for (j, i), place in zip(hood.edges_I, hood.opposite_I().tolist(), strict=True):
            assert hood.edges_O[place] == (i, j)


class TestGradients:
    def test_of_the_agents_own_data(self) -> None:
        hood = small.hood(graphs.ring(4))
        x_AD = values(hood)
        g_AD, loss_A = hood.gradient(x_AD, small.batches(hood.placement).at(0))
        for agent in range(4):
            g_D, loss = own_gradient(hood, x_AD[agent], agent)
            close(g_AD[agent], g_D)
            assert float(loss_A[agent]) == pytest.approx(loss)

    def test_of_those_who_are_active(self) -> None:
        hood = small.hood(graphs.ring(4))
        x_AD, batch = values(hood), small.batches(hood.placement).at(0)
        active_A = torch.tensor([True, False, True, False])
        g_AD, loss_A = hood.gradient(x_AD, batch, active_A)
        all_AD, all_A = hood.gradient(x_AD, batch)
        close(g_AD, all_AD * active_A[:, None])
        close(loss_A, all_A * active_A)

    def test_of_the_neighbours_models(self) -> None:
        hood = small.hood(directed())
        x_AD, batch = values(hood), small.batches(hood.placement).at(0)
        g_ID = hood.collect(hood.cross_gradient(hood.exchange(x_AD), batch))
        for (j, i), g_D in zip(hood.edges_I, g_ID, strict=True):
            close(g_D, own_gradient(hood, x_AD[j], i)[0])

    def test_they_are_metered(self) -> None:
        topology = graphs.ring(4)
        transport, meter = Local(Placement(topology, (0,) * 4)), Meter()
        engine = LoopEngine(Task(small.net(), dtype=torch.float64))
        hood = Neighbourhood(transport, engine, meter=meter)
        x_AD, batch = values(hood), small.batches(hood.placement).at(0)
        hood.gradient(x_AD, batch)
        each = sum(batch.sizes)
        assert meter.samples == each
        g_I = hood.at(3).cross_gradient(hood.exchange(x_AD), batch)
        assert meter.samples == each  # a flow computes when it is read
        hood.collect(g_I)
        assert meter.samples == 3 * each  # with two neighbours everyone's batch is used twice
        hood.cluster(x_AD, hood.cross_gradient(hood.exchange(x_AD), batch), alpha=0.5)
        assert meter.samples == 5 * each
        hood.aside().gradient(x_AD, batch)
        assert meter.samples == 5 * each  # measuring is not training

    def test_another_batch_is_independent(self) -> None:
        topology = graphs.ring(3)
        batches = small.batches(Placement(topology, (0,) * 3))
        engine = LoopEngine(Task(small.net(), dtype=torch.float64))
        hood = Neighbourhood(Local(Placement(topology, (0,) * 3)), engine, batches)
        seen = [hood.at(step).another_batch() for step in range(4)]
        own = [batches.at(step) for step in range(4)]
        assert [b.step for b in seen] == [0, 1, 2, 3]
        assert [b.sizes for b in seen] == [b.sizes for b in own]
        assert any(not torch.equal(a.inputs, b.inputs) for a, b in zip(seen, own, strict=True))
        assert torch.equal(hood.at(2).another_batch().inputs, seen[2].inputs)
        other = [hood.at(step).another_batch(draw=2) for step in range(4)]
        assert any(not torch.equal(a.inputs, b.inputs) for a, b in zip(seen, other, strict=True))
        with pytest.raises(RuntimeError, match="has no batches"):
            small.hood(topology).another_batch()


class TestAveraging:
    @pytest.mark.parametrize("gamma", [1.0, 0.3])
    @pytest.mark.parametrize("make", [directed, lambda: graphs.star(5)])
    def test_it_is_a_product_with_w(self, make, gamma: float) -> None:
        topology = make()
        hood = small.hood(topology)
        x_AD = values(hood)
        wanted_AD = x_AD + gamma * (torch.from_numpy(topology.weights.copy()) @ x_AD - x_AD)
        x_I = hood.exchange(x_AD)
        close(hood.average(x_AD, x_I, gamma), wanted_AD)
        close(hood.gossip(x_AD, x_I, gamma), wanted_AD)
        close(hood.mix(x_AD, gamma), wanted_AD)
        close(hood.average(x_AD, hood.stored(hood.collect(x_I)), gamma), wanted_AD)

    def test_what_receivers_make_of_a_message(self) -> None:
        hood = small.hood(graphs.ring(4))
        x_AD, codec = values(hood), ScaledSign(hood.sizes)
        seen_AD, seen_I = hood.publish(x_AD, codec)
        close(seen_AD, codec.round_trip(x_AD))
        close(hood.collect(seen_I), seen_AD[[j for j, _ in hood.edges_I]])

    def test_each_edge_has_its_divisor(self) -> None:
        hood = small.hood(directed())
        n_I = hood.exchange(values(hood))
        by_I1 = 1.0 + torch.arange(hood.incoming, dtype=torch.float64)[:, None]
        close(hood.collect(hood.divided(n_I, by_I1)), hood.collect(n_I) / by_I1)

    def test_the_mean_over_all(self) -> None:
        hood = small.hood(graphs.star(5))
        x_AD = values(hood)
        close(hood.mean(x_AD), x_AD.mean(0).expand_as(x_AD))
        assert hood.transport.sent["models"].tolist() == [
            4 * (32 + 8 * hood.task.size), *[32 + 8 * hood.task.size] * 4
        ]  # fmt: skip

    @pytest.mark.parametrize("alpha", [0.0, 0.3, 1.0])
    def test_clusters(self, alpha: float) -> None:
        """Whether cross-gradients are added as they are computed or come as messages."""
        topology = directed()
        hood = small.hood(topology)
        x_AD, batch = values(hood), small.batches(hood.placement).at(0)
        g_AD, _ = hood.gradient(x_AD, batch)
        g_ID = hood.collect(hood.cross_gradient(hood.exchange(x_AD), batch))
        W = topology.weights
        wanted_AD = torch.stack([W[i, i] * g_AD[i] for i in range(4)])
        for (j, i), g_D in zip(hood.edges_I, g_ID, strict=True):
            wanted_AD[i] += (1 - alpha) * W[i, j] * g_D
            wanted_AD[j] += alpha * W[i, j] * g_D
        close(hood.cluster(g_AD, hood.stored(g_ID), alpha), wanted_AD)
        g_I = hood.cross_gradient(hood.exchange(x_AD), batch)
        close(hood.cluster(g_AD, g_I, alpha), wanted_AD)


class TestReplies:
    def test_they_come_back_on_the_edge_that_was_used(self) -> None:
        hood = small.hood(directed())
        g_ID = values(hood, hood.incoming)
        r_OD = hood.send_back(hood.stored(g_ID))
        for edge, r_D in zip(hood.edges_O, r_OD, strict=True):
            close(r_D, g_ID[hood.edges_I.index(edge)])

    def test_compression_gives_new_errors_and_leaves_the_old(self) -> None:
        hood = small.hood(graphs.ring(4))
        g_ID, e_ID = values(hood, 8), hood.zeros_I() + 0.25
        δ_I = hood.compress(hood.stored(g_ID), e_ID, ScaledSign(hood.sizes))
        with pytest.raises(RuntimeError, match="after the flow has been read"):
            _ = δ_I.errors
        δ_ID = hood.collect(δ_I)
        close(δ_ID + δ_I.errors, g_ID + e_ID)
        assert (e_ID == 0.25).all()


class TestReading:
    def test_mail_can_be_read_again(self) -> None:
        hood = small.hood(graphs.ring(4))
        x_I = hood.exchange(values(hood))
        assert isinstance(x_I, Mail)
        assert torch.equal(hood.collect(x_I), hood.collect(x_I))

    def test_a_flow_cannot(self) -> None:
        hood = small.hood(graphs.ring(4))
        x_AD, batch = values(hood), small.batches(hood.placement).at(0)

        def flows() -> Sequence:
            x_I = hood.exchange(x_AD)
            g_I = hood.cross_gradient(x_I, batch)
            return [g_I, hood.compress(x_I, hood.zeros_I(), ScaledSign(hood.sizes)),
                    hood.divided(x_I, torch.ones(8, 1, dtype=torch.float64))]  # fmt: skip

        for flow in flows():
            hood.collect(flow)
            with pytest.raises(RuntimeError, match="this flow has been read"):
                hood.collect(flow)
        for flow in flows():
            hood.cluster(x_AD, flow, alpha=0.5)
            with pytest.raises(RuntimeError, match="this flow has been read"):
                hood.send_back(flow)

    def test_a_round_at_a_time(self) -> None:
        hood = small.hood(graphs.full(5))
        sizes = [len(x_ED) for x_ED in hood.exchange(values(hood))]
        assert sum(sizes) == 20 and max(sizes) <= 5


class TestPairs:
    def test_one_way_messages(self) -> None:
        hood = small.hood(graphs.ring(4))
        x_AD = values(hood)
        told = hood.tell(x_AD, [(1, 2), (0, 3)])
        assert sorted(told.edges) == [(0, 3), (1, 2)]
        assert told.receiver_E.tolist() == [i for _, i in told.edges]
        close(told.x_ED, x_AD[[j for j, _ in told.edges]])
        size = 32 + 8 * hood.task.size
        assert hood.transport.sent["models"].tolist() == [size, size, 0, 0]

    def test_compressed_messages(self) -> None:
        hood = small.hood(graphs.ring(4))
        x_AD, codec = values(hood), ScaledSign(hood.sizes)
        told = hood.tell(x_AD, [(1, 2)], codec, kind="cross_gradients")
        close(told.seen_AD, codec.round_trip(x_AD))
        close(told.x_ED, told.seen_AD[[1]])
        sent = hood.transport.sent["cross_gradients"].tolist()
        assert sent == [0, 32 + codec.message_bytes(x_AD.dtype), 0, 0]

    def test_random_pairs_are_neighbours_by_their_numbers(self) -> None:
        placement = Placement(graphs.ring(5), (0,) * 5, 0, (1, 2, 4, 5, 6))
        hood = small.hood(graphs.ring(5), transport=Local(placement))
        found = [hood.random_pairs(number) for number in range(9)]
        assert len({*map(tuple, found)}) > 1
        for number, pairs in enumerate(found):
            assert {*pairs} <= {*hood.edges} and len({a for pair in pairs for a in pair}) == 4
            assert len(hood.random_pairs(number, most=1)) == 1

    def test_no_edge(self) -> None:
        hood = small.hood(graphs.ring(4))
        with pytest.raises(ValueError, match=r"\(0, 2\) is not an edge"):
            hood.tell(values(hood), [(0, 2)])

    @pytest.mark.parametrize("codec", ["", "sign", "topk:0.1"])
    @pytest.mark.parametrize("weight", [0.5, 0.2])
    def test_meetings_keep_the_mean(self, weight: float, codec: str) -> None:
        hood = small.hood(graphs.ring(5))
        x_AD = values(hood)
        chosen = build(codec, hood.sizes) if codec else None
        met_AD = hood.meet(x_AD, [(0, 1), (3, 2)], weight, chosen)
        close(met_AD.mean(0), x_AD.mean(0))
        assert torch.equal(met_AD[4], x_AD[4])
        if not codec:
            close(met_AD[0], x_AD[0] + weight * (x_AD[1] - x_AD[0]))
        if not codec and weight == 0.5:
            assert torch.equal(met_AD[0], met_AD[1]) and torch.equal(met_AD[2], met_AD[3])

    def test_absent_agents_keep_their_numbers(self) -> None:
        placement = Placement(graphs.ring(3), (0, 0, 0), 0, (0, 2, 4))
        hood = small.hood(graphs.ring(3), transport=Local(placement))
        x_AD = values(hood)
        met_AD = hood.meet(x_AD, [(2, 4)])
        close(met_AD, torch.stack([x_AD[0], *[(x_AD[1] + x_AD[2]) / 2] * 2]))


class TestSteps:
    def test_a_view_has_its_step_and_the_others_keep_theirs(self) -> None:
        hood = small.hood(graphs.ring(4))
        codec, ones_AD = build("randomk:0.2", hood.sizes), torch.ones(4, hood.task.size).double()
        third, fourth = hood.at(3), hood.at(4)
        early = third.keyed(codec).round_trip(ones_AD)
        late = fourth.keyed(codec).round_trip(ones_AD)
        assert not torch.equal(early, late)
        assert torch.equal(third.keyed(codec).round_trip(ones_AD), early)
        assert (hood.step, third.step, fourth.step) == (0, 3, 4)

    def test_graphs_take_turns(self) -> None:
        """By steps, or as is asked; from a view of one of them as from the whole."""
        topology = graphs.one_peer_exponential(5)
        hood, meter = small.hood(topology), Meter()
        edges = [list(topology.at(turn).edges) for turn in range(5)]
        assert [hood.at(step).edges for step in range(5)] == edges
        late = hood.at(7, 2)
        late.meter = meter
        assert (late.step, late.edges) == (7, edges[2])
        other = late.on_graph(4)
        assert (other.step, other.edges, other.meter) == (7, edges[4], meter)
        assert other.edges != late.edges
        fixed = small.hood(graphs.ring(4)).at(3)
        assert (fixed.on_graph(5).step, fixed.on_graph(5).edges) == (3, fixed.edges)

    def test_accuracy_here_and_there(self) -> None:
        hood = small.hood(graphs.ring(4))
        x_AD, batch = values(hood), small.batches(hood.placement).at(0)

        def right(x_D: Tensor, agent: int) -> float:
            n = batch.sizes[agent]
            answers = hood.task.predict(x_D, batch.inputs[agent, :n]).argmax(1)
            return float((answers == batch.targets[agent, :n]).double().mean())

        assert hood.accuracy(x_AD, batch)[:, 0].tolist() == [right(x_AD[a], a) for a in range(4)]
        away_I1 = hood.collect(hood.cross_accuracy(hood.exchange(x_AD), batch))
        assert away_I1[:, 0].tolist() == [right(x_AD[j], i) for j, i in hood.edges_I]
