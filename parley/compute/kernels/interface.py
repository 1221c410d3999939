"""What Python and C say to each other: the one description of it.

Python uses these classes as they are; `header()` says the same in C, as `interface.h`, which is
made beside the object files whenever the kernels are compiled. A compiler refuses a function whose
definition is not the one declared here.
"""

import ctypes
import re
from collections.abc import Iterable
from ctypes import POINTER, Structure, c_double, c_float, c_int, c_int64, c_void_p
from enum import IntEnum
from typing import Any, NamedTuple

NOTHING = -1
"""Where there is no parameter, no value, no gradient."""
Pair = tuple[int, int]
"""Rows and columns."""


class Method(IntEnum):
    """Ways to compute a convolution."""

    DIRECT = 0
    POINTWISE = 1
    DEPTHWISE = 2
    WINOGRAD = 3
    BY_ROWS = 4


class NormForm(IntEnum):
    """Norms of a sample by itself: GroupNorm and LayerNorm, and EvoNorm in both readings."""

    PLAIN = 0
    EVONORM_HARD_SWISH = 1
    EVONORM_S0 = 2


class Curve(IntEnum):
    """Activations. The slope of the first ones follows from their result, so that their input need
    not be kept."""

    RELU = 0
    RELU6 = 1
    SIGMOID = 2
    TANH = 3
    LAST_FROM_RESULT = TANH
    LEAKY_RELU = 4
    GELU = 5
    GELU_TANH = 6
    SILU = 7
    HARD_SWISH = 8
    HARD_SIGMOID = 9
    ELU = 10
    AFFINE = 11


class LossKind(IntEnum):
    """Losses."""

    CROSS_ENTROPY = 0
    BINARY_CROSS_ENTROPY = 1
    SQUARED_ERROR = 2


class Parameter(IntEnum):
    """Places of an operation's parameters."""

    WEIGHT = 0
    BIAS = 1
    GAMMA = WEIGHT
    BETA = BIAS
    V = 2


class Statistic(IntEnum):
    """Places of an operation's running statistics."""

    MEAN = 0
    VARIANCE = 1


class ConvolutionOptions(NamedTuple):
    """Those of a linear layer by default."""

    groups: int = 1
    kernel: Pair = (1, 1)
    stride: Pair = (1, 1)
    pad: Pair = (0, 0)
    dilation: Pair = (1, 1)
    method: int = Method.POINTWISE
    pooled: int = 0  # by rows: the result is that of a pool of 2 x 2


class NormOptions(NamedTuple):
    """A norm of each sample."""

    form: int
    groups: int
    each: int  # a gamma for every value
    eps: float


class ActivationOptions(NamedTuple):
    """An activation and its numbers."""

    curve: int
    a: float = 0.0
    b: float = 0.0


class PoolOptions(NamedTuple):
    """Windows, or as many of them as the result has places."""

    kernel: Pair = (0, 0)
    stride: Pair = (0, 0)
    pad: Pair = (0, 0)
    dilation: Pair = (1, 1)
    adaptive: int = 0
    padded: int = 0  # of a mean: zeros outside the map count
    divisor: int = 0  # of a mean, if given


class MaskingOptions(NamedTuple):
    """Dropout."""

    which: int  # its number in the order in which masks are drawn
    channels: int  # whether whole channels are dropped
    scale: float
    dropped: float


class BatchNormOptions(NamedTuple):
    """A norm over all samples of a batch."""

    eps: float


Options = (
    ConvolutionOptions
    | NormOptions
    | ActivationOptions
    | PoolOptions
    | MaskingOptions
    | BatchNormOptions
)

OPERATIONS: dict[str, type[Options] | None] = {
    "convolution": ConvolutionOptions,
    "norm": NormOptions,
    "activation": ActivationOptions,
    "max_pool": PoolOptions,
    "mean_pool": PoolOptions,
    "addition": None,
    "product": None,
    "concatenation": None,
    "reshape": None,
    "masking": MaskingOptions,
    "batch_norm": BatchNormOptions,
}
"""All of them, with their options. In C each is an `Operation` of the same name."""

KINDS = {name: kind for kind, name in enumerate(OPERATIONS)}
_C_TYPES: dict[Any, Any] = {float: c_float, Pair: c_int64 * 2}
STRUCTURES = {
    options: type(
        options.__name__,
        (Structure,),
        {"_fields_": [(n, _C_TYPES.get(t, c_int64)) for n, t in options.__annotations__.items()]},
    )
    for options in OPERATIONS.values()
    if options is not None
}


def member(options: type[Options]) -> str:
    """The options' name in a node."""
    return options.__name__.removesuffix("Options").lower()


class _Union(ctypes.Union):
    _fields_ = tuple((member(options), made) for options, made in STRUCTURES.items())


class Value(Structure):
    """A feature map, or features: then rows = columns = 1. `at` and `slope` are offsets of it and
    of its gradient, or NOTHING."""

    _fields_ = tuple((n, c_int64) for n in ("channels", "rows", "columns", "at", "slope"))


class Node(Structure):
    """One operation of a network."""

    _anonymous_ = ("options",)
    _fields_ = (
        *((name, c_int64) for name in ("kind", "first", "second", "result")),
        ("parameter", c_int64 * 3),  # offsets into the flat parameters, or NOTHING
        ("statistic", c_int64 * 2),  # offsets into the flat running statistics
        ("frozen", c_void_p * 3),  # parameters that are not learned, or null
        ("options", _Union),
        ("saved", c_int64),  # the offset of what forward keeps for backward
        ("prepared", c_int64),  # of what is made of the parameters
        ("wanted", c_int64 * 2),  # whether the gradient of first and second is
        ("add", c_int64 * 2),  # whether it is added to what is there
    )


