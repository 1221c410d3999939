"""Gradients of networks by compiled kernels, without autograd.

Axes: P pairs of a model and a batch, D flat parameters, A hosted agents, B samples of a batch.

The model is read once (`reader.py`) into a list of operations on feature maps, and laid out in
memory once for each shape of inputs (`planner.py`). One call then computes all pairs: forward and
backward over one preallocated workspace, each parameter's gradient where it belongs in `g_PD`.
`kernels/graph.h` says how.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from parley.compute import kernels
from parley.compute.engine import Engine, Pairs, Share, dropout_seed
from parley.compute.layers import Unsupported
from parley.compute.losses import Deviation, EachLabel, YesOrNo
from parley.compute.planner import (
    BINARY_CROSS_ENTROPY,
    CROSS_ENTROPY,
    SQUARED_ERROR,
    Loss,
    Parameters,
    Plan,
)
from parley.compute.reader import Traced
from parley.compute.task import Task, cross_entropy
from parley.data import Batch
from parley.errors import BadValue

VECTORS = 2
"""Vectors of samples that pass through a network together. A tile of six channels by two vectors
fills the registers, and what passes between two layers is half as large as with four."""
WORTH_A_THREAD = 5e8
"""Floating-point operations from which on a call is shared out among threads, some milliseconds:
with less, waking them costs more than they give."""


def supports(task: Task, shape: tuple[int, ...] | None = None) -> str:
    """Why the kernels cannot compute this task's gradients; empty if they can.

    Given the shape of an input, all of it is checked, else what can be known without. Whether there
    are kernels on this machine is another question: `kernels.available()`.

    >>> supports(Task(nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3))))
    ''
    >>> supports(Task(nn.Sequential(nn.Linear(8, 4), nn.Softplus(), nn.Linear(4, 2))))
    'layer 1 (Softplus) is not one that the kernels know'
    """
    try:
        read = _read(task)
        if shape is not None:
            read.read(tuple(shape))
    except Unsupported as error:
        return str(error)
    return ""


_READ: "WeakKeyDictionary[Task, Traced]" = WeakKeyDictionary()


def _read(task: Task) -> Traced:
    """The task's model, followed once."""
    _loss(task)
    if task.dtype != torch.float32 or task.start().device.type != "cpu":
        raise Unsupported("the kernels compute in float32 on a CPU")
    if task not in _READ:
        _READ[task] = Traced(task.model)
    return _READ[task]


def _loss(task: Task) -> Loss:
    loss = task.loss
    if loss is cross_entropy:
        return Loss()
    if getattr(loss, "reduction", "") == "none":
        if type(loss) is nn.CrossEntropyLoss and loss.ignore_index < 0:
            return Loss(CROSS_ENTROPY, loss.label_smoothing, _numbers(loss.weight))
        if type(loss) is nn.BCEWithLogitsLoss and loss.weight is None:
            return Loss(BINARY_CROSS_ENTROPY, 0.0, _numbers(loss.pos_weight))
        if type(loss) is nn.MSELoss:
            return Loss(SQUARED_ERROR)
    if isinstance(loss, EachLabel):
        return Loss(BINARY_CROSS_ENTROPY, loss.settings.smoothing, loss.settings.weights or None)
    if isinstance(loss, YesOrNo) and task.scores == 1 and not loss.settings.weights:
        return Loss(BINARY_CROSS_ENTROPY, loss.settings.smoothing)
    if loss == Deviation("mse"):
        return Loss(SQUARED_ERROR)
    raise Unsupported("the loss is not cross-entropy, binary cross-entropy or the squared error")


def _numbers(weights: Tensor | None) -> tuple[float, ...] | None:
    return None if weights is None else tuple(weights.flatten().tolist())


