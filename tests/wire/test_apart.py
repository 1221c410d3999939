"""Agents that start from different models, as those that remain after a host is lost do.

Every algorithm of the table: with no gradients the models come together, where they should; with
gradients they come to rest where they would have from a common start.
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from parley.algorithms import ALGORITHMS, build
from parley.cluster.heal import without
from parley.data import Batch
from parley.graphs import Topology
from parley.neighbourhood import Gradient, Mail, Neighbourhood, OnEdges
from tests import small
from tests.algorithms.test_algorithms import FIELD_GRAPHS, GRAPHS
from tests.algorithms.test_methods import D, Quadratic, Quadratics, rested, step_only

GENTLE: dict[str, dict[str, Any]] = {
    "adagossip": {"gamma": 0.05, "smoothing": 0.9},
    "beer": {"gamma": 0.3},
    "choco": {"gamma": 0.3},
    "compngc+choco": {"gamma": 0.3},
    "deepsqueeze": {"codec": "topk:0.5"},
    "diloco": {"outer_lr": 1.0, "outer_momentum": 0.0, "weight_decay": 0.0, "local_steps": 2},
    "fedavg": {"local_steps": 3},
    "kgt": {"local_steps": 2},
    "led": {"local_steps": 2},
    "proxskip": {"local_steps": 2},
    "quantized": {"codec": "fp16"},
    "skewscout": {"longest": 4},
    "sparse-push": {"codec": "topk:0.5"},
    "tracking+choco": {"gamma": 0.3},
}
"""Options with which methods that cut messages short come to rest within the steps made here."""
UPDATES = ["dpsgd+adam", "dpsgd+clip", "dpsgd+sam"]
NAMES = [*ALGORITHMS, *UPDATES, "ngc+qgm", "compngc+choco", "tracking+choco", "ngc+choco+push-sum"]
COARSE = {"deepsqueeze": 0.05, "sparse-push": 0.05, "quantized": 1e-3, "ngc+choco+push-sum": 1e-2}
COARSE |= {"led": 1e-3, "proxskip": 1e-3}  # half as many averagings
"""How near models come, as a part of how far they began, where that is not 1e-6 or less."""
ELSEWHERE = {"adagossip", "relaysgd"}
"""Those that do not keep the mean: rates of its own for every parameter of every agent; sums that
are passed on late."""
OPTIMAL = ["beer", "central", "d2", "momentum-tracking", "relaysgd", "tracking",
           "tracking+push-sum", "kgt", "exact-diffusion", "led", "proxskip"]  # fmt: skip
BIASED = ["choco", "decentlam", "dmsgd", "dpsgd", "gut", "qgm", "sgp"]


def graph_of(name: str) -> Topology:
    makers: dict[str, Callable[[], Topology]] = GRAPHS | FIELD_GRAPHS
    if name == "relaysgd":
        return makers["tree"]()
    pushed = name in ("sgp", "sparse-push") or "push-sum" in name
    return makers["pushed digraph" if pushed else "random"]()


class Still(Neighbourhood):
    """The verbs, where nobody has anything to learn."""

    def gradient(self, x_AD: Tensor, batch: Batch, active_A: Tensor | None = None) -> Gradient:
        return Gradient(torch.zeros_like(x_AD), x_AD.new_zeros(len(x_AD)))

    def cross_gradient(self, x_I: OnEdges, batch: Batch) -> OnEdges:  # type: ignore[override]
        return self.stored(self.zeros_I())

    def accuracy(self, x_AD: Tensor, batch: Batch) -> Tensor:
        return x_AD[:, :1] * 0

    def cross_accuracy(self, x_I: OnEdges, batch: Batch) -> Mail:
        return self.stored(self.zeros_I()[:, :1])


def still(topology: Topology) -> Neighbourhood:
    hood = small.hood(topology)
    return Still(hood.transport, hood.engine)


def unequal(agents: int, size: int) -> Tensor:
    return torch.randn(
        agents, size, dtype=torch.float64, generator=torch.Generator().manual_seed(4)
    )


def after(name: str, hood: Neighbourhood, x_AD: Tensor, steps: int, lr: float = 0.05) -> Tensor:
    algorithm = build(name, GENTLE.get(name, {}))
    algorithm.check(hood.transport.topology)
    apart = not torch.equal(x_AD, x_AD[:1].expand_as(x_AD))
    state = algorithm.init(x_AD.clone(), hood, apart)
    found: Tensor = rested(algorithm, hood, state, steps, lr).x_AD
    return found


@pytest.mark.parametrize("name", NAMES)
def test_models_come_together_at_their_mean(name: str) -> None:
    topology = graph_of(name)
    hood = still(topology)
    x_AD = unequal(topology.agents, hood.task.size)
    z_AD = after(name, hood, x_AD, 400)
    apart, began = ((v_AD - v_AD.mean(0)).norm() for v_AD in (z_AD, x_AD))
    assert apart < COARSE.get(name, 1e-6) * began
    if name not in ELSEWHERE:
        assert (z_AD.mean(0) - x_AD.mean(0)).norm() < COARSE.get(name, 1e-6) * began


@pytest.mark.parametrize("name", [*OPTIMAL, *BIASED])
def test_where_they_rest_does_not_depend_on_where_they_began(name: str) -> None:
    topology = graph_of(name)
    problem = Quadratics(topology.agents)
    x_AD = 2 * unequal(topology.agents, D)
    z_AD = after(name, Quadratic(topology, problem), x_AD, 1000)
    expected_AD = after(name, Quadratic(topology, problem), torch.zeros_like(x_AD), 1000)
    torch.testing.assert_close(z_AD, expected_AD, rtol=0, atol=1e-5)
    if name in OPTIMAL:
        optimum_AD = problem.optimum_D.expand_as(z_AD)
        torch.testing.assert_close(z_AD, optimum_AD, rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", ["kgt", "led", "proxskip"])
def test_a_host_that_is_lost_within_a_round(name: str) -> None:
    """What is left goes on from models after the second of four local steps, and stays exact."""
    topology = graph_of(name)
    problem = Quadratics(topology.agents)
    hood = Quadratic(topology, problem)
    algorithm = build(name, {"local_steps": 4})
    state = algorithm.init(torch.zeros(topology.agents, D, dtype=torch.float64), hood)
    for step in range(3000):
        if step == 42:
            state = algorithm.init(state.x_AD, hood, apart=True)
        state = algorithm.step(state, hood.at(step), step_only(step), 0.05).state
    expected_AD = problem.optimum_D.expand_as(state.x_AD)
    torch.testing.assert_close(state.x_AD, expected_AD, rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_one_that_is_left_alone(name: str) -> None:
    """It has no neighbours to average with, and keeps its model while there is nothing to learn."""
    topology, _ = without(graph_of(name), [2])
    hood = still(topology)
    x_AD = unequal(1, hood.task.size)
    assert torch.equal(after(name, hood, x_AD, 3), x_AD)


@pytest.mark.parametrize("name", NAMES)
def test_models_that_have_to_be_told_are_sent_once(name: str) -> None:
    """From unequal models: at most one on every edge, or to a server and back."""
    topology = graph_of(name)
    hood = still(topology)
    x_AD = unequal(topology.agents, hood.task.size)
    build(name, GENTLE.get(name, {})).init(x_AD, hood, apart=True)
    model = 32 + 8 * hood.task.size
    sent = hood.transport.sent
    if name == "central":
        expected = [(topology.agents - 1) * model] + [model] * (topology.agents - 1)
    else:
        keeps_copies = name in ("adagossip", "beer") or "choco" in name
        degrees = [sum(j == agent for j, _ in topology.edges) for agent in range(topology.agents)]
        expected = [keeps_copies * degree * model for degree in degrees]
    assert sent["models"].tolist() == expected
    assert not sent["cross_gradients"].any()