class Graph(Structure):
    """A network as a list of operations."""

    _fields_ = (
        *((n, c_int64) for n in ("nodes", "parameters", "input", "output", "vecs", "scratch")),
        ("loss", c_int64),
        ("smoothing", c_float),
        ("class_weights", c_void_p),  # or null; of positive answers where every output has its own
        ("node", POINTER(Node)),
        ("value", POINTER(Value)),
    )


class Sizes(Structure):
    """Vectors that an operation asks for."""

    _fields_ = tuple((n, c_int64) for n in ("saved", "prepared", "scratch"))


_SUMS = """
void parley_sums_NUMBER(
    Int from, Int to, Int sums, const Int *target, const Int *start, const Int *row,
    const NUMBER *weight, const NUMBER *x, Int x_stride, Int x_rows, const NUMBER *y, Int y_stride,
    NUMBER *out, Int out_stride, int add, NUMBER gamma, const NUMBER *plus, Int plus_stride);"""
FUNCTIONS = f"""
Int parley_lanes(void);
void parley_sizes(const Graph *graph, Int node, Sizes *sizes);
Int parley_map_size(const Graph *graph, Int value);
Int parley_converted(const Graph *graph, Int n);
void parley_convert(
    const Graph *graph, Int rows, const float *inputs, Int stride, const Int *sizes, float *to,
    Int size);
void parley_gradients(
    const Graph *graph, Int pairs, const float *models, Int model_stride, float *const *converted,
    const void *const *targets, const float *const *const *masks, const Int *sizes, float *losses,
    float *gradients, Int gradient_stride, float *statistics, Int statistics_stride,
    vec *workspace);
void parley_accumulate(
    const Graph *graph, Int pairs, const float *models, Int model_stride, const Int *model,
    float *const *converted, const void *const *targets, const Int *sizes, Int shares,
    const Int *target, const float *weight, float *const *sums, const Int *sum_strides,
    float *gradient, vec *workspace);
void parley_statistics(
    const Graph *graph, Int pairs, const float *models, Int model_stride, float *const *converted,
    const Int *sizes, float *statistics, Int statistics_stride, vec *workspace);
void parley_predict(
    const Graph *graph, Int count, float *const *models, const float *converted, Int n,
    float *outputs, Int stride, vec *workspace);
void parley_batch(
    const uint8_t *images, Int channels, Int rows, Int columns, Int samples, const Int *index,
    const Int *draw, Int padding, const float *factor, const float *shift, uint8_t *plane,
    float *to);
void parley_encode_signs(
    const float *p, Int rows, const Int *sizes, Int segments, uint8_t *wire);
void parley_decode_signs(
    const uint8_t *wire, Int rows, const Int *sizes, Int segments, float *to, int subtract);
{_SUMS.replace("NUMBER", "float")}
{_SUMS.replace("NUMBER", "double")}
"""
"""What Python calls, as C declares it."""


def declare(library: ctypes.CDLL) -> None:
    """Tells ctypes the types of all functions; AttributeError where one is missing."""
    plain = {"void": None, "Int": c_int64, "int": c_int, "float": c_float, "double": c_double}
    own = {"Graph": POINTER(Graph), "Sizes": POINTER(Sizes)}
    for result, name, declared in re.findall(r"(\w+) (\w+)\((.*?)\);", FUNCTIONS, re.DOTALL):
        kinds = [part.replace("const ", "").split() for part in declared.split(",")]
        function = getattr(library, name)
        function.restype = plain[result]
        function.argtypes = [
            own.get(kind, c_void_p) if "*" in "".join(rest) else plain[kind]
            for kind, *rest in kinds
            if rest  # (void) has no arguments
        ]


def header() -> str:
    """`interface.h`."""
    enums = (Method, NormForm, Curve, LossKind, Parameter, Statistic)
    structures = (*STRUCTURES.values(), Value, Node, Graph, Sizes)
    return "\n".join(
        [
            "/* Made from parley/compute/kernels/interface.py. */",
            "#ifndef PARLEY_INTERFACE\n#define PARLEY_INTERFACE",
            '#include "simd.h"',
            f"#define NOTHING {NOTHING}",
            *map(_enum, enums),
            _each("OPERATION", OPERATIONS),
            *(f"typedef struct {{ {_fields(made)} }} {made.__name__};" for made in structures),
            FUNCTIONS,
            "#endif\n",
        ]
    )


def _enum(kind: type[IntEnum]) -> str:
    members = ", ".join(f"{name} = {value.value}" for name, value in kind.__members__.items())
    return f"enum {{ {members} }};\n{_each(kind.__name__.upper(), [v.name for v in kind])}"


def _each(name: str, members: Iterable[str]) -> str:
    return f"#define EACH_{name}(M) {' '.join(f'M({member})' for member in members)}"


def _fields(made: type[Structure] | type[ctypes.Union]) -> str:
    return " ".join(_field(name, kind) for name, kind, *_ in made._fields_)


def _field(name: str, kind: Any) -> str:
    if issubclass(kind, ctypes.Union):
        return f"union {{ {_fields(kind)} }};"
    if issubclass(kind, ctypes.Array):
        return f"{_c_name(kind._type_)} {name}[{kind._length_}];"
    return f"{_c_name(kind)} {name};"


def _c_name(kind: Any) -> str:
    plain = {c_int64: "Int", c_float: "float", c_void_p: "const float *"}
    if kind in plain:
        return plain[kind]
    return kind.__name__ if issubclass(kind, Structure) else f"const {kind._type_.__name__} *"
