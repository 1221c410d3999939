"""Gradients of convolutional networks by compiled kernels, without autograd.

Axes: P pairs of a model and a batch, D flat parameters, A hosted agents, B samples of a batch.

For models that are a sequence of stages (convolution, then ReLU or EvoNorm, then 2 x 2 max-pool;
the last two optional) followed by dense layers, with cross-entropy. One call computes all pairs:
forward and backward over one preallocated workspace, each parameter's gradient written where it
belongs in `g_PD`. `kernels/kernels.c` says how; here the model is described to it.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from math import prod
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from parley.compute import kernels
from parley.compute.engine import Engine, Pairs, Share
from parley.compute.kernels import Dense, Net, Stage
from parley.compute.task import Task, cross_entropy
from parley.data import Batch
from parley.errors import BadValue
from parley.models import EvoNorm

CHUNK = 32
"""Samples that pass through a network together: few enough for the second cache."""
WORTH_A_THREAD = 5e8
"""Floating-point operations from which on a call is shared out among threads, some milliseconds:
with less, waking them costs more than they give."""


class _Unsupported(Exception):
    """What about a model the kernels cannot do."""


def supports(task: Task) -> str:
    """Why the kernels cannot compute this task's gradients; empty if they can.

    Whether there are kernels on this machine is another question: `kernels.available()`.

    >>> supports(Task(nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3))))
    ''
    >>> supports(Task(nn.Sequential(nn.Linear(8, 4), nn.Tanh(), nn.Linear(4, 2))))
    'layer 1 (Tanh) is not one that the kernels know'
    """
    try:
        _describe(task)
    except _Unsupported as error:
        return str(error)
    return ""


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
        self._layers = _describe(task)
        self._library = kernels.library()
        self._plans: dict[tuple[int, ...], _Plan] = {}
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

        def work(thread: int, part: slice) -> None:
            self._library.parley_gradients(
                ready.plan.net,
                part.stop - part.start,
                x_PD[part].data_ptr(),
                x_PD.stride(0),
                inputs_P[part].ctypes.data,
                targets_P[part].ctypes.data,
                size_P[part].ctypes.data,
                loss_P[part].data_ptr(),
                g_PD[part].data_ptr(),
                g_PD.stride(0),
                ready.plan.workspaces[thread].data_ptr(),
            )

        flops = 3 * ready.plan.flops * int(size_P.sum())
        self.crew.share(work, _slices(len(rows), self._threads(flops)))
        return loss_P, g_PD

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
        threads = self._threads(3 * ready.plan.flops * samples)
        if threads > 1 and len(shares) > 1:
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
                ready.plan.net,
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
                ready.plan.workspaces[thread].data_ptr(),
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
        plan = self._plan(inputs.shape[1:])
        if x_D.shape != (self.task.size,):
            raise ValueError(f"a model of shape {tuple(x_D.shape)}, not ({self.task.size},)")
        x_D, inputs = (t.detach().float().contiguous() for t in (x_D, inputs))
        logits = torch.empty(len(inputs), plan.net.dense[plan.net.denses - 1].outputs)

        def work(thread: int, part: slice) -> None:
            self._library.parley_predict(
                plan.net,
                x_D.data_ptr(),
                inputs[part].data_ptr(),
                part.stop - part.start,
                logits[part].data_ptr(),
                plan.workspaces[thread].data_ptr(),
            )

        self.crew.share(work, _slices(len(inputs), self._threads(plan.flops * len(inputs))))
        return logits

    def _plan(self, shape: Sequence[int]) -> "_Plan":
        """The network for inputs of this shape, with its workspace."""
        key = tuple(shape)
        if key not in self._plans:
            try:
                net = _network(self.task, self._layers, key)
            except _Unsupported as error:
                raise BadValue("engine", "fused", "loop, vmap", because=str(error)) from None
            floats = self._library.parley_workspace(net) // 4
            workspaces = [_zeros(floats) for _ in range(self.crew.size)]
            self._plans[key] = _Plan(net, workspaces, _flops(net))
        return self._plans[key]

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
        plan = self._plan(batch.inputs.shape[2:])
        if batch.inputs.dtype != torch.float32:
            raise ValueError(f"inputs of {batch.inputs.dtype}, not float32")
        if max(batch.sizes) > batch.inputs.shape[1]:
            raise ValueError(f"a batch of {max(batch.sizes)} in {batch.inputs.shape[1]} samples")
        inputs, targets = batch.inputs.contiguous(), batch.targets.long().contiguous()
        classes = plan.net.dense[plan.net.denses - 1].outputs
        least, most = map(int, targets.aminmax()) if targets.numel() else (0, 0)
        if not 0 <= least <= most < classes:
            raise BadValue("data", most, f"targets from 0 to {classes - 1}")
        size_R = np.asarray(batch.sizes, dtype=np.int64)
        floats = self._library.parley_converted(plan.net, inputs.shape[1])
        # Halos stay zero from one batch to the next, so the memory can be used again.
        again = kept is not None and kept.of[0].shape == batch.inputs.shape
        memory = kept.memory if kept is not None and again else _zeros(len(inputs) * floats)
        self._library.parley_convert(
            plan.net,
            len(inputs),
            inputs.data_ptr(),
            inputs.stride(0),
            size_R.ctypes.data,
            memory.data_ptr(),
            floats,
        )
        row_R = np.arange(len(inputs))
        inputs_R = memory.data_ptr() + 4 * floats * row_R
        targets_R = targets.data_ptr() + 8 * targets.stride(0) * row_R
        of_rows = (inputs_R, targets_R, size_R)
        self._kept = _Ready(plan, now, batch.sizes, memory, targets, of_rows)
        return self._kept


class _Plan(NamedTuple):
    net: Net
    workspaces: list[Tensor]
    """One for each thread."""
    flops: int
    """Operations of a forward pass for one sample; a gradient takes three times as many."""


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

    plan: _Plan
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


def _describe(task: Task) -> list[Stage | Dense]:
    """The model's stages and dense layers; sizes that depend on the inputs are still missing."""
    if task.loss is not cross_entropy:
        raise _Unsupported("the loss is not cross-entropy")
    if task.dtype != torch.float32 or task.start().device.type != "cpu":
        raise _Unsupported("the kernels compute in float32 on a CPU")
    sizes = dict(zip(task.names, task.sizes, strict=True))
    offsets: dict[int, int] = {}
    for name, parameter in task.model.named_parameters():
        if name not in sizes:
            raise _Unsupported(f"the parameter {name!r} is frozen")
        offsets[id(parameter)] = sum(sizes[n] for n in task.names[: task.names.index(name)])

    def offset(parameter: Tensor | None) -> int:
        return -1 if parameter is None else offsets[id(parameter)]

    layers: list[Stage | Dense] = []
    used: set[int] = set()
    flat = False
    for name, layer in _leaves(task.model):
        here = f"layer {name} ({type(layer).__name__})"
        last = layers[-1] if layers else None
        if used & {id(p) for p in layer.parameters()}:
            raise _Unsupported(f"{here} shares its parameters with another")
        used |= {id(p) for p in layer.parameters()}
        if layer._forward_hooks or layer._forward_pre_hooks:
            raise _Unsupported(f"{here} has hooks")
        if type(layer) is nn.Conv2d:
            if flat:
                raise _Unsupported(f"{here} comes after a flat layer")
            layers.append(_convolution(layer, here, offset))
        elif type(layer) is nn.ReLU:
            if isinstance(last, Dense):
                last.relu = 1
            elif last is not None and last.activation in (kernels.NONE, kernels.RELU):
                last.activation = kernels.RELU  # before or after the pool: the same
            else:
                raise _Unsupported(f"{here} does not follow a convolution or a linear layer")
        elif type(layer) is EvoNorm:
            if not isinstance(last, Stage) or flat or last.activation or last.pool:
                raise _Unsupported(f"{here} does not follow a convolution")
            last.activation = kernels.HARD_SWISH if layer.v is None else kernels.S0
            last.groups, last.eps = layer.groups, layer.eps
            last.gamma, last.beta, last.v = map(offset, (layer.gamma, layer.beta, layer.v))
        elif type(layer) is nn.MaxPool2d:
            if not isinstance(last, Stage) or flat or last.pool:
                raise _Unsupported(f"{here} does not follow a convolution or its activation")
            if not _halves(layer):
                raise _Unsupported(f"{here} is not a plain 2 x 2 pool")
            last.pool = 1
        elif type(layer) is nn.Flatten:
            if (layer.start_dim, layer.end_dim) != (1, -1):
                raise _Unsupported(f"{here} does not flatten all of a sample")
            flat = True
        elif type(layer) is nn.Linear:
            if isinstance(last, Stage) and not flat:
                raise _Unsupported(f"{here} comes before the maps are flattened")
            flat = True
            layers.append(
                Dense(
                    inputs=layer.in_features,
                    outputs=layer.out_features,
                    weight=offset(layer.weight),
                    bias=offset(layer.bias),
                )
            )
        elif type(layer) is not nn.Identity:
            raise _Unsupported(f"{here} is not one that the kernels know")
    if not layers or isinstance(layers[-1], Stage):
        raise _Unsupported("the last layer is not a linear one")
    if len(layers) > kernels.MOST:
        raise _Unsupported(f"the model has more than {kernels.MOST} layers with weights")
    return layers


