"""What is left of a graph when hosts are lost, and when others may come back to it."""

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from parley import graphs
from parley.cluster.heal import without
from parley.cluster.join import RejoinRequest, Roster
from parley.cluster.worker import Worker
from parley.training.events import EpochDone


class TestTheGraphThatIsLeft:
    def test_weights_are_metropolis_and_the_others_neighbours_stay(self) -> None:
        graph, bridges = without(graphs.full(5), [0, 2, 4])
        assert (bridges, graph.scheme, graph.doubly_stochastic) == ([], "metropolis", True)
        assert graph.weights == pytest.approx(torch.full((3, 3), 1 / 3).numpy())

    def test_a_star_without_its_centre_is_bridged(self) -> None:
        graph, bridges = without(graphs.star(5), [1, 2, 3, 4])
        assert bridges == [(1, 2), (2, 3), (3, 4)]
        assert graph.symmetric and graph.diameter == 3

    def test_a_directed_ring(self) -> None:
        """One-way edges that are left lead nowhere back: both ways between what falls apart."""
        graph, bridges = without(graphs.directed_ring(4), [0, 1, 3])
        assert bridges == [(0, 1), (1, 3)]
        assert graph.doubly_stochastic

    def test_nobody_and_everybody_but_one(self) -> None:
        whole = graphs.ring(4)
        assert without(whole, range(4)) == (whole, [])
        graph, bridges = without(whole, [2])
        assert (graph.agents, bridges, graph.weights.tolist()) == (1, [], [[1.0]])


@pytest.mark.parametrize("last", [False, True])
def test_nobody_is_let_in_once_the_run_has_ended(last: bool) -> None:
    """A callback or a condition can end it before its last epoch: it must not go on for a worker
    that waits just then."""
    seen: list[Any] = []
    worker: Any = SimpleNamespace(
        meeting=SimpleNamespace(apart=False), assignment=SimpleNamespace(watch=seen.append)
    )
    membership: Any = SimpleNamespace(waiting=lambda generation: True)
    run: Any = SimpleNamespace(transport=SimpleNamespace(each=lambda value: value[None]))
    event = EpochDone(3, None, last)
    with nullcontext() if last else pytest.raises(RejoinRequest):
        Worker._each(worker, membership, Roster(0, (0, 1)), run, 0, event)
    assert seen == [event]
