"""Following the running statistics of models (BatchNorm's) while they train.

Axes: A agents hosted here, D flat parameters, S flat statistics.

Each agent has its own. They follow its own model on its own batches, as in any training loop: a
neighbour's model, or one on the way of a step, leaves no trace. With ``buffers = "mixed"`` they are
averaged with the neighbours' whenever models are.
"""

import torch
from torch import Tensor

from parley.compute.engine import Engine
from parley.compute.task import Task
from parley.data import Batches
from parley.errors import BadValue
from parley.neighbourhood import Neighbourhood
from parley.wire.transport import Transport

ESTIMATED = 2048
"""Samples of each agent from which the averaged model's statistics are estimated."""
ASIDE = 1_000
"""The draw of batches for that: none that training uses."""


def mixed(b_AS: Tensor, hood: Neighbourhood, gamma: float) -> Tensor:
    """The statistics after one averaging with the neighbours', with weights that sum to 1."""
    mean_AS = hood.average(b_AS, hood.exchange(b_AS)) / hood.weight_sum_A
    return mean_AS if gamma == 1 else b_AS + gamma * (mean_AS - b_AS)


def estimated(
    engine: Engine,
    x_D: Tensor,
    b_AS: Tensor,
    batches: Batches,
    transport: Transport,
    at: int = 0,
    factor_A1: Tensor | None = None,
) -> Tensor:
    """The statistics that a model needs on the data of all agents together, [S], at a step.

    Every agent passes over its own data, once, or over as much as `ESTIMATED` samples of it. Means
    and mean squares are averaged, not variances, which would leave out how agents differ. An agent
    counts by its factor, as in the objective.
    """
    own = batches.another(ASIDE)
    sums_AS = torch.zeros(b_AS.shape, dtype=torch.float64)
    seen_A1 = torch.zeros(len(b_AS), 1, dtype=torch.float64)
    lengths = own.lengths
    most = max(min(length, ESTIMATED) for length in lengths)
    for step in range(-(-most // own.batch)):
        batch = own.at(step)
        left = [step * own.batch < min(length, ESTIMATED) for length in lengths]
        rows = [row for row, more in enumerate(left) if more]
        moments_PS = engine.moments(x_D.expand(len(rows), -1), b_AS[rows], batch, rows).cpu()
        size_P1 = torch.tensor([[batch.sizes[row]] for row in rows], dtype=torch.float64)
        sums_AS[rows] += size_P1 * moments_PS
        seen_A1[rows] += size_P1
    agents = transport.topology.agents
    b_S = (transport.total(b_AS.double(), "evaluation", at) / agents).cpu()
    means_AS, total = sums_AS / seen_A1, float(agents)
    if factor_A1 is not None:
        means_AS, total = factor_A1 * means_AS, float(transport.gather(factor_A1[:, 0]).sum())
    mean_S = (transport.total(means_AS.to(b_AS.device), "evaluation", at) / total).cpu()
    for mean, variance in engine.task.layout.moments:
        b_S[mean] = mean_S[mean]
        b_S[variance] = (mean_S[variance] - mean_S[mean].square()).clamp(min=0)
    return b_S.to(b_AS)


def check_batches(task: Task, batches: Batches) -> None:
    """Refuses batches of a single sample if the model cannot compute statistics of them."""
    for row, length in enumerate(batches.lengths):
        last = length % batches.batch or min(length, batches.batch)
        if min(last, length) > 1:
            continue
        step = -(-length // batches.batch) - 1
        inputs = batches.at(step).inputs[row, :1]
        try:
            with torch.no_grad(), torch.random.fork_rng(devices=[]):
                task.outputs(task.start(), inputs)
            return  # what one agent's model can, the others can
        except ValueError as error:
            agent = batches.agents[row]
            because = (
                f"agent {agent} has {length} samples, so one batch has a single sample, and the "
            )
            because += f"model cannot compute statistics of it: {str(error).splitlines()[0]}"
            raise BadValue("batch", batches.batch, "another size", because) from error
