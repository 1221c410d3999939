"""Following the running statistics of models (BatchNorm's) while they train.

Axes: A agents hosted here, D flat parameters, S flat statistics.

Each agent has its own. They follow its own model on its own batches, as in any training loop: a
neighbour's model, or one on the way of a step, leaves no trace. With ``buffers = "mixed"`` they are
averaged with the neighbours' whenever models are.
"""

import torch
from torch import Tensor

from parley.compute.engine import on_a_cache_line
from parley.compute.task import Task
from parley.data import Batch, Batches
from parley.errors import BadValue
from parley.neighbourhood import Neighbourhood
from parley.wire.transport import Transport

ESTIMATED = 2048
"""Samples of each agent from which the averaged model's statistics are estimated."""
ASIDE = 1_000
"""The draw of batches for that: none that training uses."""


def moved(task: Task, x_AD: Tensor, b_AS: Tensor, batch: Batch) -> Tensor:
    """The statistics after each agent's model has seen its own batch."""
    rows = [
        task.moved(on_a_cache_line(x_D), b_S, on_a_cache_line(batch.inputs[row, :n]))
        for row, (x_D, b_S, n) in enumerate(zip(x_AD, b_AS, batch.sizes, strict=True))
    ]
    return torch.stack(rows)


def mixed(b_AS: Tensor, hood: Neighbourhood, gamma: float) -> Tensor:
    """The statistics after one averaging with the neighbours', with weights that sum to 1."""
    mean_AS = hood.average(b_AS, hood.exchange(b_AS)) / hood.weight_sum_A
    return mean_AS if gamma == 1 else b_AS + gamma * (mean_AS - b_AS)


def estimated(
    task: Task, x_D: Tensor, b_AS: Tensor, batches: Batches, transport: Transport, at: int = 0
) -> Tensor:
    """The statistics that a model needs on the data of all agents together, [S], at a step.

    Every agent passes over its own data, once, or over as much as `ESTIMATED` samples of it. Means
    and mean squares are averaged, not variances, which would leave out how agents differ.
    """
    own = batches.another(ASIDE)
    sums_AS = torch.zeros(b_AS.shape, dtype=torch.float64)
    seen_A1 = torch.zeros(len(b_AS), 1, dtype=torch.float64)
    lengths = own.lengths
    most = max(min(length, ESTIMATED) for length in lengths)
    for step in range(-(-most // own.batch)):
        batch = own.at(step)
        for row, n in enumerate(batch.sizes):
            if step * own.batch >= min(lengths[row], ESTIMATED):
                continue
            inputs = on_a_cache_line(batch.inputs[row, :n])
            sums_AS[row] += n * task.moments(on_a_cache_line(x_D), b_AS[row], inputs).cpu()
            seen_A1[row] += n
    agents = transport.topology.agents
    b_S = (transport.total(b_AS.double(), "evaluation", at) / agents).cpu()
    means_AS = (sums_AS / seen_A1).to(b_AS.device)
    mean_S = (transport.total(means_AS, "evaluation", at) / agents).cpu()
    for mean, variance in task.layout.moments:
        b_S[mean] = mean_S[mean]
        b_S[variance] = (mean_S[variance] - mean_S[mean].square()).clamp(min=0)
    return b_S.to(b_AS)


def check_batches(task: Task, batches: Batches) -> None:
    """Refuses a batch of one sample where a layer cannot make statistics of that."""
    for row, length in enumerate(batches.lengths):
        last = length % batches.batch or min(length, batches.batch)
        if min(last, length) > 1:
            continue
        step = -(-length // batches.batch) - 1
        inputs = batches.at(step).inputs[row, :1]
        try:
            task.moved(task.start(), task.layout.start(task.start()), inputs)
        except ValueError as error:
            agent = batches.agents[row]
            because = f"agent {agent} has {length} samples, so a batch of one, of which a layer of "
            because += f"the model cannot make statistics: {str(error).splitlines()[0]}"
            raise BadValue("batch", batches.batch, "another size", because) from error