class FusedEngine(Engine):
    """Compiled forward and backward passes, one pair after the other in each of its threads.

    No two threads write to the same memory, and each adds in the order in which one alone would:
    the numbers do not depend on how many there are.
    """

    same_in_any_company = True

    def __init__(self, task: Task, seed: int = 0, threads: int = 1) -> None:
        super().__init__(task, seed, threads)
        if why := supports(task) or kernels.reason():
            raise BadValue("engine", "fused", "loop, vmap", because=why)
        self._library = kernels.library()
        self._plans: dict[tuple[int, ...], _Ground] = {}
        self._kept: _Ready | None = None
        self._sums: _Sums | None = None
        self._one_gradient = [_zeros(task.size) for _ in range(threads)]

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
                ready.ground.workspaces[thread].data_ptr(),
            )

        if plan.masks:  # drawn for one pair at a time: those of all would fill the memory
            for p, (row, owner) in enumerate(zip(rows, owners, strict=True)):
                drawn = self._masks(plan, batch, row, owner)
                addresses = np.array([mask.data_ptr() for mask in drawn], dtype=np.int64)
                of_pair = np.array([addresses.ctypes.data], dtype=np.int64)
                work(0, slice(p, p + 1), of_pair.ctypes.data)
            return loss_P, g_PD
        flops = 3 * plan.flops * int(size_P.sum())
        self.crew.share(work, _slices(len(rows), self._threads(flops)))
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
            self._sums = _Sums.of_shares(pairs, shares, threads)
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

        def work(thread: int, part: _Part) -> None:
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

    def predict(self, x_D: Tensor, inputs: Tensor) -> Tensor:
        """What the model with parameters `x_D` answers to inputs [n, ...]: logits [n, classes]."""
        ground = self._ground(inputs.shape[1:])
        if x_D.shape != (self.task.size,):
            raise ValueError(f"a model of shape {tuple(x_D.shape)}, not ({self.task.size},)")
        x_D, inputs = (t.detach().float().contiguous() for t in (x_D, inputs))
        logits = torch.empty(len(inputs), ground.plan.classes)

        def work(thread: int, part: slice) -> None:
            self._library.parley_predict(
                ground.plan.graph,
                x_D.data_ptr(),
                inputs[part].data_ptr(),
                part.stop - part.start,
                logits[part].data_ptr(),
                ground.chunks[thread].data_ptr(),
                ground.workspaces[thread].data_ptr(),
            )

        self.crew.share(work, _slices(len(inputs), self._threads(ground.plan.flops * len(inputs))))
        return logits

    def _ground(self, shape: Sequence[int]) -> "_Ground":
        """The network for inputs of this shape, with its workspaces."""
        key = tuple(shape)
        if key not in self._plans:
            plan = self._plan(key)
            lanes = kernels.lanes()
            floats = self._library.parley_converted(plan.graph, 1)
            crew = range(self.crew.size)
            workspaces = [_zeros(plan.vectors * lanes) for _ in crew]
            self._plans[key] = _Ground(plan, workspaces, [_zeros(floats) for _ in crew])
        return self._plans[key]

    def _plan(self, shape: tuple[int, ...]) -> Plan:
        try:
            network = _read(self.task).read(shape)
        except Unsupported as error:
            raise BadValue("engine", "fused", "loop, vmap", because=str(error)) from None
        ends = np.cumsum((0, *self.task.sizes)).tolist()
        offsets = dict(zip(self.task.names, ends, strict=False))
        frozen = {
            name: p.detach().contiguous()
            for name, p in self.task.model.named_parameters()
            if name not in offsets
        }
        parameters = Parameters(offsets, self.task.size, frozen)
        return Plan(network, parameters, VECTORS, _loss(self.task))

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
        ground = self._ground(batch.inputs.shape[2:])
        graph = ground.plan.graph
        if batch.inputs.dtype != torch.float32:
            raise ValueError(f"inputs of {batch.inputs.dtype}, not float32")
        if max(batch.sizes) > batch.inputs.shape[1]:
            raise ValueError(f"a batch of {max(batch.sizes)} in {batch.inputs.shape[1]} samples")
        inputs, targets = batch.inputs.contiguous(), _targets(batch, ground.plan)
        size_R = np.asarray(batch.sizes, dtype=np.int64)
        floats = self._library.parley_converted(graph, inputs.shape[1])
        again = kept is not None and kept.of[0].shape == batch.inputs.shape
        memory = kept.memory if kept is not None and again else _zeros(len(inputs) * floats)
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
    if plan.loss != CROSS_ENTROPY:
        rows, samples = batch.targets.shape[:2]
        if batch.targets.numel() != rows * samples * plan.classes:
            shape = list(batch.targets.shape[2:])
            raise BadValue("data", shape, f"targets of {plan.classes} numbers for each sample")
        return batch.targets.float().reshape(rows, samples * plan.classes).contiguous()
    targets = batch.targets.long().contiguous()
    least, most = map(int, targets.aminmax()) if targets.numel() else (0, 0)
    if not 0 <= least <= most < plan.classes:
        raise BadValue("data", most, f"targets from 0 to {plan.classes - 1}")
    return targets


