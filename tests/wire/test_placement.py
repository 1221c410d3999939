"""Every agent has one seat, whichever worker looks."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parley.errors import BadValue
from parley.graphs import erdos_renyi, ring
from parley.wire.placement import Placement, spread


@given(st.integers(3, 20), st.data())
def test_blocks_are_consecutive_and_even(agents: int, data: st.DataObject) -> None:
    workers = data.draw(st.integers(1, agents))
    worker_of = spread(ring(agents), workers).worker_of
    assert list(worker_of) == sorted(worker_of)
    sizes = [worker_of.count(w) for w in range(workers)]
    assert sum(sizes) == agents
    assert max(sizes) - min(sizes) <= 1
    assert min(sizes) >= 1


@given(st.permutations([0, 0, 0, 1, 1, 2, 2]))
def test_workers_share_out_agents_and_edges(worker_of: list[int]) -> None:
    topology = erdos_renyi(7, 0.4, seed=2)
    seats = [Placement(topology, tuple(worker_of), here) for here in range(3)]
    everything = range(len(topology.edges))
    assert sorted(a for seat in seats for a in seat.agents) == list(range(7))
    assert sorted(e for seat in seats for e in seat.incoming) == list(everything)
    assert sorted(e for seat in seats for e in seat.outgoing) == list(everything)
    for seat in seats:
        assert [seat.row[a] for a in seat.agents] == list(range(len(seat.agents)))
        assert all(topology.edges[e][1] in seat.agents for e in seat.incoming)
        assert all(topology.edges[e][0] in seat.agents for e in seat.outgoing)


@pytest.mark.parametrize("workers", [0, 6, -1])
def test_more_workers_than_agents(workers: int) -> None:
    with pytest.raises(BadValue, match=rf"workers: {workers} is not valid .* valid: 1 to 5"):
        spread(ring(5), workers)


@pytest.mark.parametrize(
    "worker_of, here, words",
    [
        ((0, 0), 0, "a worker for each of the 3 agents"),
        ((0, 0, 2), 0, "an agent for worker 1 too"),
        ((0, -1, 1), 0, "workers numbered from 0"),
        ((0, 1, 1), 2, "here: 2 is not valid; valid: 0 to 1"),
    ],
)
def test_seats_that_make_no_sense(worker_of: tuple[int, ...], here: int, words: str) -> None:
    with pytest.raises(BadValue, match=words):
        Placement(ring(3), worker_of, here)
