"""Every worker sees its own part of the same edges, and both ends of a route agree."""

from itertools import chain

from hypothesis import given
from hypothesis import strategies as st

from parley.graphs import Topology, directed_ring, erdos_renyi
from parley.wire.edges import Edges, Route
from parley.wire.placement import Placement, spread

GRAPHS = st.sampled_from([erdos_renyi(7, 0.4, seed=2), directed_ring(7)])


def everyones(topology: Topology, worker_of: list[int]) -> list[Edges]:
    return [Edges(Placement(topology, tuple(worker_of), here)) for here in range(3)]


@given(GRAPHS, st.permutations([0, 0, 0, 1, 1, 2, 2]))
def test_every_edge_is_at_one_worker_at_each_end(topology: Topology, worker_of: list[int]) -> None:
    workers = everyones(topology, worker_of)
    for number, round_ in enumerate(topology.rounds):
        assert sorted(chain(*(w.incoming_of[number] for w in workers))) == sorted(round_)
        assert sorted(chain(*(w.outgoing_of[number] for w in workers))) == sorted(round_)
        across = [e for e in round_ if len({worker_of[a] for a in topology.edges[e]}) == 2]
        assert sorted(chain(*(w.from_others[number] for w in workers))) == across
        assert sorted(chain(*(w.to_others[number] for w in workers))) == across
        for worker in workers:
            inside, others = worker.inside[number], worker.from_others[number]
            assert sorted((*inside, *others)) == sorted(worker.incoming_of[number])
    for worker in workers:
        agents, ends = worker.placement.agents, topology.edges
        assert [agents[row] for row in worker.receivers] == [ends[e][1] for e in worker.incoming]
        assert [agents[row] for row in worker.senders] == [ends[e][0] for e in worker.outgoing]
        assert worker.alone == (not any(worker.from_others) and not any(worker.to_others))


@given(GRAPHS, st.permutations([0, 0, 0, 1, 1, 2, 2]))
def test_what_one_worker_sends_the_other_expects(topology: Topology, worker_of: list[int]) -> None:
    workers = everyones(topology, worker_of)
    some = list(range(0, len(topology.edges), 3))
    for routes in (
        [w.out for w in workers],
        [w.along(some) for w in workers],
        *zip(*(w.back_of for w in workers), strict=True),
        *zip(*(w.back_to_others_of for w in workers), strict=True),
    ):
        for here, route in enumerate(routes):
            for there, part in route.to:
                [back] = [rows for worker, rows in routes[there].of if worker == here]
                assert route.leaving[part] == routes[there].arriving[back]


def carried(routes: list[Route], held: list[list[object]], here: int) -> list[object]:
    """What lies at a worker once everyone has sent: its own messages, then those of others."""
    came: list[object] = []
    for worker, _ in routes[here].of:
        [rows] = [rows for there, rows in routes[worker].to if there == here]
        came += [held[worker][row] for row in routes[worker].rows[rows]]
    return held[here] + came


@given(GRAPHS, st.permutations([0, 0, 0, 1, 1, 2, 2]))
def test_messages_lie_where_the_lists_say(topology: Topology, worker_of: list[int]) -> None:
    workers, ends = everyones(topology, worker_of), topology.edges
    models: list[list[object]] = [list(w.placement.agents) for w in workers]
    for here, worker in enumerate(workers):
        lies = carried([w.out for w in workers], models, here)
        for edges, rows in worker.arrived.items():
            assert [lies[row] for row in rows] == [ends[e][0] for e in edges]
        for number in range(len(topology.rounds)):
            replies: list[list[object]] = [list(w.incoming_of[number]) for w in workers]
            routes = [w.back_of[number] for w in workers]
            lies = carried(routes, replies, here)
            assert [lies[row] for row in routes[here].order] == list(worker.outgoing_of[number])


def test_one_worker_is_alone_and_its_messages_are_rows_of_agents() -> None:
    topology = erdos_renyi(7, 0.4, seed=2)
    edges = Edges(spread(topology, 1))
    assert edges.alone and not edges.out.to and not edges.out.of
    assert edges.row_of == {e: source for e, (source, _) in enumerate(topology.edges)}
