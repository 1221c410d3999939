"""The operations that the compiled kernels know: one table.

Names and options of operations are in `kernels/interface.py`; here is what the planner has to know:
what a backward pass has to see again, and how many floating-point operations there are. The shape
of a result is PyTorch's own answer: the reader runs every layer once on a few random inputs.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Literal, NamedTuple

from parley.compute.kernels.interface import (
    ActivationOptions,
    ConvolutionOptions,
    Curve,
    Options,
    Parameter,
)

Shape = tuple[int, int, int]
"""Channels, rows and columns of a feature map; features are a map of one pixel."""

Operand = Literal["first", "second", "result"]


@dataclass(frozen=True)
class Step:
    """One operation of a network, as it was read."""

    operation: str
    layer: str
    """Where it stands in the model: a path and a type."""
    inputs: tuple[int, ...]
    """Numbers of the values that it takes, one or two; the network's input is number 0."""
    shapes: tuple[Shape, ...]
    """Of the inputs, then of the result."""
    parameters: Mapping[Parameter, str] = field(default_factory=dict)
    """Their names in the model."""
    options: Options | None = None
    statistics: tuple[str, ...] = ()
    """Names of the running ones that it follows: a mean and a variance."""

    @property
    def result(self) -> Shape:
        """The shape of what it gives."""
        return self.shapes[-1]


class Operation(NamedTuple):
    """What the planner has to know."""

    keeps: Callable[[Step], frozenset[Operand]]
    """The values that its backward pass reads."""
    flops: Callable[[Step], int]
    """Of a forward pass for one sample; backward takes twice as many."""
    in_place: bool = False
    """Whether a result may be written where the first input was."""
    couples: bool = False
    """Whether in training a sample's result depends on the others of its batch."""


def _keeps(*names: Operand) -> Callable[[Step], frozenset[Operand]]:
    kept = frozenset(names)
    return lambda step: kept


def _one_each(step: Step) -> int:
    return prod(step.result)


def _products(step: Step) -> int:
    assert isinstance(step.options, ConvolutionOptions)
    inputs = step.shapes[0][0] // step.options.groups * prod(step.options.kernel)
    windows = 4 if step.options.pooled else 1
    return 2 * prod(step.result) * windows * inputs


def _activation_keeps(step: Step) -> frozenset[Operand]:
    assert isinstance(step.options, ActivationOptions)
    curve = step.options.curve
    if curve == Curve.AFFINE:
        return frozenset()
    return frozenset(("result" if curve <= Curve.LAST_FROM_RESULT else "first",))


OPERATIONS: dict[str, Operation] = {
    "convolution": Operation(_keeps("first"), _products),
    "norm": Operation(_keeps("first"), lambda step: 8 * prod(step.result), in_place=True),
    "activation": Operation(_activation_keeps, _one_each, in_place=True),
    "max_pool": Operation(_keeps(), lambda step: prod(step.shapes[0])),
    "mean_pool": Operation(_keeps(), lambda step: prod(step.shapes[0])),
    "addition": Operation(_keeps(), _one_each, in_place=True),
    "product": Operation(_keeps("first", "second"), _one_each),
    "concatenation": Operation(_keeps(), lambda step: 0),
    "reshape": Operation(_keeps(), lambda step: 0),
    "masking": Operation(_keeps(), _one_each, in_place=True),
    "batch_norm": Operation(
        _keeps("first"), lambda step: 8 * prod(step.result), in_place=True, couples=True
    ),
}
