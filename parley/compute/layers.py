"""How each layer, function and method is read: the tables of `reader.py`."""

import operator
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx, nn
from torch.nn import functional

from parley.compute.convolutions import fastest
from parley.compute.kernels.interface import (
    ActivationOptions,
    BatchNormOptions,
    ConvolutionOptions,
    Curve,
    MaskingOptions,
    NormForm,
    NormOptions,
    Options,
    Pair,
    Parameter,
    PoolOptions,
)
from parley.compute.operations import Shape, Step
from parley.models import EvoNorm


class Unsupported(Exception):
    """What about a model the kernels cannot do."""


def shape_of(tensor: Tensor, where: str) -> Shape:
    """Channels, rows and columns of one sample; a single number is one feature."""
    if tensor.ndim == 1:
        return (1, 1, 1)
    if tensor.ndim == 2:
        return (int(tensor.shape[1]), 1, 1)
    if tensor.ndim == 4:
        return (int(tensor.shape[1]), int(tensor.shape[2]), int(tensor.shape[3]))
    raise Unsupported(f"{where}: a tensor of {tensor.ndim} axes is neither features nor a map")


LIKE_THE_FIRST = ("norm", "batch_norm", "activation", "addition", "product", "masking")
"""Operations whose result has the shape of their first input."""


NONE: Mapping[Parameter, Tensor | None] = {}


class Call(NamedTuple):
    """One node of the traced model, and what is known so far."""

    node: fx.Node
    layer: nn.Module | None
    where: str
    values: Mapping[fx.Node, int]
    results: Mapping[fx.Node, Any]
    names: Mapping[int, str]
    steps: list[Step]

    def argument(self, position: int, name: str, default: Any = None) -> Any:
        """An argument as the model gave it; sizes that it computed are numbers by now."""
        given = self.node.args
        found = given[position] if position < len(given) else self.node.kwargs.get(name, default)
        return fx.map_arg(found, lambda n: n if n in self.values else self.results[n])

    def takes(self, *names: str) -> None:
        """Refuses arguments of other names: they would change what is computed."""
        for name, value in self.node.kwargs.items():
            if name not in names:
                raise Unsupported(f"{self.where} has {name}={value!r}")

    def value(self, given: Any) -> tuple[int, Shape]:
        """The number and the shape of a value that is an argument."""
        if not isinstance(given, fx.Node) or given not in self.values:
            raise Unsupported(f"{self.where}: an argument is not a value of the network")
        return self.values[given], shape_of(self.results[given], self.where)

    def two(self, one: fx.Node, other: fx.Node) -> tuple[tuple[int, Shape], tuple[int, Shape]]:
        """Two values that torch does not stretch along axes that one of them lacks."""
        axes = [self.results[given].ndim for given in (one, other)]
        if axes[0] != axes[1]:
            raise Unsupported(f"{self.where} has operands of {axes[0]} and {axes[1]} axes")
        return self.value(one), self.value(other)

    def emit(
        self,
        operation: str,
        given: tuple[tuple[int, Shape], ...] = (),
        options: Options | None = None,
        parameters: Mapping[Parameter, Tensor | None] = NONE,
        result: Shape | None = None,
        statistics: tuple[str, ...] = (),
    ) -> int:
        """Adds a step; the number of its result."""
        given = given or (self.value(self.argument(0, "input")),)
        result = result or shape_of(self.results[self.node], self.where)
        if operation in LIKE_THE_FIRST and result != given[0][1]:
            raise Unsupported(f"{self.where} makes {result} of {given[0][1]}")
        names = {at: self.names[id(p)] for at, p in parameters.items() if p is not None}
        inputs, shapes = zip(*given, strict=True)
        step = Step(
            operation,
            self.where,
            inputs,
            (*shapes, result),
            names,
            options,
            statistics,
        )
        self.steps.append(step)
        return len(self.steps)


Reader = Callable[[Call], int]


def _pair(value: Any, default: Any = None) -> Pair:
    value = default if value is None else value
    if isinstance(value, int):
        return (value, value)
    first, second = value
    return (int(first), int(second))


