"""Many (model, batch) gradients at once.

Axes: P pairs of a model and a batch, D flat parameters, A hosted agents, B samples of a batch.

`LoopEngine` is the obvious way and what the others are compared with, before every run, too
(`agreement.py`); `VmapEngine` computes all pairs as one batched operation. Faster ones for models
of known layers are in modules of their own: `dense.py` for stacks of dense layers, `compiled.py`
for what the kernels know. The table is in `choose.py`.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor

from parley.compute.beside import Attributes
from parley.compute.sums import Sums
from parley.compute.task import Task
from parley.compute.threads import Crew
from parley.data import Batch


class Pairs(NamedTuple):
    """Models and the batches they meet, all of agents hosted here."""

    models: Tensor
    """Row of each pair's model, int64[P]."""
    rows: Tensor
    """Row of each pair's batch, int64[P], on the CPU."""
    owners: Tensor
    """Agent whose model it is, int64[P], on the CPU."""


class Share(NamedTuple):
    """To which row of a sum the gradient of each pair is added."""

    target_P: Tensor
    """A row of the sum, int64[P]."""
    weight_P: Tensor


ACCUMULATED_BYTES = 1 << 22
"""Gradients that are held at once while they are added up."""


class Engine(ABC):
    """Gradients of many models, each on some hosted agent's batch; and what a model answers."""

    name: ClassVar[str] = ""
    same_in_any_company: ClassVar[bool] = False
    """Whether a gradient has the same bits whichever others are computed in the same call: then so
    has a whole run, however its agents are placed. One that batches products over pairs cannot
    promise it, as libraries cut a product into blocks by its size."""

    def __init__(self, task: Task, seed: int = 0, threads: int = 1) -> None:
        self.task = task
        self.seed = seed
        self.crew = Crew(threads)
        """Threads of the compiled kernels."""
        self._parts: tuple[Pairs, Sequence[Share], int, list[tuple[slice, list[Sums]]]] | None = (
            None
        )

    @abstractmethod
    def gradients(
        self, x_PD: Tensor, batch: Batch, rows: Sequence[int], owners: Sequence[int]
    ) -> tuple[Tensor, Tensor]:
        """Loss and gradient of model p on the batch in row ``rows[p]``.

        ``owners[p]`` is the agent whose model it is; with the batch's own agent and step it keys
        the randomness of dropout, so that a result does not depend on where it is computed.
        """

    def accumulate(
        self,
        x_AD: Tensor,
        batch: Batch,
        pairs: "Pairs",
        shares: Sequence["Share"],
        sums: Sequence[Tensor],
    ) -> None:
        """Adds up the gradients of pairs, in their order, without keeping them.

        For each share, its weight for pair p times the gradient of p is added to the row that it
        names of its sum, [A, D]. Few pairs are handled at once, at most one for each agent, so
        that what is held beside the sums is bounded however many edges there are.
        """
        few = ACCUMULATED_BYTES // (x_AD.shape[1] * x_AD.element_size())
        few = max(1, min(few, len(x_AD)))
        for some, parts in self._in_parts(pairs, shares, few):
            x_PD = x_AD.index_select(0, pairs.models[some])
            rows, owners = pairs.rows[some].tolist(), pairs.owners[some].tolist()
            g_PD = self.gradients(x_PD, batch, rows, owners)[1]
            for part, sum_AD in zip(parts, sums, strict=True):
                part.add(sum_AD, g_PD)

    def _in_parts(
        self, pairs: "Pairs", shares: Sequence["Share"], few: int
    ) -> list[tuple[slice, list[Sums]]]:
        """A few pairs at a time, and how their gradients are added up: the same in every step."""
        if self._parts is None or not (
            self._parts[0] is pairs and self._parts[1] is shares and self._parts[2] == few
        ):
            slices = [slice(k, k + few) for k in range(0, len(pairs.models), few)]
            parts = [(some, [_sums(share, some, self.crew) for share in shares]) for some in slices]
            self._parts = (pairs, shares, few, parts)
        return self._parts[3]

    def predict(self, x_E: Tensor, inputs: Tensor) -> Tensor:
        """What a model answers to held-out inputs; as `Task.predict`."""
        return self.task.predict(on_a_cache_line(x_E), on_a_cache_line(inputs))

    def predict_each(self, models: Sequence[Tensor], inputs: Tensor) -> Tensor:
        """What each model answers to the same held-out inputs, [P, n, ...]."""
        answers = [self.predict(x_E, inputs) for x_E in models]
        return torch.stack(answers) if len(answers) > 1 else answers[0][None]

    def moved(self, x_PD: Tensor, b_PS: Tensor, batch: Batch, rows: Sequence[int]) -> Tensor:
        """The running statistics of model p after it has seen the batch in row ``rows[p]`` in
        training."""
        return self._each_seen(self.task.moved, x_PD, b_PS, batch, rows)

    def moments(self, x_PD: Tensor, b_PS: Tensor, batch: Batch, rows: Sequence[int]) -> Tensor:
        """Means of what normalising layers of model p see in the batch in row ``rows[p]``, and mean
        squares where variances would be, ``float64[P, S]``."""
        return self._each_seen(self.task.moments, x_PD, b_PS, batch, rows)

    def _each_seen(
        self,
        see: Callable[[Tensor, Tensor, Tensor], Tensor],
        x_PD: Tensor,
        b_PS: Tensor,
        batch: Batch,
        rows: Sequence[int],
    ) -> Tensor:
        found = []
        with torch.random.fork_rng(devices=[], enabled=self.task.random):
            for x_D, b_S, row in zip(x_PD, b_PS, rows, strict=True):
                if self.task.random:  # what an agent's own gradient of this batch has seen
                    torch.manual_seed(dropout_seed(self.seed, batch, row, batch.agents[row]))
                inputs = on_a_cache_line(batch.inputs[row, : batch.sizes[row]])
                found.append(see(on_a_cache_line(x_D), b_S, inputs))
        return torch.stack(found)


