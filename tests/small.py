"""A small problem on which every algorithm can be compared with its reference, step by step."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from parley.algorithms import Algorithm
from parley.compute.engine import Engine, LoopEngine
from parley.compute.task import Task
from parley.data import Batches, Samples, Transform
from parley.graphs import Topology
from parley.neighbourhood import Neighbourhood
from parley.wire.local import Local
from parley.wire.placement import Placement, spread
from parley.wire.transport import Transport

FEATURES, CLASSES = 5, 3


def net() -> nn.Module:
    """52 parameters in four tensors; smooth, so that trajectories do not branch on rounding."""
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(FEATURES, 6), nn.Tanh(), nn.Linear(6, CLASSES))


def samples(agents: int, sizes: Sequence[int] = (7, 12, 5)) -> list[Samples]:
    """Each agent's own data, of unequal number and mostly of one class."""
    generator = torch.Generator().manual_seed(5)
    made = []
    for agent in range(agents):
        n = sizes[agent % len(sizes)]
        inputs = (
            torch.randn(n, FEATURES, dtype=torch.float64, generator=generator) + agent % CLASSES
        )
        targets = torch.full((n,), agent % CLASSES)
        targets[0] = (agent + 1) % CLASSES
        made.append(Samples(inputs, targets))
    return made


def hood(
    topology: Topology,
    dtype: torch.dtype = torch.float64,
    engine: type[Engine] = LoopEngine,
    transport: Transport | None = None,
) -> Neighbourhood:
    """All agents here unless a transport says otherwise."""
    transport = transport or Local(spread(topology, 1))
    return Neighbourhood(transport, engine(Task(net(), dtype=dtype)))


def batches(placement: Placement, dtype: torch.dtype = torch.float64) -> Batches:
    """Batches of at most four, with short ones among them."""
    everyone = samples(placement.topology.agents)
    hosted = [everyone[a] for a in placement.agents]
    return Batches(hosted, placement.agents, 4, Transform(), seed=3, dtype=dtype)


def rate(step: int) -> float:
    """A learning rate that changes, to tell the momentum forms apart."""
    return 0.2 if step < 8 else 0.05


def trajectory(
    algorithm: Algorithm, hood: Neighbourhood, steps: int, source: Batches | None = None
) -> tuple[list[Tensor], Any]:
    """The hosted agents' models after each step, and the last state."""
    source = source or batches(hood.placement, hood.task.dtype)
    x_AD = hood.task.start().expand(len(hood.agents), -1).clone()
    state = algorithm.init(x_AD, hood)
    iterates = [state.x_AD.clone()]
    for step in range(steps):
        then = hood.at(step, algorithm.rounds_before(step))
        state = algorithm.step(state, then, source.at(step), rate(step)).state
        iterates.append(state.x_AD.clone())
    return iterates, state