def _convolution(call: Call) -> int:
    layer = call.layer
    assert isinstance(layer, nn.Conv2d)
    kernel, dilation = _pair(layer.kernel_size), _pair(layer.dilation)
    padding = _padding(call, layer, kernel, dilation)
    first = call.value(call.argument(0, "input"))
    method = fastest(layer, padding, first, shape_of(call.results[call.node], call.where))
    if layer.kernel_size[0] * layer.kernel_size[1] > 1024:
        raise Unsupported(f"{call.where} has a kernel of more than 1024 taps")
    stride = _pair(layer.stride)
    options = ConvolutionOptions(layer.groups, kernel, stride, padding, dilation, method)
    return call.emit("convolution", (first,), options, _weights(layer))


def _weights(layer: nn.Conv2d | nn.Linear) -> Mapping[Parameter, Tensor | None]:
    return {Parameter.WEIGHT: layer.weight, Parameter.BIAS: layer.bias}


def _scales(layer: nn.GroupNorm | nn.LayerNorm | nn.BatchNorm1d | nn.BatchNorm2d) -> Any:
    return {Parameter.GAMMA: layer.weight, Parameter.BETA: layer.bias}


def _padding(call: Call, layer: nn.Conv2d, kernel: Pair, dilation: Pair) -> Pair:
    """Zeros on either side; ``same`` gives as many where windows have a middle."""
    if layer.padding_mode != "zeros":
        raise Unsupported(f"{call.where} does not pad with zeros")
    if layer.padding == "valid":
        return (0, 0)
    if layer.padding != "same":
        return _pair(layer.padding)
    high, wide = (gap * (taps - 1) for gap, taps in zip(dilation, kernel, strict=True))
    if high % 2 or wide % 2:
        raise Unsupported(f"{call.where} pads with more zeros on one side than on the other")
    return (high // 2, wide // 2)


def _linear(call: Call) -> int:
    layer = call.layer
    assert isinstance(layer, nn.Linear)
    first = call.value(call.argument(0, "input"))
    if call.results[call.node].ndim != 2:
        raise Unsupported(f"{call.where} is not applied to flat features")
    return call.emit("convolution", (first,), ConvolutionOptions(), _weights(layer))


def _evonorm(call: Call) -> int:
    layer = call.layer
    assert isinstance(layer, EvoNorm)
    form = NormForm.EVONORM_HARD_SWISH if layer.v is None else NormForm.EVONORM_S0
    options = NormOptions(form, layer.groups, 0, layer.eps)
    places = {Parameter.GAMMA: layer.gamma, Parameter.BETA: layer.beta, Parameter.V: layer.v}
    return call.emit("norm", (), options, places)


def _group_norm(call: Call) -> int:
    layer = call.layer
    assert isinstance(layer, nn.GroupNorm)
    options = NormOptions(NormForm.PLAIN, layer.num_groups, 0, layer.eps)
    return call.emit("norm", (), options, _scales(layer))


def _layer_norm(call: Call) -> int:
    layer = call.layer
    assert isinstance(layer, nn.LayerNorm)
    if tuple(call.results[call.node].shape[1:]) != tuple(layer.normalized_shape):
        raise Unsupported(f"{call.where} does not normalise all of a sample")
    return call.emit("norm", (), NormOptions(NormForm.PLAIN, 1, 1, layer.eps), _scales(layer))


def _batch_norm(call: Call) -> int:
    layer = call.layer
    assert isinstance(layer, nn.BatchNorm1d | nn.BatchNorm2d)
    path = str(call.node.target)
    statistics = (f"{path}.running_mean", f"{path}.running_var")
    if any(step.statistics == statistics for step in call.steps):
        raise Unsupported(f"{call.where} is used twice, with one set of running statistics")
    options = BatchNormOptions(layer.eps)
    return call.emit("batch_norm", (), options, _scales(layer), statistics=statistics)


def _activation(curve: Curve, *numbers: Callable[[Call], float]) -> Reader:
    def read(call: Call) -> int:
        options = ActivationOptions(curve, *(number(call) for number in numbers))
        return call.emit("activation", (), options)

    return read


def _number(position: int, name: str, default: float) -> Callable[[Call], float]:
    """An activation's number, from its layer or its call."""

    def find(call: Call) -> float:
        if call.layer is not None:
            return float(getattr(call.layer, name))
        return float(call.argument(position, name, default))

    return find


def _gelu(call: Call) -> int:
    layer = call.layer
    kind = layer.approximate if isinstance(layer, nn.GELU) else call.argument(1, "approximate")
    return _activation(Curve.GELU_TANH if kind == "tanh" else Curve.GELU)(call)


def _affine(call: Call, scale: float, shift: float) -> int:
    given = call.argument(0, "input")
    given = given if isinstance(given, fx.Node) else call.argument(1, "other")
    options = ActivationOptions(Curve.AFFINE, scale, shift)
    return call.emit("activation", (call.value(given),), options)


def _max_pool(call: Call) -> int:
    layer = call.layer
    if isinstance(layer, nn.MaxPool2d):
        kernel, stride, padding = layer.kernel_size, layer.stride, layer.padding
        dilation, indices = layer.dilation, layer.return_indices
    else:
        kernel, stride = call.argument(1, "kernel_size"), call.argument(2, "stride")
        padding, dilation = call.argument(3, "padding", 0), call.argument(4, "dilation", 1)
        indices = call.argument(6, "return_indices", False)
    if indices:
        raise Unsupported(f"{call.where} returns the places of its maxima")
    high, wide = _pair(kernel)
    if high * wide > 255:
        raise Unsupported(f"{call.where} has windows of more than 255 values")
    geometry = ((high, wide), _pair(stride or kernel), _pair(padding), _pair(dilation))
    return call.emit("max_pool", (), PoolOptions(*geometry))


def _mean_pool(call: Call) -> int:
    layer = call.layer
    if isinstance(layer, nn.AvgPool2d):
        kernel, stride, padding = layer.kernel_size, layer.stride, layer.padding
        padded, divisor = layer.count_include_pad, layer.divisor_override
    else:
        kernel, stride = call.argument(1, "kernel_size"), call.argument(2, "stride")
        padding, padded = (
            call.argument(3, "padding", 0),
            call.argument(5, "count_include_pad", True),
        )
        divisor = call.argument(6, "divisor_override")
    geometry = (_pair(kernel), _pair(stride or kernel), _pair(padding))
    options = PoolOptions(*geometry, padded=int(padded), divisor=divisor or 0)
    return call.emit("mean_pool", (), options)


ADAPTIVE = PoolOptions(adaptive=1)


def _adaptive_max(call: Call) -> int:
    _, before = call.value(call.argument(0, "input"))
    after = shape_of(call.results[call.node], call.where)
    if (-(-before[1] // after[1]) + 1) * (-(-before[2] // after[2]) + 1) > 255:
        raise Unsupported(f"{call.where} has windows of more than 255 values")
    return call.emit("max_pool", (), ADAPTIVE)


def _mean(call: Call) -> int:
    """The mean over rows and columns."""
    given = call.argument(0, "input")
    axes = call.argument(1, "dim")
    axes = {a % 4 for a in (axes if isinstance(axes, list | tuple) else [axes]) if a is not None}
    first = call.value(given)
    if call.results[given].ndim != 4 or axes != {2, 3}:
        raise Unsupported(f"{call.where} is not over rows and columns")
    return call.emit("mean_pool", (first,), ADAPTIVE, result=(first[1][0], 1, 1))


def _two(name: str) -> Reader:
    def read(call: Call) -> int:
        one, other = call.argument(0, "input"), call.argument(1, "other")
        call.takes("input", "other")
        if not (isinstance(one, fx.Node) and isinstance(other, fx.Node)):
            number = float(other if isinstance(one, fx.Node) else one)
            return _affine(call, *((1.0, number) if name == "addition" else (number, 0.0)))
        first, second = call.two(one, other)
        if name == "product" and first[1][1:] == (1, 1) != second[1][1:]:
            first, second = second, first
        gates = name == "product" and second[1] == (first[1][0], 1, 1)
        result = shape_of(call.results[call.node], call.where)
        if result != first[1] or not (first[1] == second[1] or gates):
            raise Unsupported(f"{call.where} has operands of shapes {first[1]} and {second[1]}")
        return call.emit(name, (first, second))

    return read


def _subtraction(call: Call) -> int:
    call.takes("input", "other")
    one, other = call.argument(0, "input"), call.argument(1, "other")
    if not isinstance(one, fx.Node):
        return _affine(call, -1.0, float(one))
    if not isinstance(other, fx.Node):
        return _affine(call, 1.0, -float(other))
    first, second = call.two(one, other)
    if first[1] != second[1]:
        raise Unsupported(f"{call.where} has operands of shapes {first[1]} and {second[1]}")
    negative = call.emit("activation", (second,), ActivationOptions(Curve.AFFINE, -1.0))
    return call.emit("addition", (first, (negative, second[1])))


def _division(call: Call) -> int:
    call.takes("input", "other")
    other = call.argument(1, "other")
    if isinstance(other, fx.Node):
        raise Unsupported(f"{call.where} divides by a value")
    return _affine(call, 1.0 / float(other), 0.0)


def _concatenation(call: Call) -> int:
    parts, axis = call.argument(0, "tensors"), call.argument(1, "dim", 0)
    if axis % call.results[call.node].ndim != 1:
        raise Unsupported(f"{call.where} is not along channels")
    so_far = call.value(parts[0])
    for part in parts[1:]:
        number, shape = call.value(part)
        joined = (so_far[1][0] + shape[0], *shape[1:])
        so_far = (call.emit("concatenation", (so_far, (number, shape)), result=joined), joined)
    return so_far[0]


def _reshape(call: Call) -> int:
    """The same values, otherwise cut up: nothing to do where channels and pixels stay."""
    given = call.argument(0, "input")
    number, before = call.value(given)
    found = call.results[call.node]
    if found.shape[0] != call.results[given].shape[0]:
        raise Unsupported(f"{call.where} mixes samples")
    after = shape_of(found, call.where)
    return number if before == after else call.emit("reshape", ((number, before),))


def _squeeze(call: Call) -> int:
    axes = call.argument(1, "dim")
    axes = axes if isinstance(axes, list | tuple) else [axes]
    before = call.results[call.argument(0, "input")].ndim
    if any(axis is None or axis % before == 0 for axis in axes):
        raise Unsupported(f"{call.where} would drop the axis of samples if there were only one")
    return _reshape(call)


def _dropout(call: Call) -> int:
    """A mask of its own: the first one that is drawn has number 0."""
    layer = call.layer
    if isinstance(layer, nn.Dropout | nn.Dropout2d):
        p, whole_channels = layer.p, isinstance(layer, nn.Dropout2d)
    else:
        p, whole_channels = call.argument(1, "p", 0.5), call.node.target is functional.dropout2d
        if call.argument(3, "inplace", False):
            raise Unsupported(f"{call.where} works in place")
        if not call.argument(2, "training", True):
            return _same(call)
    if p in (0, 1):  # then torch draws nothing
        return _same(call) if not p else _affine(call, 0.0, 0.0)
    shape = shape_of(call.results[call.node], call.where)
    if whole_channels and call.results[call.node].ndim != 4:
        raise Unsupported(f"{call.where} is not applied to maps")
    which = sum(step.operation == "masking" for step in call.steps)
    # As torch does it: a mask of ones is divided by the share that is left.
    scale = float(torch.tensor(1.0) / (1 - p))
    options = MaskingOptions(which, int(whole_channels), scale, p)
    return call.emit("masking", (), options, result=shape)


def _same(call: Call) -> int:
    return call.value(call.argument(0, "input"))[0]


def _no_value(call: Call) -> int:
    raise Unsupported(f"{call.where} gives a tensor that is not a value of the network")


_relu, _relu6 = _activation(Curve.RELU), _activation(Curve.RELU6)
_leaky = _activation(Curve.LEAKY_RELU, _number(1, "negative_slope", 0.01))
_elu = _activation(Curve.ELU, _number(1, "alpha", 1.0))
_silu, _tanh = _activation(Curve.SILU), _activation(Curve.TANH)
_sigmoid = _activation(Curve.SIGMOID)
_hardswish, _hardsigmoid = _activation(Curve.HARD_SWISH), _activation(Curve.HARD_SIGMOID)
_adaptive_mean: Reader = lambda call: call.emit("mean_pool", (), ADAPTIVE)  # noqa: E731
_add, _multiply = _two("addition"), _two("product")

DROPOUTS = (functional.dropout, functional.dropout2d)
"""As functions: whether they draw anything is an argument."""

LAYERS: dict[type[nn.Module], Reader] = {
    nn.Conv2d: _convolution,
    nn.Linear: _linear,
    EvoNorm: _evonorm,
    nn.GroupNorm: _group_norm,
    nn.LayerNorm: _layer_norm,
    nn.BatchNorm1d: _batch_norm,
    nn.BatchNorm2d: _batch_norm,
    nn.ReLU: _relu,
    nn.ReLU6: _relu6,
    nn.LeakyReLU: _leaky,
    nn.ELU: _elu,
    nn.GELU: _gelu,
    nn.SiLU: _silu,
    nn.Tanh: _tanh,
    nn.Sigmoid: _sigmoid,
    nn.Hardswish: _hardswish,
    nn.Hardsigmoid: _hardsigmoid,
    nn.MaxPool2d: _max_pool,
    nn.AvgPool2d: _mean_pool,
    nn.AdaptiveAvgPool2d: _adaptive_mean,
    nn.AdaptiveMaxPool2d: _adaptive_max,
    nn.Dropout: _dropout,
    nn.Dropout2d: _dropout,
    nn.Flatten: _reshape,
    nn.Unflatten: _reshape,
    nn.Identity: _same,
}

FUNCTIONS: dict[Any, Reader] = {
    **dict.fromkeys((functional.relu, torch.relu, functional.relu_, torch.relu_), _relu),
    functional.relu6: _relu6,
    functional.leaky_relu: _leaky,
    functional.elu: _elu,
    functional.gelu: _gelu,
    functional.silu: _silu,
    **dict.fromkeys((torch.tanh, functional.tanh), _tanh),
    **dict.fromkeys((torch.sigmoid, functional.sigmoid), _sigmoid),
    functional.hardswish: _hardswish,
    functional.hardsigmoid: _hardsigmoid,
    **dict.fromkeys((functional.max_pool2d, torch.max_pool2d), _max_pool),
    functional.avg_pool2d: _mean_pool,
    **dict.fromkeys((functional.adaptive_avg_pool2d,), _adaptive_mean),
    functional.adaptive_max_pool2d: _adaptive_max,
    torch.mean: _mean,
    **dict.fromkeys((operator.add, operator.iadd, torch.add), _add),
    **dict.fromkeys((operator.mul, operator.imul, torch.mul), _multiply),
    **dict.fromkeys((operator.sub, operator.isub, torch.sub), _subtraction),
    **dict.fromkeys((operator.truediv, torch.div), _division),
    **dict.fromkeys((torch.cat, torch.concat), _concatenation),
    **dict.fromkeys((torch.flatten, torch.reshape), _reshape),
    torch.squeeze: _squeeze,
    **dict.fromkeys(DROPOUTS, _dropout),
    **dict.fromkeys((getattr, operator.getitem), _no_value),
}

METHODS: dict[str, Reader] = {
    "relu": _relu,
    "relu_": _relu,
    "tanh": _tanh,
    "sigmoid": _sigmoid,
    "mean": _mean,
    "add": _add,
    "add_": _add,
    "mul": _multiply,
    "mul_": _multiply,
    **dict.fromkeys(("view", "reshape", "flatten"), _reshape),
    "squeeze": _squeeze,
    "contiguous": _same,
    **dict.fromkeys(("size", "dim"), _no_value),
}
