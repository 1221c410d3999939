"""Gradients of networks by compiled kernels, without autograd.

Axes: P pairs of a model and a batch, D flat parameters, A hosted agents, B samples of a batch.

The model is read once (`reader.py`) into a list of operations on feature maps, and laid out in
memory once for each shape of inputs (`planner.py`). One call then computes all pairs: forward and
backward over one preallocated workspace, each parameter's gradient where it belongs in `g_PD`.
`kernels/graph.h` says how. S are flat running statistics, E parameters with those behind them.
"""

from collections.abc import Sequence
from typing import NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from parley.compute import kernels
from parley.compute.engine import Engine, Pairs, Share, dropout_seed
from parley.compute.kernels.interface import LossKind
from parley.compute.layers import Unsupported
from parley.compute.memory import zeros
from parley.compute.planner import Parameters, Plan, loss_of
from parley.compute.portions import PairSums, Part, slices
from parley.compute.reader import Traced
from parley.compute.task import Task
from parley.data import Batch
from parley.errors import BadValue

VECTORS = 2
"""Vectors of samples that pass through a network together. A tile of six channels by two vectors
fills the registers, and what passes between two layers is half as large as with four."""
SEEN = 2
"""Gradients of agents' own models, of the same batch, whose statistics are kept."""
WORTH_A_THREAD = 5e8
"""Floating-point operations from which on a call is shared out among threads, some milliseconds:
with less, waking them costs more than they give."""


@torch.inference_mode(False)
def supports(task: Task, shape: tuple[int, ...] | None = None) -> str:
    """Why the kernels cannot compute this task's gradients; empty if they can.

    Given the shape of an input, all of it is checked, else what can be known without. Whether there
    are kernels on this machine is another question, `kernels.available()`.

    >>> from torch import nn
    >>> supports(Task(nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3))))
    ''
    >>> supports(Task(nn.Sequential(nn.Linear(8, 4), nn.Softplus(), nn.Linear(4, 2))))
    'layer 1 (Softplus) is not one that the kernels know'
    """
    try:
        traced = _traced(task)
        if shape is not None:
            loss_of(task).of(traced.read(tuple(shape)).answer[0])
    except Unsupported as error:
        return str(error)
    return ""


_TRACED: "WeakKeyDictionary[Task, Traced]" = WeakKeyDictionary()


def _traced(task: Task) -> Traced:
    loss_of(task)
    if task.dtype != torch.float32 or task.start().device.type != "cpu":
        raise Unsupported("the kernels compute in float32 on a CPU")
    if task not in _TRACED:
        _TRACED[task] = Traced(task.model)
    return _TRACED[task]


