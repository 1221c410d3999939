"""The operations that the compiled kernels know: one table.

Each has a kind (its place in the table of `kernels/graph.c`), what its backward pass has to see
again, and its floating-point operations. The shape of a result is PyTorch's own answer: the reader
runs every layer once on a few random inputs. A new operation is one entry here, one reader in
`layers.py`, one in C, and a row in `tests/compute/test_operations.py`.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from math import prod
from typing import Literal, NamedTuple

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
    parameters: tuple[str | None, ...] = ()
    """Their names in the model."""
    options: tuple[int, ...] = ()
    numbers: tuple[float, ...] = field(default=())
    statistics: tuple[str, ...] = ()
    """Names of the running ones that it follows: a mean and a variance."""

    @property
    def result(self) -> Shape:
        """The shape of what it gives."""
        return self.shapes[-1]


class Operation(NamedTuple):
    """What the planner has to know."""

    kind: int
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
    groups, kernel_h, kernel_w = step.options[:3]
    inputs = step.shapes[0][0] // groups * kernel_h * kernel_w
    windows = 4 if step.options[10:] == (1,) else 1
    return 2 * prod(step.result) * windows * inputs


FROM_RESULT = ("relu", "relu6", "sigmoid", "tanh")
"""Activations whose slope follows from their result: their input need not be kept."""
ACTIVATIONS = (
    *FROM_RESULT,
    *("leaky_relu", "gelu", "gelu_tanh", "silu", "hardswish", "hardsigmoid", "elu", "affine"),
)
"""In the order of pixelwise.c."""


def _activation_keeps(step: Step) -> frozenset[Operand]:
    name = ACTIVATIONS[step.options[0]]
    return frozenset(() if name == "affine" else ("result" if name in FROM_RESULT else "first",))


DIRECT, POINTWISE, DEPTHWISE, WINOGRAD, BY_ROWS = range(5)
"""Ways to compute a convolution, as in convolution.h; the last one may have a pool within it."""
PLAIN, EVONORM_HARD_SWISH, EVONORM_S0 = range(3)
"""Norms, as in norms.c."""

OPERATIONS: dict[str, Operation] = {
    "convolution": Operation(0, _keeps("first"), _products),
    "norm": Operation(1, _keeps("first"), lambda step: 8 * prod(step.result), in_place=True),
    "activation": Operation(2, _activation_keeps, _one_each, in_place=True),
    "max_pool": Operation(3, _keeps(), lambda step: prod(step.shapes[0])),
    "mean_pool": Operation(4, _keeps(), lambda step: prod(step.shapes[0])),
    "addition": Operation(5, _keeps(), _one_each, in_place=True),
    "product": Operation(6, _keeps("first", "second"), _one_each),
    "concatenation": Operation(7, _keeps(), lambda step: 0),
    "reshape": Operation(8, _keeps(), lambda step: 0),
    "masking": Operation(9, _keeps(), _one_each, in_place=True),
    "batch_norm": Operation(
        10, _keeps("first"), lambda step: 8 * prod(step.result), in_place=True, couples=True
    ),
}
