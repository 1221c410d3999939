"""The rules as people usually write them: one `nn.Module` per agent and loops over agents.

All agents live in this process, so a neighbour's model is simply called. Gradients are autograd's,
kept as one tensor for each parameter. Momentum is heavy-ball, v = βv - ηg, as the paper prints it.
"""

from collections.abc import Sequence

import numpy as np
import torch
from scipy.linalg import cholesky, solve_triangular
from scipy.optimize import nnls
from torch import Tensor, nn

from benchmarks.cases import Case
from parley.data import Batches

Tensors = list[Tensor]


class Agent:
    """A peer: its model, its momentum and its data."""

    def __init__(self, case: Case, number: int, weights: np.ndarray) -> None:
        self.model = case.start()
        self.parameters: Tensors = list(self.model.parameters())
        self.velocity = [torch.zeros_like(p) for p in self.parameters]
        self.lr, self.momentum = case.lr, case.momentum
        (heard,) = weights.nonzero()
        self.neighbours = [int(j) for j in heard if j != number]
        # Of the agent itself, then of its neighbours. (The ring's weights are symmetric.)
        self.weights = [float(weights[j]) for j in (number, *self.neighbours)]
        self._batches = Batches(
            [case.samples_of(number)],
            [number],
            case.batch,
            case.transform(),
            case.seed,
            dtype=getattr(torch, case.dtype),
        )

    def batch(self, step: int) -> tuple[Tensor, Tensor]:
        batch = self._batches.at(step)
        return batch.inputs[0], batch.targets[0]

    @torch.no_grad()
    def accelerate(self, g: Tensors) -> None:
        for v, part in zip(self.velocity, g, strict=True):
            v.mul_(self.momentum).add_(part, alpha=-self.lr)

    @torch.no_grad()
    def move(self) -> None:
        for p, v in zip(self.parameters, self.velocity, strict=True):
            p.add_(v)

    @torch.no_grad()
    def become(self, values: Tensors) -> None:
        for p, value in zip(self.parameters, values, strict=True):
            p.copy_(value)


def gradient(model: nn.Module, parameters: Tensors, batch: tuple[Tensor, Tensor]) -> Tensors:
    inputs, targets = batch
    loss = nn.functional.cross_entropy(model(inputs), targets)
    return list(torch.autograd.grad(loss, parameters))


@torch.no_grad()
def weighted_sum(weights: Sequence[float], values: Sequence[Tensors]) -> Tensors:
    total = [weights[0] * part for part in values[0]]
    for weight, value in zip(weights[1:], values[1:], strict=True):
        for part, other in zip(total, value, strict=True):
            part.add_(other, alpha=weight)
    return total


@torch.no_grad()
def compress(g: Tensors, error: Tensors) -> Tensors:
    """One bit per entry with one scale for the whole gradient; `error` is updated in place."""
    for e, part in zip(error, g, strict=True):
        e.add_(part)
    size = sum(e.numel() for e in error)
    scale = sum(e.abs().sum() for e in error) / size
    sent = [torch.where(e >= 0, scale, -scale) for e in error]
    for e, part in zip(error, sent, strict=True):
        e.sub_(part)
    return sent


@torch.no_grad()
def project(g: Tensors, others: Sequence[Tensors]) -> Tensors:
    """CGA: g + Σ_j u_j g_j with the u ≥ 0 for which that is shortest."""
    rows = torch.stack([torch.cat([part.flatten() for part in other]) for other in others]).double()
    along = rows @ torch.cat([part.flatten() for part in g]).double()
    gram = (rows @ rows.T).numpy() + 1e-12 * np.eye(len(rows))
    root = cholesky(gram)  # upper: rootᵀ root = gram
    u, _ = nnls(root, -solve_triangular(root, along.numpy(), trans="T"))
    return weighted_sum([1.0, *u.tolist()], [g, *others])


class Textbook:
    """All agents, one after another."""

    def __init__(self, case: Case) -> None:
        weights = case.topology().weights
        self.rule = case.rule
        self.agents = [Agent(case, i, weights[i]) for i in range(case.agents)]
        self._k = 0
        self._errors: dict[tuple[int, int], Tensors] = {}
        if case.rule == "compngc":
            for i, agent in enumerate(self.agents):
                for j in (i, *agent.neighbours):
                    self._errors[i, j] = [torch.zeros_like(p) for p in agent.parameters]

    def step(self) -> None:
        batches = [agent.batch(self._k) for agent in self.agents]
        self._k += 1
        for i, agent in enumerate(self.agents):
            agent.accelerate(self._gradient(i, batches))
        if self.rule == "dpsgd":  # it averages the models after their step, the others before
            for agent in self.agents:
                agent.move()
            self._gossip()
        else:
            self._gossip()
            for agent in self.agents:
                agent.move()

    def _gradient(self, i: int, batches: Sequence[tuple[Tensor, Tensor]]) -> Tensors:
        """The direction in which agent i steps."""
        me = self.agents[i]
        if self.rule == "dpsgd":
            return gradient(me.model, me.parameters, batches[i])
        ids = (i, *me.neighbours)
        if self.rule == "ngc0":  # the neighbourhood's models on its own data
            members = [self.agents[j] for j in ids]
            values = [gradient(a.model, a.parameters, batches[i]) for a in members]
            return weighted_sum(me.weights, values)
        # Its own model on the neighbourhood's data.
        values = [gradient(me.model, me.parameters, batches[j]) for j in ids]
        if self.rule == "cga":
            return project(values[0], values[1:])
        if self.rule == "compngc":
            values = [compress(g, self._errors[i, j]) for g, j in zip(values, ids, strict=True)]
        return weighted_sum(me.weights, values)

    def _gossip(self) -> None:
        mixed = [
            weighted_sum(
                a.weights, [a.parameters, *(self.agents[j].parameters for j in a.neighbours)]
            )
            for a in self.agents
        ]
        for agent, values in zip(self.agents, mixed, strict=True):
            agent.become(values)

    def models(self) -> Tensor:
        """Every agent's parameters, [agents, D]."""
        vectors = [nn.utils.parameters_to_vector(agent.parameters) for agent in self.agents]
        return torch.stack(vectors).detach()