class FusedEngine(Engine):
    """Compiled forward and backward passes, one pair after the other in each of its threads.

    No two threads write to the same memory, and each adds in the order in which one alone would:
    the numbers do not depend on how many there are.
    """

    name = "fused"
    same_in_any_company = True

    def __init__(self, task: Task, seed: int = 0, threads: int = 1) -> None:
        super().__init__(task, seed, threads)
        if why := supports(task) or kernels.reason():
            raise BadValue("engine", "fused", "loop, auto", because=why)
        self._library = kernels.library()
        self._plans: dict[tuple[tuple[int, ...], bool], _Ground] = {}
        self._kept: _Ready | None = None
        self._seen: list[_Seen] = []
        self._laid_out = torch.empty(0)
        self._sums: PairSums | None = None
        self._one_gradient = [zeros(task.size) for _ in range(threads)]

    supports = staticmethod(supports)

    def gradients(
        self, x_PD: Tensor, batch: Batch, rows: Sequence[int], owners: Sequence[int]
    ) -> tuple[Tensor, Tensor]:
        """Loss and gradient of each pair, as `Engine.gradients` says."""
        if len(x_PD) != len(rows):
            raise ValueError(f"{len(x_PD)} models for {len(rows)} rows")
        x_PD, ready = self._models(x_PD), self._ready(batch)
        row_P = ready.checked(np.asarray(rows, dtype=np.int64))
        inputs_P, targets_P, size_P = (values[row_P] for values in ready.of_rows)
        loss_P = torch.empty(len(rows))
        g_PD = torch.empty(x_PD.shape)
        plan = ready.ground.plan
        seen_PS = torch.zeros(len(rows), self.task.layout.size)

        def work(thread: int, part: slice, masks: int | None = None) -> None:
            self._library.parley_gradients(
                ready.ground.plan.graph,
                part.stop - part.start,
                x_PD[part].data_ptr(),
                x_PD.stride(0),
                inputs_P[part].ctypes.data,
                targets_P[part].ctypes.data,
                masks,
                size_P[part].ctypes.data,
                loss_P[part].data_ptr(),
                g_PD[part].data_ptr(),
                g_PD.stride(0),
                seen_PS[part].data_ptr() if plan.couples else None,
                seen_PS.stride(0),
                ready.ground.workspaces[thread].data_ptr(),
            )

        if plan.masks:  # drawn for one pair at a time: those of all would fill the memory
            for p, (row, owner) in enumerate(zip(rows, owners, strict=True)):
                drawn = self._masks(plan, batch, row, owner)
                addresses = np.array([mask.data_ptr() for mask in drawn], dtype=np.int64)
                of_pair = np.array([addresses.ctypes.data], dtype=np.int64)
                work(0, slice(p, p + 1), of_pair.ctypes.data)
        else:
            flops = 3 * plan.flops * int(size_P.sum())
            self.crew.share(work, slices(len(rows), self._threads(flops)))
        if plan.couples and list(owners) == [batch.agents[row] for row in rows]:
            seen = _Seen(ready, x_PD.clone(), tuple(rows), seen_PS)
            self._seen = [*self._seen[1 - SEEN :], seen]
        return loss_P, g_PD

    def _masks(self, plan: Plan, batch: Batch, row: int, owner: int) -> list[Tensor]:
        """What the model's dropouts draw, in their order: the numbers that torch would draw."""
        generator = torch.Generator().manual_seed(dropout_seed(self.seed, batch, row, owner))
        size = batch.sizes[row]
        return [
            torch.empty(size, *mask.shape).bernoulli_(mask.kept, generator=generator)
            for mask in plan.masks
        ]

    def accumulate(
        self,
        x_AD: Tensor,
        batch: Batch,
        pairs: Pairs,
        shares: Sequence[Share],
        sums: Sequence[Tensor],
    ) -> None:
        """As `Engine.accumulate`: each gradient is added while it is in the cache."""
        models, ready = self._models(x_AD), self._ready(batch)
        row_P = ready.checked(pairs.rows.numpy())
        samples = int(ready.of_rows[2][row_P].sum())
        threads = self._threads(3 * ready.ground.plan.flops * samples)
        if ready.ground.plan.masks or (threads > 1 and len(shares) > 1):
            # With two targets for a gradient no cut keeps threads from meeting at some row.
            super().accumulate(x_AD, batch, pairs, shares, sums)
            return
        if self._sums is None or not self._sums.is_of(pairs, shares, threads):
            self._sums = PairSums.of_shares(pairs, shares, threads)
        order = self._sums
        if order.last_model >= len(models):
            raise IndexError(f"row {order.last_model} of {len(models)}")
        for sum_AD, last in zip(sums, order.last_targets, strict=True):
            if last >= len(sum_AD):
                raise IndexError(f"row {last} of {len(sum_AD)}")
            if sum_AD.dtype != torch.float32 or sum_AD.shape[1:] != models.shape[1:]:
                raise ValueError(f"a sum {tuple(sum_AD.shape)} for models {tuple(models.shape)}")
            if sum_AD.stride(1) != 1:
                raise ValueError("the sum's rows are not contiguous")
        addresses, strides = (
            np.array(values, dtype=np.int64)
            for values in ([s.data_ptr() for s in sums], [s.stride(0) for s in sums])
        )

        def work(thread: int, part: Part) -> None:
            inputs_P, targets_P, size_P = (values[part.row_P] for values in ready.of_rows)
            self._library.parley_accumulate(
                ready.ground.plan.graph,
                len(part.row_P),
                models.data_ptr(),
                models.stride(0),
                part.model_P.ctypes.data,
                inputs_P.ctypes.data,
                targets_P.ctypes.data,
                size_P.ctypes.data,
                len(shares),
                part.target_SP.ctypes.data,
                part.weight_SP.ctypes.data,
                addresses.ctypes.data,
                strides.ctypes.data,
                self._one_gradient[thread].data_ptr(),
                ready.ground.workspaces[thread].data_ptr(),
            )

        self.crew.share(work, order.parts)

    def _threads(self, flops: int) -> int:
        """How many threads are worth it for so many floating-point operations."""
        return self.crew.size if flops >= WORTH_A_THREAD else 1

    def _models(self, x_PD: Tensor) -> Tensor:
        """Models as the kernels take them."""
        if x_PD.shape[1:] != (self.task.size,):
            raise ValueError(f"models {tuple(x_PD.shape)} of {self.task.size} parameters")
        x_PD = x_PD.detach().float()
        return x_PD if x_PD.stride(1) == 1 else x_PD.contiguous()

    def moved(self, x_PD: Tensor, b_PS: Tensor, batch: Batch, rows: Sequence[int]) -> Tensor:
        """As `Engine.moved`: what a gradient of these models has seen is not computed again."""
        return self.task.layout.after(b_PS, self._statistics(x_PD, batch, rows))

    def moments(self, x_PD: Tensor, b_PS: Tensor, batch: Batch, rows: Sequence[int]) -> Tensor:
        """As `Engine.moments`."""
        return self.task.layout.squares(self._statistics(x_PD, batch, rows).double())

    def _statistics(self, x_PD: Tensor, batch: Batch, rows: Sequence[int]) -> Tensor:
        """Means and variances of what normalising layers see in the agents' own gradients."""
        x_PD, ready = self._models(x_PD), self._ready(batch)
        for seen in self._seen:
            if seen.of is ready and seen.rows == tuple(rows) and torch.equal(seen.x_PD, x_PD):
                return seen.b_PS
        plan = ready.ground.plan
        if plan.masks:  # only gradients draw them
            self.gradients(x_PD, batch, rows, [batch.agents[row] for row in rows])
            return self._seen[-1].b_PS
        row_P = ready.checked(np.asarray(rows, dtype=np.int64))
        inputs_P, _, size_P = (values[row_P] for values in ready.of_rows)
        seen_PS = torch.zeros(len(rows), self.task.layout.size)

        def work(thread: int, part: slice) -> None:
            self._library.parley_statistics(
                plan.graph,
                part.stop - part.start,
                x_PD[part].data_ptr(),
                x_PD.stride(0),
                inputs_P[part].ctypes.data,
                size_P[part].ctypes.data,
                seen_PS[part].data_ptr(),
                seen_PS.stride(0),
                ready.ground.workspaces[thread].data_ptr(),
            )

        threads = self._threads(plan.flops * int(size_P.sum()))
        self.crew.share(work, slices(len(rows), threads))
        return seen_PS

    def predict(self, x_E: Tensor, inputs: Tensor) -> Tensor:
        """What a model answers to inputs [n, ...]: [n, outputs], or [n] if that is its way."""
        if self._lacks_statistics(x_E):
            return super().predict(x_E, inputs)
        return self.predict_each([x_E], inputs)[0]

    def _lacks_statistics(self, x_E: Tensor) -> bool:
        """Whether layers can only go by the statistics of the inputs, as torch does."""
        return bool(self.task.layout.size) and x_E.shape == (self.task.size,)

    def predict_each(self, models: Sequence[Tensor], inputs: Tensor) -> Tensor:
        """As `Engine.predict_each`; the inputs are laid out once for all models."""
        if any(map(self._lacks_statistics, models)):
            return super().predict_each(models, inputs)
        size = self.task.size + self.task.layout.size
        for x_E in models:
            if x_E.shape != (size,):
                raise ValueError(f"a model of shape {tuple(x_E.shape)}, not ({size},)")
        models = [x_E.detach().float().contiguous() for x_E in models]
        addresses = np.array([x_E.data_ptr() for x_E in models], dtype=np.int64)
        ground, n = self._ground(inputs.shape[1:]), len(inputs)
        plan, each = ground.plan, ground.plan.samples
        logits = torch.empty(len(models), n, plan.classes)
        chunks = slices(-(-n // each), self._threads(plan.flops * n * len(models)))
        laid_out, step = self._lay_out(plan, inputs, chunks)

        def work(thread: int, part: tuple[slice, slice]) -> None:
            some, part_of_inputs = part
            first = part_of_inputs.start * each
            self._library.parley_predict(
                plan.graph,
                some.stop - some.start,
                addresses[some].ctypes.data,
                laid_out + part_of_inputs.start * step,
                min(n, part_of_inputs.stop * each) - first,
                logits[some, first:].data_ptr(),
                logits.stride(0),
                ground.workspaces[thread].data_ptr(),
            )

        if len(models) < len(chunks):
            self.crew.share(work, [(slice(0, len(models)), part) for part in chunks])
        elif chunks:
            everything = slice(0, chunks[-1].stop)
            parts = slices(len(models), len(chunks))
            self.crew.share(work, [(some, everything) for some in parts])
        return logits.view(len(models), n, *plan.answer)

    def _lay_out(self, plan: Plan, inputs: Tensor, chunks: list[slice]) -> tuple[int, int]:
        """Writes inputs in the kernels' layout, each thread some of the chunks; where they begin,
        and how many bytes a chunk has."""
        inputs = inputs.detach().float().contiguous()
        floats = self._library.parley_converted(plan.graph, 1)
        wanted = chunks[-1].stop * floats if chunks else 0
        if len(self._laid_out) < wanted:
            self._laid_out = zeros(wanted)
        at = self._laid_out.data_ptr()

        def work(thread: int, part: slice) -> None:
            some = inputs[part.start * plan.samples : part.stop * plan.samples]
            count = np.array([len(some)], dtype=np.int64)
            to = at + 4 * floats * part.start
            address = some.data_ptr()
            self._library.parley_convert(plan.graph, 1, address, 0, count.ctypes.data, to, 0)

        self.crew.share(work, chunks)
        return at, 4 * floats

    def _ground(self, shape: Sequence[int], samples: int | None = None) -> "_Ground":
        """The network for inputs of this shape, with its workspaces: for training on batches of so
        many samples, or for use."""
        key = (tuple(shape), samples is not None)
        known = self._plans.get(key)
        if known is None or (known.plan.couples and (samples or 0) > known.plan.samples):
            plan = self._plan(tuple(shape), samples)
            workspaces = [zeros(plan.vectors * kernels.lanes()) for _ in range(self.crew.size)]
            self._plans[key] = _Ground(plan, workspaces)
        return self._plans[key]

    def _plan(self, shape: tuple[int, ...], samples: int | None) -> Plan:
        try:
            network = _traced(self.task).read(shape)
            loss = loss_of(self.task).of(network.answer[0])
        except Unsupported as error:
            raise BadValue("engine", "fused", "loop, auto", because=str(error)) from None
        ends = np.cumsum((0, *self.task.sizes)).tolist()
        offsets = dict(zip(self.task.names, ends, strict=False))
        frozen = {
            name: p.detach().contiguous()
            for name, p in self.task.model.named_parameters()
            if name not in offsets
        }
        parameters = Parameters(offsets, self.task.size, frozen, self.task.layout.offsets)
        vectors = VECTORS
        if samples is not None and network.couples:
            vectors = -(-samples // kernels.lanes())
        return Plan(network, parameters, vectors, loss, samples is not None)

    def _ready(self, batch: Batch) -> "_Ready":
        """The batch as the kernels take it, checked: they trust what they are given, and nothing
        may point outside its memory.

        Kept until the next batch: an agent's batch serves its own gradient and those of its
        neighbours' models.
        """
        now = (batch.inputs, batch.inputs._version, batch.targets, batch.targets._version)
        kept = self._kept
        if kept is not None and kept.is_of(now, batch.sizes):
            return kept
        ground = self._ground(batch.inputs.shape[2:], max(batch.sizes))
        graph = ground.plan.graph
        if batch.inputs.dtype != torch.float32:
            raise ValueError(f"inputs of {batch.inputs.dtype}, not float32")
        if max(batch.sizes) > batch.inputs.shape[1]:
            raise ValueError(f"a batch of {max(batch.sizes)} in {batch.inputs.shape[1]} samples")
        if min(batch.sizes) < ground.plan.fewest:
            raise ValueError("a batch of one sample, of which BatchNorm cannot make statistics")
        inputs, targets = batch.inputs.contiguous(), _targets(batch, ground.plan)
        size_R = np.asarray(batch.sizes, dtype=np.int64)
        floats = self._library.parley_converted(graph, inputs.shape[1])
        again = kept is not None and len(kept.memory) >= len(inputs) * floats
        memory = kept.memory if kept is not None and again else zeros(len(inputs) * floats)
        self._library.parley_convert(
            graph,
            len(inputs),
            inputs.data_ptr(),
            inputs.stride(0),
            size_R.ctypes.data,
            memory.data_ptr(),
            floats,
        )
        row_R = np.arange(len(inputs))
        inputs_R = memory.data_ptr() + 4 * floats * row_R
        targets_R = targets.data_ptr() + targets.element_size() * targets.stride(0) * row_R
        of_rows = (inputs_R, targets_R, size_R)
        self._kept = _Ready(ground, now, batch.sizes, memory, targets, of_rows)
        return self._kept


def _targets(batch: Batch, plan: Plan) -> Tensor:
    """Classes, or a number for every output, as the kernels take them."""
    if plan.loss != LossKind.CROSS_ENTROPY:
        rows, samples = batch.targets.shape[:2]
        if batch.targets.numel() != rows * samples * plan.classes:
            shape = list(batch.targets.shape[2:])
            raise BadValue("data", shape, f"targets of {plan.classes} numbers for each sample")
        return batch.targets.float().reshape(rows, samples * plan.classes).contiguous()
    if batch.targets.is_floating_point() or batch.targets.ndim != 2:
        shape = list(batch.targets.shape[2:])
        found = f"{batch.targets.dtype} of shape {shape}"
        raise BadValue("data", found, "a class, a whole number, for each sample")
    targets = batch.targets.long().contiguous()
    least, most = map(int, targets.aminmax()) if targets.numel() else (0, 0)
    if not 0 <= least <= most < plan.classes:
        wrong = least if least < 0 else most
        raise BadValue("data", wrong, f"targets from 0 to {plan.classes - 1}")
    return targets


class _Ground(NamedTuple):
    """A plan, and memory for it, for every thread."""

    plan: Plan
    workspaces: list[Tensor]


class _Ready(NamedTuple):
    """A batch as the kernels take it."""

    ground: _Ground
    of: tuple[Tensor, int, Tensor, int]
    """Inputs and targets, each with the version they had."""
    sizes: tuple[int, ...]
    memory: Tensor
    """The inputs of all rows in the kernels' layout."""
    targets: Tensor
    of_rows: tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]
    """Addresses of each row's inputs and targets, and its number of samples."""

    def is_of(self, now: tuple[Tensor, int, Tensor, int], sizes: tuple[int, ...]) -> bool:
        """Whether this is still that batch."""
        inputs, version, targets, targets_version = self.of
        same = inputs is now[0] and targets is now[2]
        return same and (version, targets_version) == now[1::2] and self.sizes == sizes

    def checked(self, row_P: NDArray[np.int64]) -> NDArray[np.int64]:
        """The same rows, of which each has to be there."""
        if len(row_P) and not (row_P.min() >= 0 and row_P.max() < len(self.sizes)):
            raise IndexError(f"rows {row_P.min()} to {row_P.max()} of {len(self.sizes)}")
        return row_P


class _Seen(NamedTuple):
    """What layers have seen of a batch while gradients of the agents' own models were computed."""

    of: _Ready
    x_PD: Tensor
    """The models: a copy, as steps may change them in their place."""
    rows: tuple[int, ...]
    b_PS: Tensor
    """Means and variances of the batches."""
