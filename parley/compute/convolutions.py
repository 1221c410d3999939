"""Which of the kernels computes a convolution fastest."""

from torch import nn

from parley.compute import kernels
from parley.compute.kernels.interface import Method, Pair
from parley.compute.operations import Shape


def fastest(layer: nn.Conv2d, padding: Pair, first: tuple[int, Shape], outputs: Shape) -> Method:
    """The method that is expected to take the least time, of those that can do it."""
    value, inputs = first
    kernel = tuple(layer.kernel_size)
    if kernel == (1, 1) and padding == (0, 0) and layer.groups == 1:
        return Method.POINTWISE
    if layer.groups == layer.in_channels == layer.out_channels > 1 and kernel[1] <= 7:
        return Method.DEPTHWISE
    if kernels.switched_off("PARLEY_WINOGRAD"):
        return Method.DIRECT
    if _by_tiles(layer, padding, inputs, outputs):
        return Method.WINOGRAD
    return (
        Method.BY_ROWS if not value and _by_rows(layer, padding, inputs, outputs) else Method.DIRECT
    )


def _by_rows(layer: nn.Conv2d, padding: Pair, inputs: Shape, outputs: Shape) -> bool:
    """Whether minimal filtering along rows gains, for the network's input."""
    kernel = tuple(layer.kernel_size)
    if kernel not in ((3, 3), (5, 5)) or max(padding) >= kernel[0]:
        return False
    if max(*layer.stride, *layer.dilation, layer.groups) > 1:
        return False
    products = -(-outputs[2] // 4) * (4 + kernel[1] - 1)
    return inputs[0] < 4 <= outputs[0] and products < 0.8 * outputs[2] * kernel[1]


def _by_tiles(layer: nn.Conv2d, padding: Pair, inputs: Shape, outputs: Shape) -> bool:
    """Whether Winograd's method gains, with the tiles of `kernels/transforms.h`."""
    wide, high = inputs[0], outputs[0]
    kernel, stride = tuple(layer.kernel_size), tuple(layer.stride)
    if (kernel, stride) not in (((3, 3), (1, 1)), ((3, 3), (2, 2)), ((5, 5), (1, 1))):
        return False
    if layer.groups > 1 or max(layer.dilation) > 1:
        return False
    if max(padding) >= kernel[0] or min(wide, high) < 4:
        return False
    whole = kernel == (3, 3) and stride == (1, 1) and inputs[1:] == outputs[1:] == (2, 2)
    sides = (2,) if whole else (4, 5) if kernel == (5, 5) else (4,)
    places = min(
        -(-outputs[1] // side)
        * -(-outputs[2] // side)
        * (3 if whole else 9 if stride == (2, 2) else side + kernel[0] - 1) ** 2
        for side in sides
    )
    # Their products, and about six additions for each value in and out: half of them with a stride.
    by_tiles = places * (wide * high + 6 // stride[0] * (wide + high))
    met = [
        sum(
            0 <= stride[0] * at + tap - pad < size
            for at in range(count)
            for tap in range(kernel[0])
        )
        for pad, size, count in zip(padding, inputs[1:], outputs[1:], strict=True)
    ]
    return by_tiles < 0.8 * met[0] * met[1] * wide * high