class _Ground(NamedTuple):
    """A plan, and memory for it: one of each kind for every thread."""

    plan: Plan
    workspaces: list[Tensor]
    chunks: list[Tensor]
    """Room for a chunk of converted inputs."""


class _Part(NamedTuple):
    """What one thread adds up."""

    model_P: NDArray[np.int64]
    row_P: NDArray[np.int64]
    target_SP: NDArray[np.int64]
    weight_SP: NDArray[np.float32]


class _Sums(NamedTuple):
    """What is added to what, as the kernels take it: the same in every step."""

    of: tuple[Pairs, Sequence[Share], int]
    parts: list[_Part]
    last_model: int
    last_targets: list[int]
    """Of each share."""

    @classmethod
    def of_shares(cls, pairs: Pairs, shares: Sequence[Share], threads: int) -> "_Sums":
        model_P, row_P = pairs.models.numpy(), pairs.rows.numpy()
        target_SP = np.stack([share.target_P.numpy() for share in shares])
        weight_SP = np.stack([share.weight_P.float().numpy() for share in shares])
        for index in (model_P, target_SP):
            if index.size and index.min() < 0:
                raise IndexError(f"row {index.min()}")
        chosen = _by_target(target_SP[0], threads)
        parts = [
            _Part(model_P[p], row_P[p], target_SP[:, p].copy(), weight_SP[:, p].copy())
            for p in chosen
        ]
        last_model, *last_targets = (int(i.max(initial=-1)) for i in (model_P, *target_SP))
        return cls((pairs, shares, threads), parts, last_model, last_targets)

    def is_of(self, pairs: Pairs, shares: Sequence[Share], threads: int) -> bool:
        return self.of[0] is pairs and self.of[1] is shares and self.of[2] == threads


def _by_target(target_P: NDArray[np.int64], parts: int) -> list[NDArray[np.int64]]:
    """Pairs in parts of about the same size, all pairs of a target in the same one, in order."""
    order = np.argsort(target_P, kind="stable")
    sorted_P = target_P[order]
    middle = [len(order) * k // parts for k in range(1, parts) if len(order)]
    cuts = np.searchsorted(sorted_P, sorted_P[middle])
    return [np.sort(part) for part in np.split(order, cuts) if len(part)]


def _slices(n: int, parts: int) -> list[slice]:
    """0 to n in so many parts of about the same size, or fewer where n is small."""
    cuts = [n * k // parts for k in range(parts + 1)]
    return [slice(a, b) for a, b in pairwise(cuts) if a < b]


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


def _zeros(floats: int) -> Tensor:
    """Zeroed memory that begins on a cache line."""
    memory = torch.zeros(floats + 16)
    return memory[-(memory.data_ptr() // 4) % 16 :]
