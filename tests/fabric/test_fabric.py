"""Any fabric carries what algorithms send: here one of threads, whose only method is `exchange`."""

from typing import Any

import pytest
import torch

from parley.errors import ParleyError
from parley.fabric.base import WorkerLost
from parley.graphs import ring
from parley.wire.codec import Dense
from parley.wire.local import Local
from parley.wire.placement import Placement
from parley.wire.spread import Spread, over
from parley.wire.transport import Transport
from tests.memory import Hub, InMemory, together

WORKER_OF = (0, 2, 1, 1, 2)
X_ND = torch.randn(5, 7, generator=torch.Generator().manual_seed(1))
CODEC = Dense(7)


def everything(transport: Transport) -> dict[str, Any]:
    """What arrives here, under the names of edges and agents."""
    agents, ends = list(transport.placement.agents), transport.topology.edges
    x_AD = X_ND[agents]
    arrivals = transport.forward(CODEC.encode(x_AD), "models", CODEC, 3)
    found: dict[str, Any] = {"sum": transport.total(x_AD, "models", 3)}
    for round_, edges in enumerate(transport.edges.incoming_of):
        wire_EB = arrivals.of(edges)
        found |= {f"{ends[e]}": row for e, row in zip(edges, wire_EB, strict=True)}
        back_EB = transport.backward(wire_EB, round_, "cross_gradients", CODEC, 3)()
        outgoing = transport.edges.outgoing_of[round_]
        found |= {f"back {ends[e]}": row for e, row in zip(outgoing, back_EB, strict=True)}
    found["all"] = transport.gather(x_AD)
    found["of 4"] = transport.broadcast(x_AD[agents.index(4) if 4 in agents else 0], 4)
    return found


def test_the_same_bytes_arrive_as_in_one_process() -> None:
    expected = everything(Local(Placement(ring(5), (0,) * 5)))

    def work(fabric: InMemory) -> dict[str, Any]:
        transport = over(fabric, Placement(ring(5), WORKER_OF, fabric.me))
        return everything(transport)

    each = together(3, work)
    assert set().union(*each) == set(expected)
    for found in each:
        assert all(torch.equal(value, expected[name]) for name, value in found.items())


def test_alone_nothing_is_sent() -> None:
    alone = InMemory(Hub(), 0, 1)
    assert isinstance(over(alone, Placement(ring(5), (0,) * 5)), Local)
    assert bytes(alone.broadcast(b"abc", 0, 3)) == b"abc"
    assert [bytes(said) for said in alone.gather(b"abc")] == [b"abc"]


def test_a_member_that_is_lost_is_named() -> None:
    transport = Spread(Placement(ring(5), WORKER_OF, 1), InMemory(Hub(), 1, 3, 0.2))
    with pytest.raises(WorkerLost, match="worker 0") as lost:
        transport.gather(X_ND[[2, 3]])
    assert lost.value.workers == (0,)


def test_a_placement_for_others_is_refused() -> None:
    with pytest.raises(ParleyError, match="workers: 3 are needed, 2 were started"):
        Spread(Placement(ring(5), WORKER_OF, 1), InMemory(Hub(), 1, 2))