def _leaves(model: nn.Module, path: str = "") -> Iterator[tuple[str, nn.Module]]:
    """The layers of nested sequences, in the order in which they are applied."""
    if type(model) is not nn.Sequential:
        yield path or "(the model)", model
        return
    for name, layer in model._modules.items():  # named_children leaves repeated layers out
        assert layer is not None
        yield from _leaves(layer, f"{path}.{name}" if path else name)


def _convolution(layer: nn.Conv2d, here: str, offset: Callable[[Tensor | None], int]) -> Stage:
    if (layer.stride, layer.dilation, layer.groups) != ((1, 1), (1, 1), 1):
        raise _Unsupported(f"{here} has a stride, dilation or groups")
    if layer.padding_mode != "zeros" or isinstance(layer.padding, str):
        raise _Unsupported(f"{here} does not pad with a given number of zeros")
    kernel_h, kernel_w = layer.kernel_size
    pad_h, pad_w = layer.padding
    if pad_h >= kernel_h or pad_w >= kernel_w:
        raise _Unsupported(f"{here} pads by more than its kernel reaches")
    return Stage(
        inputs=layer.in_channels,
        outputs=layer.out_channels,
        kernel_h=kernel_h,
        kernel_w=kernel_w,
        pad_h=pad_h,
        pad_w=pad_w,
        groups=1,
        weight=offset(layer.weight),
        bias=offset(layer.bias),
    )


