"""The rules with one process per agent, which is how the paper's authors run them.

Neighbours send models and gradients as flat float32 tensors over gloo, and compute while they
wait. The arithmetic inside an agent is the textbook's. As in the authors' code, what is compressed
travels as float32.
"""

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from benchmarks.cases import Case
from benchmarks.textbook import Agent, Tensors, compress, gradient, project, weighted_sum

MODELS, GRADIENTS = 0, 1  # tags of messages


class OneProcessEach:
    """This process's agent, whose number is the process's rank."""

    def __init__(self, case: Case) -> None:
        rank = dist.get_rank()
        self.rule = case.rule
        self.me = Agent(case, rank, case.topology().weights[rank])
        self._shapes = [p.shape for p in self.me.parameters]
        self._sizes = [p.numel() for p in self.me.parameters]
        own = parameters_to_vector(self.me.parameters).detach()
        self._x = {j: torch.empty_like(own) for j in self.me.neighbours}
        self._g = {j: torch.empty_like(own) for j in self.me.neighbours}
        # A neighbour's model: its parameters are views of what was received.
        self._theirs: dict[int, tuple[nn.Module, Tensors]] = {}
        for j, inbox in self._x.items():
            model = case.start()
            vector_to_parameters(inbox, model.parameters())
            self._theirs[j] = (model, list(model.parameters()))
        members = (rank, *self.me.neighbours) if case.rule == "compngc" else ()
        self._errors = {j: [torch.zeros_like(p) for p in self.me.parameters] for j in members}
        self._rank = rank
        self._k = 0

    def step(self) -> None:
        me = self.me
        batch = me.batch(self._k)
        self._k += 1
        if self.rule == "dpsgd":
            me.accelerate(gradient(me.model, me.parameters, batch))
            me.move()
            self._gossip(self._send_model())
            return
        sending = self._send_model()
        own = gradient(me.model, me.parameters, batch)
        if self.rule == "compngc":
            own = compress(own, self._errors[self._rank])
        _finish(sending)
        cross = {j: gradient(*self._theirs[j], batch) for j in me.neighbours}
        if self.rule == "compngc":
            cross = {j: compress(g, self._errors[j]) for j, g in cross.items()}
        if self.rule != "ngc0":
            cross = self._reply(cross)
        others = [cross[j] for j in me.neighbours]
        if self.rule == "cga":
            me.accelerate(project(own, others))
        else:
            me.accelerate(weighted_sum(me.weights, [own, *others]))
        self._gossip([])
        me.move()

    def _send_model(self) -> list[dist.Work]:
        x = parameters_to_vector(self.me.parameters).detach()
        return _swap(dict.fromkeys(self.me.neighbours, x), self._x, MODELS)

    def _reply(self, cross: dict[int, Tensors]) -> dict[int, Tensors]:
        """Sends each neighbour the gradient of its model; returns those for this agent's model."""
        flat = {j: torch.cat([part.flatten() for part in g]) for j, g in cross.items()}
        _finish(_swap(flat, self._g, GRADIENTS))
        return {j: self._parts(g) for j, g in self._g.items()}

    def _gossip(self, sending: list[dist.Work]) -> None:
        _finish(sending)
        theirs = [self._theirs[j][1] for j in self.me.neighbours]
        self.me.become(weighted_sum(self.me.weights, [self.me.parameters, *theirs]))

    def _parts(self, flat: Tensor) -> Tensors:
        parts = torch.split(flat, self._sizes)
        return [part.view(shape) for part, shape in zip(parts, self._shapes, strict=True)]

    def models(self) -> Tensor:
        """This agent's parameters, [1, D]."""
        return parameters_to_vector(self.me.parameters).detach()[None]


def _swap(out: dict[int, Tensor], into: dict[int, Tensor], tag: int) -> list[dist.Work]:
    works = [dist.irecv(buffer, j, tag=tag) for j, buffer in into.items()]
    works += [dist.isend(value, j, tag=tag) for j, value in out.items()]
    return [work for work in works if work is not None]


def _finish(works: list[dist.Work]) -> None:
    for work in works:
        work.wait()
