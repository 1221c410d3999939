"""A network as a user may bring it: residual, with GroupNorm, strides and GELU."""

from torch import Tensor, nn
from torch.nn import functional


class Block(nn.Module):
    """Two convolutions and a shortcut, which is a projection where the size changes."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.first_norm = nn.GroupNorm(8, outputs)
        self.second = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.second_norm = nn.GroupNorm(8, outputs)
        self.project = nn.Conv2d(inputs, outputs, 1, stride) if stride > 1 else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        y = functional.gelu(self.first_norm(self.first(x)))
        y = self.second_norm(self.second(y))
        return functional.gelu(y + self.project(x))


WIDTHS = {
    "own": (16, 32, 64),
    "own-16-32-72": (16, 32, 72),
    "own-24-40-64": (24, 40, 64),
}
"""Channels of the three sizes of maps. Torch's convolutions work in blocks of 16 channels, so the
first is its best case; it has 170,474 parameters for colour images and 10 classes, the others
202,562 and 201,714."""


def own(model: str, input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """The network of this name in `WIDTHS`."""
    wide, half, quarter = WIDTHS[model]  # named after the maps' width
    return nn.Sequential(
        nn.Conv2d(input_shape[0], wide, 3, padding=1),
        nn.GELU(),
        *(Block(wide, wide, 1), Block(wide, half, 2), Block(half, half, 1)),
        *(Block(half, quarter, 2), Block(quarter, quarter, 1)),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(quarter, classes),
    )