def _halves(layer: nn.MaxPool2d) -> bool:
    def is_all(value: int | tuple[int, ...], wanted: int) -> bool:
        return value == wanted or value == (wanted, wanted)

    return (
        is_all(layer.kernel_size, 2)
        and is_all(layer.stride, 2)
        and is_all(layer.padding, 0)
        and is_all(layer.dilation, 1)
        and not layer.ceil_mode
        and not layer.return_indices
    )


def _network(task: Task, layers: Sequence[Stage | Dense], shape: tuple[int, ...]) -> Net:
    """The model for inputs of this shape, each layer's size filled in."""
    net = Net(parameters=task.size, inputs=prod(shape), chunk=CHUNK // kernels.lanes())
    flowing = shape
    for layer in layers:
        if isinstance(layer, Stage):
            if len(flowing) != 3 or flowing[0] != layer.inputs:
                raise _Unsupported(f"inputs {shape} do not fit the model's convolutions")
            _, layer.height, layer.width = flowing
            rows = layer.height + 2 * layer.pad_h - layer.kernel_h + 1
            columns = layer.width + 2 * layer.pad_w - layer.kernel_w + 1
            if layer.pool:
                rows, columns = rows // 2, columns // 2
            if rows < 1 or columns < 1:
                raise _Unsupported(f"inputs {shape} are too small for the model")
            net.stage[net.stages] = layer
            net.stages += 1
            flowing = (layer.outputs, rows, columns)
        else:
            if prod(flowing) != layer.inputs:
                raise _Unsupported(f"inputs {shape} do not fit the model's linear layers")
            net.dense[net.denses] = layer
            net.denses += 1
            flowing = (layer.outputs,)
    return net


def _flops(net: Net) -> int:
    """Floating-point operations of convolutions and dense layers for one sample."""
    products = 0
    for stage in net.stage[: net.stages]:
        rows = stage.height + 2 * stage.pad_h - stage.kernel_h + 1
        columns = stage.width + 2 * stage.pad_w - stage.kernel_w + 1
        kernel = stage.inputs * stage.kernel_h * stage.kernel_w
        products += rows * columns * stage.outputs * kernel
    products += sum(dense.inputs * dense.outputs for dense in net.dense[: net.denses])
    return int(2 * products)