def _sums(share: Share, some: slice, crew: Crew) -> Sums:
    targets = share.target_P[some].tolist()
    return Sums(targets, range(len(targets)), share.weight_P[some], crew)


def on_a_cache_line(values: Tensor) -> Tensor:
    """The same values where a cache line begins: a product's rounding may depend on where its
    factors lie, and in which row they stand depends on the placement."""
    return (
        values
        if values.data_ptr() % 64 == 0 and values.is_contiguous()
        else values.clone(memory_format=torch.contiguous_format)
    )


def dropout_seed(seed: int, batch: Batch, row: int, owner: int) -> int:
    """What dropout draws for one agent's model on a batch follows from this, wherever that is."""
    key = [seed, 3, batch.agents[row], owner, batch.step]
    return int(np.random.SeedSequence(key).generate_state(1, np.uint64)[0])


class LoopEngine(Engine):
    """One pair after the other."""

    name = "loop"
    same_in_any_company = True

    def gradients(
        self, x_PD: Tensor, batch: Batch, rows: Sequence[int], owners: Sequence[int]
    ) -> tuple[Tensor, Tensor]:
        """Loss and gradient of each pair, as `Engine.gradients` says."""
        with torch.random.fork_rng(devices=[], enabled=self.task.random):
            return self._one_by_one(x_PD, batch, rows, owners)

    def _one_by_one(
        self, x_PD: Tensor, batch: Batch, rows: Sequence[int], owners: Sequence[int]
    ) -> tuple[Tensor, Tensor]:
        loss_P, g_PD = x_PD.new_empty(len(rows)), torch.empty_like(x_PD)
        for p, (row, owner) in enumerate(zip(rows, owners, strict=True)):
            n = batch.sizes[row]
            if self.task.random:
                torch.manual_seed(dropout_seed(self.seed, batch, row, owner))
            x_D = on_a_cache_line(x_PD[p].detach()).requires_grad_()
            inputs = on_a_cache_line(batch.inputs[row, :n])
            loss = self.task.losses(x_D, inputs, batch.targets[row, :n]).mean()
            (g_PD[p],) = torch.autograd.grad(loss, x_D)
            loss_P[p] = loss.detach()
        return loss_P, g_PD


class VmapEngine(Engine):
    """All pairs whose batches have the same size as one batched operation."""

    name = "vmap"

    def __init__(self, task: Task, seed: int = 0, threads: int = 1) -> None:
        super().__init__(task, seed, threads)

        def loss(x_D: Tensor, inputs: Tensor, targets: Tensor) -> Tensor:
            return task.losses(x_D, inputs, targets).mean()

        self._batched = torch.func.vmap(torch.func.grad_and_value(loss))

    def gradients(
        self, x_PD: Tensor, batch: Batch, rows: Sequence[int], owners: Sequence[int]
    ) -> tuple[Tensor, Tensor]:
        """Loss and gradient of each pair, as `Engine.gradients` says."""
        loss_P, g_PD = x_PD.new_empty(len(rows)), torch.empty_like(x_PD)
        # Filled up to one size, short batches would show a model samples that are none.
        size_P, row_P = torch.tensor(batch.sizes)[list(rows)], torch.tensor(list(rows))
        as_it_was = Attributes(self.task.model)
        for size in size_P.unique().tolist():
            some = (size_P == size).nonzero().flatten()
            inputs, targets = (values[row_P[some], :size] for values in batch[:2])
            g_PD[some], loss_P[some] = self._batched(x_PD[some], inputs, targets)
        as_it_was.restore()  # what a model keeps of its activations is nothing outside of vmap
        return loss_P, g_PD
